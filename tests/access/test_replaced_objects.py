"""An object that gets a name between authorization and execution is left alone: the authorized object is acted on."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import NamespaceNotFoundError, PermissionDeniedError, TableNotFoundError

import tiltyard
from tests.access.conftest import ROWS_AS_STREAM, Catalog
from tiltyard.calls import in_process_caller
from tiltyard.calls.in_process_caller import find_handler
from tiltyard.model.operations import Handler

SECRET = ["s", "t"]


def between(monkeypatch: pytest.MonkeyPatch, operation: str, change: Callable[[], None]) -> None:
    """Run `change` after an operation is authorized and before it is executed, the first time."""
    handler = find_handler(operation)
    changes = [change]

    def late(ctx: Any, request: Any, *data: Any) -> Any:
        if changes:
            changes.pop()()
        return handler.function(ctx, request, *data)

    handlers = {operation: Handler(late, handler.inline, handler.needs)}
    monkeypatch.setattr(in_process_caller, "find_handler", lambda name: handlers.get(name) or find_handler(name))


@pytest.fixture
def ann(catalog: Catalog) -> tiltyard.Namespace:
    """Return the client of a principal with all privileges on the table s$t and the namespace d, and `create` on s."""
    for name in ("s", "d"):
        catalog.namespace(name)
    for name in ("t", "secret"):
        catalog.table("s", name)
    catalog.grant("ann", "create", namespace=("s",))
    catalog.grant("ann", "all", namespace=("d",))
    catalog.grant("ann", "all", table=("s", "t"))
    return catalog.as_("ann")


def another_table(catalog: Catalog) -> None:
    """The name s$t is the secret table's now."""
    catalog.owner.drop_table({"id": SECRET})
    catalog.owner.rename_table({"id": ["s", "secret"], "new_table_name": "t"})


def another_namespace(catalog: Catalog) -> None:
    """The name d is another namespace's now, on which ann has no rights."""
    catalog.owner.drop_namespace({"id": ["d"], "behavior": "Cascade"})
    catalog.owner.create_namespace({"id": ["d"], "properties": {"secret": "yes"}})


BATCH = "BatchCommitTables"
ALL_VERSIONS = {"start_version": 0, "end_version": -1}


@pytest.mark.parametrize(
    ("operation", "request_"),
    [
        ("RenameTable", {"id": SECRET, "new_table_name": "mine"}),
        ("RenameTable", {"id": SECRET, "new_namespace_id": ["d"], "new_table_name": "mine"}),
        ("DropTable", {"id": SECRET}),
        ("DeregisterTable", {"id": SECRET}),
        (BATCH, {"operations": [{"deregister_table": {"id": SECRET}}]}),
        (BATCH, {"operations": [{"delete_table_versions": {"id": SECRET, "ranges": [ALL_VERSIONS]}}]}),
    ],
)
def test_table_that_takes_the_name_after_the_check_is_not_changed(
    monkeypatch: pytest.MonkeyPatch, catalog: Catalog, ann: tiltyard.Namespace, operation: str, request_: dict[str, Any]
) -> None:
    secret = catalog.store.describe_table(("s", "secret")).id
    between(monkeypatch, operation, lambda: another_table(catalog))
    with pytest.raises(TableNotFoundError):
        ann.call(operation, request_)
    assert catalog.store.describe_table(tuple(SECRET)).id == secret
    assert catalog.owner.count_table_rows({"id": SECRET}).count == 3


def test_table_that_takes_the_name_after_the_check_is_not_read(
    monkeypatch: pytest.MonkeyPatch, catalog: Catalog, ann: tiltyard.Namespace
) -> None:
    catalog.owner.insert_into_table({"id": ["s", "secret"]}, ROWS_AS_STREAM)
    between(monkeypatch, "CountTableRows", lambda: another_table(catalog))
    assert ann.count_table_rows({"id": SECRET}).count == 3  # of the dropped one, which is kept for a while
    assert catalog.owner.count_table_rows({"id": SECRET}).count == 6
    catalog.refresh_rights()
    with pytest.raises(PermissionDeniedError):
        ann.count_table_rows({"id": SECRET})


def test_table_that_takes_the_name_after_the_check_is_not_granted(
    monkeypatch: pytest.MonkeyPatch, catalog: Catalog, ann: tiltyard.Namespace
) -> None:
    between(monkeypatch, "GrantPrivileges", lambda: another_table(catalog))
    ann.call("GrantPrivileges", {"object_kind": "table", "id": SECRET, "grantee": "bob", "privileges": ["read"]})
    assert catalog.owner.call("ListGrants", {"object_kind": "table", "id": SECRET})["grants"] == []


@pytest.mark.parametrize(
    ("operation", "request_", "data"),
    [
        ("CreateNamespace", {"id": ["d", "x"]}, None),
        ("DeclareTable", {"id": ["d", "x"]}, None),
        ("CreateTable", {"id": ["d", "x"]}, ROWS_AS_STREAM),
        (BATCH, {"operations": [{"declare_table": {"id": ["d", "x"]}}]}, None),
        ("RenameTable", {"id": SECRET, "new_namespace_id": ["d"], "new_table_name": "x"}, None),
        ("UndropTable", {"id": ["d", "old"]}, None),
        ("UndropNamespace", {"id": ["d", "gone"]}, None),
        ("DropNamespace", {"id": ["d"]}, None),
        ("DropNamespace", {"id": ["d"], "behavior": "Cascade"}, None),
        ("DescribeNamespace", {"id": ["d"]}, None),
    ],
)
def test_namespace_that_takes_the_name_after_the_check_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
    catalog: Catalog,
    ann: tiltyard.Namespace,
    operation: str,
    request_: dict[str, Any],
    data: bytes | None,
) -> None:
    ann.create_table({"id": ["d", "old"]}, ROWS_AS_STREAM)
    ann.drop_table({"id": ["d", "old"]})
    ann.create_namespace({"id": ["d", "gone"]})
    ann.drop_namespace({"id": ["d", "gone"], "behavior": "Cascade"})
    between(monkeypatch, operation, lambda: another_namespace(catalog))
    with pytest.raises(NamespaceNotFoundError):
        ann.call(operation, request_, data)
    assert catalog.owner.list_tables({"id": ["d"]}).tables == []
    assert catalog.owner.list_namespaces({"id": ["d"]}).namespaces == []
    assert catalog.owner.describe_namespace({"id": ["d"]}).properties == {"secret": "yes"}
    assert sorted(catalog.owner.list_tables({"id": ["s"]}).tables) == ["secret", "t"]


def test_view_needs_write_on_a_table_that_is_only_declared(catalog: Catalog, ann: tiltyard.Namespace) -> None:
    """To create in a namespace is not to give another's declared table its first version."""
    catalog.owner.declare_table({"id": ["s", "declared"]})
    schema = base64.b64encode(pa.schema({"id": pa.int64()}).serialize().to_pybytes()).decode()
    view = {"id": ["s", "declared"], "kind": "query", "source_query": "SELECT 1 AS id", "output_schema": schema}
    with pytest.raises(PermissionDeniedError):
        ann.call("CreateMaterializedView", view)
    assert ann.call("CreateMaterializedView", {**view, "id": ["s", "view"]}) is not None
