"""Approvals: a call runs once, with the approval of another principal, and no way leads around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    PermissionDeniedError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TransactionNotFoundError,
)

from tests.access.conftest import ROWS_AS_STREAM
from tests.services.cases import check_each

if TYPE_CHECKING:
    from tests.access.conftest import Catalog

TABLE = {"object_kind": "table", "id": ["s", "t"]}
DROP = {"id": ["s", "t"]}


@pytest.fixture
def home(catalog: Catalog) -> Catalog:
    """A catalog with s.t, whose DropTable needs approval; ann owns it, bob approves, eve may drop it, too."""
    catalog.namespace("s")
    catalog.grant("ann", "use,create,drop,alter,write,read,manage_grants", namespace=("s",))
    catalog.grant("bob", "approve", namespace=("s",))
    catalog.grant("eve", "use,drop", namespace=("s",))
    catalog.as_("ann").create_table({"id": ["s", "t"]}, ROWS_AS_STREAM)
    catalog.as_("ann").call("SetProtection", {**TABLE, "kind": "approval", "operations": ["DropTable"]})
    catalog.refresh_rights()
    return catalog


def error_of(catalog: Catalog, caller: str, operation: str, **fields: Any) -> LanceNamespaceError:
    with pytest.raises(LanceNamespaceError) as caught:
        (catalog.owner if caller == "owner" else catalog.as_(caller)).call(operation, fields)
    return caught.value


def requests(catalog: Catalog, caller: str) -> list[Any]:
    found: list[Any] = catalog.as_(caller).call("ListApprovals", {})["approvals"]
    return found


def decide(catalog: Catalog, caller: str, request: Any, *, approved: bool = True) -> Any:
    return catalog.as_(caller).call("DecideApproval", {"approval_id": request["id"], "approved": approved})["approval"]


def test_a_call_is_requested_approved_by_another_and_runs_once(home: Catalog) -> None:
    error = error_of(home, "ann", "DropTable", **DROP)
    [request] = requests(home, "bob")
    assert isinstance(error, PermissionDeniedError) and request["id"] in str(error)
    assert request["id"] in str(error_of(home, "ann", "DropTable", **DROP))  # the same request
    assert (request["operation"], request["object_id"], request["requested_by"]) == ("DropTable", ["s", "t"], "ann")
    fields = {"approval_id": request["id"], "approved": True}
    kinds = {"ann": PermissionDeniedError, "eve": PermissionDeniedError, "eva": TransactionNotFoundError}
    for caller, kind in kinds.items():
        assert isinstance(error_of(home, caller, "DecideApproval", **fields), kind), caller
    assert decide(home, "bob", request)["status"] == "approved"
    assert isinstance(error_of(home, "eve", "DropTable", **DROP), PermissionDeniedError)  # it is another's call
    assert isinstance(error_of(home, "owner", "DropTable", **DROP), PermissionDeniedError)
    home.as_("ann").call("DropTable", DROP)
    assert next(each for each in requests(home, "ann") if each["id"] == request["id"])["status"] == "used"
    home.as_("ann").call("UndropTable", DROP)
    assert request["id"] not in str(error_of(home, "ann", "DropTable", **DROP))  # it needs another one
    assert isinstance(error_of(home, "bob", "DecideApproval", **fields), InvalidInputError)


def test_no_other_way_removes_it(home: Catalog) -> None:
    ways: dict[str, dict[str, Any]] = {
        "DeregisterTable": DROP,
        "BatchCommitTables": {"operations": [{"deregister_table": DROP}]},
        "DropNamespace": {"id": ["s"], "behavior": "Cascade"},
        "CreateNamespace": {"id": ["s"], "mode": "overwrite"},
    }

    def is_refused(name: str) -> None:
        error = error_of(home, "owner", name, **ways[name])
        assert isinstance(error, PermissionDeniedError) and "second principal" in str(error), error

    check_each(ways, is_refused)
    with pytest.raises(PermissionDeniedError, match="second principal"):
        home.owner.create_table({"id": ["s", "t"], "mode": "overwrite"}, ROWS_AS_STREAM)


def test_what_is_approved_is_this_very_call(home: Catalog) -> None:
    home.as_("ann").call("SetProtection", {**TABLE, "kind": "approval", "operations": ["DeleteFromTable"]})
    home.refresh_rights()
    first = {"id": ["s", "t"], "predicate": "false"}
    error_of(home, "ann", "DeleteFromTable", **first)
    [request] = requests(home, "bob")
    assert '"predicate":"false"' in request["request"]
    decide(home, "bob", request)
    assert "is requested as" in str(error_of(home, "ann", "DeleteFromTable", id=["s", "t"], predicate="true"))
    home.as_("ann").call("DeleteFromTable", first)
    home.as_("ann").call("RenameTable", {"id": ["s", "t"], "new_table_name": "u"})
    home.as_("ann").create_table({"id": ["s", "t"]}, ROWS_AS_STREAM)
    home.as_("ann").call("DeleteFromTable", first)  # another table has the name now, which needs none


def test_a_call_that_was_refused_keeps_its_approval(home: Catalog) -> None:
    home.as_("ann").call("SetProtection", {**TABLE, "kind": "approval", "operations": ["DeleteFromTable"]})
    home.refresh_rights()
    wrong = {"id": ["s", "t"], "predicate": "no_such_column = 1"}
    error_of(home, "ann", "DeleteFromTable", **wrong)
    decide(home, "bob", requests(home, "bob")[0])
    for _ in range(2):
        assert isinstance(error_of(home, "ann", "DeleteFromTable", **wrong), TableColumnNotFoundError)


def test_a_denied_call_stays_denied_and_an_expired_one_is_requested_anew(home: Catalog) -> None:
    error_of(home, "ann", "DropTable", **DROP)
    [request] = requests(home, "bob")
    assert decide(home, "bob", request, approved=False)["status"] == "denied"
    assert "bob has denied" in str(error_of(home, "ann", "DropTable", **DROP))
    home.store.transact(lambda unit: unit.connection.change("UPDATE approvals SET expires_at = 1"))
    error = error_of(home, "ann", "DropTable", **DROP)
    assert "is requested as" in str(error) and request["id"] not in str(error)


def test_lifting_needs_an_approval_itself(home: Catalog) -> None:
    lifted = {**TABLE, "kind": "approval", "operations": ["DropTable"]}
    assert isinstance(error_of(home, "bob", "LiftProtection", **lifted), PermissionDeniedError)  # he manages no grants
    for caller in ("ann", "owner"):
        assert "is requested as" in str(error_of(home, caller, "LiftProtection", **lifted))
    own = home.owner.call("ListApprovals", {})["approvals"]
    mine = next(each for each in own if each["requested_by"] != "ann")
    error = error_of(home, "owner", "DecideApproval", approval_id=mine["id"], approved=True)
    assert isinstance(error, PermissionDeniedError) and "yourself" in str(error)
    decide(home, "bob", next(each for each in requests(home, "bob") if each["requested_by"] == "ann"))
    home.as_("ann").call("LiftProtection", lifted)
    home.refresh_rights()
    home.as_("eve").call("DropTable", DROP)
    assert isinstance(error_of(home, "eve", "DropTable", **DROP), TableNotFoundError)


def test_operations_that_cannot_need_approval_are_refused(home: Catalog) -> None:
    for name in ("InsertIntoTable", "CreateTableVersion", "QueryTable", "GrantPrivileges", "Nothing"):
        error = error_of(home, "ann", "SetProtection", **TABLE, kind="approval", operations=[name])
        assert isinstance(error, InvalidInputError) and name in str(error)
    assert isinstance(error_of(home, "ann", "SetProtection", **TABLE, kind="approval"), InvalidInputError)
    assert isinstance(
        error_of(home, "ann", "SetProtection", **TABLE, kind="deletion", operations=["DropTable"]), InvalidInputError
    )
