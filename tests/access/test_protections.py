"""Protections: each is tried by a principal who should not, and by every way that there is around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lance_namespace as upstream
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, PermissionDeniedError

import tiltyard
from tests.access.conftest import ROWS_AS_STREAM, Catalog
from tests.services.cases import check_each
from tests.services.secured import Secured, secured_server
from tests.services.wire import stream
from tiltyard.catalog.garbage import sweep
from tiltyard.context import Context
from tiltyard.model.principals import SERVER
from tiltyard.tables.versions.records import MANAGED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.services.wire import Wire

TABLE = {"object_kind": "table", "id": ["s", "t"]}
NAMESPACE = {"object_kind": "namespace", "id": ["s"]}
ROWS = pa.table({"id": [1, 2]})


@pytest.fixture
def home(catalog: Catalog) -> Catalog:
    """A catalog with the table s.t, whose owner is ann; eve may do all to rows, and see it."""
    catalog.namespace("s")
    catalog.namespace("other")
    catalog.grant("ann", "use,create,drop,alter,write,read,manage_grants", namespace=("s",))
    catalog.grant("ann", "use,create", namespace=("other",))
    catalog.grant("eve", "use,read,write,alter,drop", namespace=("s",))
    catalog.as_("ann").create_table({"id": ["s", "t"], "properties": {MANAGED: "true"}}, ROWS_AS_STREAM)
    return catalog


def error_of(catalog: Catalog, caller: str, operation: str, **fields: Any) -> LanceNamespaceError:
    client = catalog.owner if caller == "owner" else catalog.as_(caller)
    with pytest.raises(LanceNamespaceError) as caught:
        client.call(operation, fields)
    return caught.value


def protect(catalog: Catalog, caller: str = "owner", kind: str = "deletion", **fields: Any) -> Any:
    client = catalog.owner if caller == "owner" else catalog.as_(caller)
    answer = client.call("SetProtection", {**TABLE, "kind": kind, **fields})
    catalog.refresh_rights()
    return answer["protections"]


def lift(catalog: Catalog, kind: str = "deletion", **fields: Any) -> None:
    catalog.owner.call("LiftProtection", {**TABLE, "kind": kind, **fields})
    catalog.refresh_rights()


REMOVALS: dict[str, Callable[[Any], Any]] = {
    "drop": lambda client: client.call("DropTable", {"id": ["s", "t"]}),
    "deregister": lambda client: client.call("DeregisterTable", {"id": ["s", "t"]}),
    "batch": lambda client: client.call(
        "BatchCommitTables", {"operations": [{"deregister_table": {"id": ["s", "t"]}}]}
    ),
    "cascade": lambda client: client.call("DropNamespace", {"id": ["s"], "behavior": "Cascade"}),
    "overwrite of the namespace": lambda client: client.call("CreateNamespace", {"id": ["s"], "mode": "overwrite"}),
    "overwrite of the table": lambda client: client.create_table({"id": ["s", "t"], "mode": "overwrite"}, stream(ROWS)),
}


@pytest.mark.parametrize("where", [TABLE, NAMESPACE, {"object_kind": "namespace", "id": []}], ids=str)
def test_deletion_protection_refuses_every_way_to_remove(home: Catalog, where: dict[str, Any]) -> None:
    protect(home, **where, reason="the books of 2025")

    def is_refused(way: str) -> None:
        with pytest.raises(PermissionDeniedError, match=r"protected from deletion.*the books of 2025.*Lift"):
            REMOVALS[way](home.owner)

    check_each(REMOVALS, is_refused)
    home.owner.call("UpdateTable", {"id": ["s", "t"], "updates": [["id", "id"]]})  # rows are another matter
    lift(home, **where)
    home.owner.call("DropTable", {"id": ["s", "t"]})


def test_register_that_replaces_a_protected_table_is_refused(home: Catalog) -> None:
    location = home.store.describe_table(("s", "t")).location
    home.owner.create_table({"id": ["x"]}, ROWS_AS_STREAM)
    other = home.owner.call("DeregisterTable", {"id": ["x"]}).location
    protect(home)
    error = error_of(home, "owner", "RegisterTable", id=["s", "t"], location=other, mode="overwrite")
    assert isinstance(error, PermissionDeniedError)
    assert home.store.describe_table(("s", "t")).location == location


def test_protections_belong_to_the_object_and_are_not_left_by_a_move(home: Catalog) -> None:
    protect(home, "ann")
    home.owner.call("RenameTable", {"id": ["s", "t"], "new_table_name": "u"})
    home.owner.call("RenameTable", {"id": ["s", "u"], "new_table_name": "u", "new_namespace_id": ["other"]})
    assert "protected" in str(error_of(home, "owner", "DropTable", id=["other", "u"]))
    home.owner.call("LiftProtection", {"object_kind": "table", "id": ["other", "u"], "kind": "deletion"})
    home.owner.call("RenameTable", {"id": ["other", "u"], "new_table_name": "t", "new_namespace_id": ["s"]})
    protect(home, **NAMESPACE)
    error = error_of(home, "owner", "RenameTable", id=["s", "t"], new_table_name="t", new_namespace_id=["other"])
    assert isinstance(error, PermissionDeniedError) and "namespace s" in str(error)
    protect(home)  # what the table has itself goes with it
    home.owner.call("RenameTable", {"id": ["s", "t"], "new_table_name": "t", "new_namespace_id": ["other"]})
    assert "the table other$t" in str(error_of(home, "owner", "DropTable", id=["other", "t"]))


def test_who_may_protect_and_lift(home: Catalog) -> None:
    for kind in ("deletion", "read_only"):
        assert isinstance(error_of(home, "eve", "SetProtection", **TABLE, kind=kind), PermissionDeniedError)
        protect(home, "ann", kind)
        assert isinstance(error_of(home, "eve", "LiftProtection", **TABLE, kind=kind), PermissionDeniedError)
        home.as_("ann").call("LiftProtection", {**TABLE, "kind": kind})
    for caller in ("ann", "eve"):  # the owner, too
        error = error_of(home, caller, "SetProtection", **TABLE, kind="hold", reason="case 1")
        assert isinstance(error, PermissionDeniedError) and "legal_hold" in str(error)
        assert isinstance(
            error_of(home, caller, "SetProtection", object_kind="server", kind="deletion"), LanceNamespaceError
        )
        assert isinstance(error_of(home, caller, "ListProtections"), PermissionDeniedError)
    home.grant("law", "legal_hold", namespace=("s",))
    protect(home, "law", "hold", reason="case 1")
    assert isinstance(error_of(home, "ann", "LiftProtection", **TABLE, kind="hold"), PermissionDeniedError)
    [held] = home.as_("eve").call("ListProtections", TABLE)["protections"]
    assert (held["kind"], held["reason"], held["set_by"], held["id"]) == ("hold", "case 1", "law", ["s", "t"])
    home.as_("law").call("LiftProtection", {**TABLE, "kind": "hold"})


def test_wrong_requests_are_refused(home: Catalog) -> None:
    for fields, word in (
        ({"kind": "hold"}, "reason"),
        ({"kind": "freeze"}, "kind of protection"),
        ({"kind": "deletion", "reason": "x" * 2001}, "2000"),
        ({"kind": "deletion", "object_kind": "namespace", "id": ["s"], "dropped_id": 3}, "dropped_id"),
    ):
        error = error_of(home, "owner", "SetProtection", **{**TABLE, **fields})
        assert isinstance(error, InvalidInputError) and word in str(error), error
    protect(home, **NAMESPACE)
    assert "inherits some from the namespace s" in str(
        error_of(home, "owner", "LiftProtection", **TABLE, kind="deletion")
    )
    protections = home.owner.call("ListProtections", {})["protections"]
    assert [(entry["object_kind"], entry["id"], entry["kind"]) for entry in protections] == [
        ("namespace", ["s"], "deletion")
    ]


def test_legal_hold_keeps_versions_branches_and_files(home: Catalog) -> None:
    owner, table = home.owner, {"id": ["s", "t"]}
    owner.call("CreateTableBranch", {**table, "name": "b"})
    owner.call("DeleteFromTable", {**table, "predicate": "true"})
    protect(home, kind="hold", reason="case 1", **NAMESPACE)
    for operation, fields in (
        ("BatchDeleteTableVersions", {"ranges": [{"start_version": 1, "end_version": 2}]}),
        ("DeleteTableBranch", {"name": "b"}),
        ("DropTable", {}),
        ("RepairTable", {}),
    ):
        error = error_of(home, "owner", operation, **table, **fields)
        assert isinstance(error, PermissionDeniedError) and "case 1" in str(error), (operation, error)
    batch = {"operations": [{"delete_table_versions": {**table, "ranges": [{"start_version": 1, "end_version": 2}]}}]}
    assert isinstance(error_of(home, "owner", "BatchCommitTables", **batch), PermissionDeniedError)
    found = owner.call("CollectTableGarbage", {**table, "dry_run": True, "keep_versions_days": 0})
    assert found["num_files"] == 0 and "legal hold" in found["notes"][0]
    queued = owner.call("CollectTableGarbage", {**table, "keep_versions_days": 0})["transaction_id"]
    run_jobs(home)
    assert "legal hold" in owner.call("DescribeTransaction", {"id": [queued]}).properties["notes"]
    owner.call("DeleteFromTable", {**table, "predicate": "true"})  # a new version: the old ones stay
    lift(home, "hold", **NAMESPACE)
    owner.call("DeleteTableBranch", {**table, "name": "b"})


def run_jobs(catalog: Catalog) -> None:
    while catalog.owner._worker.run_one():
        pass


def test_legal_hold_keeps_what_was_dropped_before(home: Catalog) -> None:
    home.owner.create_table({"id": ["s", "u"]}, ROWS_AS_STREAM)
    home.owner.create_table({"id": ["s", "v"]}, ROWS_AS_STREAM)
    held, other = (home.store.describe_table(("s", name)) for name in ("t", "u"))
    for name in ("t", "u", "v"):
        home.owner.call("DropTable", {"id": ["s", name]})
    assert isinstance(
        error_of(home, "ann", "SetProtection", **TABLE, kind="hold", reason="r", dropped_id=held.id),
        PermissionDeniedError,
    )
    protect(home, kind="hold", reason="case 1", dropped_id=held.id)
    make_due(home)
    sweep(Context(home.owner._services, "sweep", principal=SERVER))
    storage = home.owner._services.storage
    assert storage.has_table(held.location) and not storage.has_table(other.location)
    assert [each["id"] for each in home.owner.call("ListDroppedTables", {})["tables"]] == [["s", "t"]]
    home.owner.call("UndropTable", {"id": ["s", "t"]})  # and the hold is on it
    assert isinstance(error_of(home, "owner", "DropTable", id=["s", "t"]), PermissionDeniedError)
    lift(home, "hold")
    home.owner.call("DropTable", {"id": ["s", "t"]})
    make_due(home)
    sweep(Context(home.owner._services, "sweep", principal=SERVER))
    assert not storage.has_table(held.location)
    assert home.owner.call("ListProtections", {})["protections"] == []


def make_due(catalog: Catalog) -> None:
    """Let the retention of all that was dropped end."""

    def work(unit: Any) -> None:
        for name in ("doomed_folders", "removed_tables", "removed_namespaces"):
            unit.connection.change(f"UPDATE {name} SET due_at = 1")  # names of tables

    catalog.store.transact(work)


CHANGES: dict[str, dict[str, Any]] = {
    "CreateNamespace": {"id": ["s", "new"]},
    "DeclareTable": {"id": ["s", "new"]},
    "DropTable": {"id": ["s", "t"]},
    "RenameTable": {"id": ["s", "t"], "new_table_name": "u"},
    "DeleteFromTable": {"id": ["s", "t"], "predicate": "true"},
    "AlterTableDropColumns": {"id": ["s", "t"], "columns": ["id"]},
    "CreateTableTag": {"id": ["s", "t"], "tag": "x", "version": 1},
    "CreateTableVersion": {"id": ["s", "t"], "version": 2, "manifest_path": "x"},
    "BatchCommitTables": {"operations": [{"declare_table": {"id": ["s", "new"]}}]},
    "BatchCreateTableVersions": {"entries": [{"id": ["s", "t"], "version": 2, "manifest_path": "x"}]},
    "CollectTableGarbage": {"id": ["s", "t"]},
    "CreateSnapshot": {"name": "n", "tables": [["s", "t"]]},
    "GrantPrivileges": {**TABLE, "grantee": "bob", "privileges": ["read"]},
    "SubmitJob": {"name": "optimize", "table": ["s", "t"], "arguments": {"table": "s$t"}},
    "RegisterTable": {"id": ["s", "new"], "location": "x"},
    "CreateView": {"id": ["s", "new"], "query": "SELECT 1"},
}


@pytest.mark.parametrize("where", [TABLE, NAMESPACE, {"object_kind": "server"}], ids=["table", "namespace", "server"])
def test_read_only_refuses_all_changes_and_lets_reads_go_on(home: Catalog, where: dict[str, Any]) -> None:
    where = {"id": None, **where}
    queued = home.owner.call("CollectTableGarbage", {"id": ["s", "t"]})["transaction_id"]
    protect(home, kind="read_only", reason="new disks", **where)
    in_table = {name: fields for name, fields in CHANGES.items() if fields.get("id") == ["s", "t"]}

    def is_refused(name: str) -> None:
        error = error_of(home, "owner", name, **CHANGES[name])
        assert isinstance(error, PermissionDeniedError) and "read-only" in str(error) and "new disks" in str(error)
        assert "lift read-only" in str(error)

    check_each(in_table if where["object_kind"] == "table" else CHANGES, is_refused)
    with pytest.raises(PermissionDeniedError, match="read-only"):
        home.owner.insert_into_table({"id": ["s", "t"]}, ROWS_AS_STREAM)
    assert home.owner.call("CountTableRows", {"id": ["s", "t"]}).count > 0
    assert home.owner.call("DescribeTable", {"id": ["s", "t"]}).location
    run_jobs(home)  # jobs on it wait
    assert home.owner.call("DescribeTransaction", {"id": [queued]}).status == "Queued"
    if where["object_kind"] != "server":
        home.owner.call("CreateNamespace", {"id": ["elsewhere"]})
    lift(home, "read_only", **where)
    run_jobs(home)
    assert home.owner.call("DescribeTransaction", {"id": [queued]}).status == "Succeeded"
    home.owner.insert_into_table({"id": ["s", "t"]}, ROWS_AS_STREAM)


def test_read_only_refuses_what_was_under_way(home: Catalog) -> None:
    """What was authorized before is refused where it commits, whoever commits: rows of an upload, a server's job."""
    services = home.owner._services
    record = home.store.describe_table(("s", "t"))

    class Body:
        """A body that has come whole only once the table is read-only."""

        size = None
        failure = None

        def reader(self) -> pa.RecordBatchReader:
            protect(home, kind="read_only")
            services.protections.refresh_next()
            return pa.RecordBatchReader.from_stream(ROWS)

    from tiltyard.model.spec import models  # as the operation gets it
    from tiltyard.tables.rows.insert import insert_into_table

    rows = home.owner.call("CountTableRows", {"id": ["s", "t"]})
    with pytest.raises(PermissionDeniedError, match="read-only"):
        insert_into_table(Context(services, "r"), models.InsertIntoTableRequest(id=["s", "t"]), Body())
    assert home.owner.call("CountTableRows", {"id": ["s", "t"]}) == rows
    assert home.store.list_versions(record.id) == []


def test_protections_hold_below_a_mount(home: Catalog, tmp_path: Path) -> None:
    """An object of another catalog is not dropped, renamed, moved or changed through this server."""
    (tmp_path / "root" / "lake").mkdir()
    settings = {"root": str(tmp_path / "root" / "lake"), "mode": "manifest"}
    home.owner.call("MountCatalog", {"id": ["m"], "kind": "dir", "settings": settings, "max_age_millis": 0})
    home.owner.call("CreateNamespace", {"id": ["m", "x"]})
    home.owner.call("CreateNamespace", {"id": ["m", "y"]})
    home.owner.create_table({"id": ["m", "x", "t"]}, ROWS_AS_STREAM)
    table, in_x = {"object_kind": "table", "id": ["m", "x", "t"]}, {"object_kind": "namespace", "id": ["m", "x"]}
    to_y = {"id": ["m", "x", "t"], "new_table_name": "t", "new_namespace_id": ["m", "y"]}
    removals: list[tuple[str, dict[str, Any]]] = [
        ("DropTable", {"id": ["m", "x", "t"]}),
        ("DeregisterTable", {"id": ["m", "x", "t"]}),
        ("UnmountCatalog", {"id": ["m"]}),
    ]
    for where in (table, in_x):
        for kind in ("deletion", "hold"):
            protect(home, **where, kind=kind, reason="books")
            for operation, fields in removals:
                assert isinstance(error_of(home, "owner", operation, **fields), PermissionDeniedError), operation
            lift(home, **where, kind=kind)
    protect(home, **in_x, kind="deletion")
    for operation, fields in (
        ("DropNamespace", {"id": ["m", "x"]}),
        ("RenameTable", to_y),
        ("MoveTable", {"id": ["m", "x", "t"], "new_id": ["s", "moved"]}),
    ):
        error = error_of(home, "owner", operation, **fields)
        assert isinstance(error, PermissionDeniedError) and "books" not in str(error), (operation, error)
    lift(home, **in_x)
    for where in (table, in_x, {"object_kind": "namespace", "id": ["m"]}, {"object_kind": "server", "id": None}):
        protect(home, **where, kind="read_only", reason="frozen")
        for operation, fields in (
            *removals[:2],
            ("RenameTable", to_y),
            ("MoveTable", {"id": ["m", "x", "t"], "new_id": ["s", "moved"]}),
            ("UpdateTable", {"id": ["m", "x", "t"], "updates": [["id", "id"]]}),
        ):
            assert "frozen" in str(error_of(home, "owner", operation, **fields)), (where, operation)
        with pytest.raises(PermissionDeniedError, match="frozen"):
            home.owner.insert_into_table({"id": ["m", "x", "t"]}, ROWS_AS_STREAM)
        lift(home, **where, kind="read_only")
    protect(home, **table, kind="approval", operations=["DropTable"])
    for operation, fields in removals:
        assert isinstance(error_of(home, "owner", operation, **fields), PermissionDeniedError), operation
    home.grant("bob", "approve", namespace=("m",))
    [request] = [each for each in home.store.list_approvals(None, 9) if each.operation == "DropTable"]
    home.as_("bob").call("DecideApproval", {"approval_id": request.id, "approved": True})
    home.owner.call("DropTable", {"id": ["m", "x", "t"]})


def test_entry_below_a_mount_that_cannot_be_used_is_kept_by_its_namespace(home: Catalog, tmp_path: Path) -> None:
    (tmp_path / "root" / "lake").mkdir()
    (tmp_path / "root" / "else").mkdir()
    settings = {"root": str(tmp_path / "root" / "lake"), "mode": "manifest"}
    allowed = [str(tmp_path / "root" / "else")]
    home.owner.call("MountCatalog", {"id": ["m"], "kind": "dir", "settings": settings, "max_age_millis": 0})
    home.owner.call("CreateNamespace", {"id": ["m", "x"]})
    home.owner.create_table({"id": ["m", "x", "t"]}, ROWS_AS_STREAM)
    home.owner.call("AlterMount", {"id": ["m"], "allowed_locations": allowed})
    where = {"object_kind": "namespace", "id": ["m", "x"]}
    protect(home, **where, reason="books")
    assert "books" in str(error_of(home, "owner", "DeregisterTable", id=["m", "x", "t"]))
    lift(home, **where)
    protect(home, kind="approval", operations=["DropTable"])  # elsewhere
    home.owner.call("DeregisterTable", {"id": ["m", "x", "t"]})


def test_rows_of_a_client_are_refused_before_a_file_is_written(tmp_path: Path) -> None:
    """Of a session: Arrow's rows by threads here, as Spark's by its tasks, once the table is found."""
    with tiltyard.connect(str(tmp_path)) as lake:
        lake.table("t").write(ROWS, mode="create")
        for where in (lake.table("t").protections, lake.protections):
            where.set("read-only", reason="new disks")
            before = sorted(tmp_path.rglob("*.lance"))
            for mode in ("append", "overwrite"):
                with pytest.raises(PermissionDeniedError, match=r"read-only \(set by .*new disks.*Nothing was written"):
                    lake.table("t").write(ROWS, mode=mode)
            assert sorted(tmp_path.rglob("*.lance")) == before
            where.lift("read-only")
        lake.table("t").write(ROWS, mode="append")
        assert lake.table("t").count() == 4


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    root: Path = tmp_path_factory.mktemp("protections")
    with secured_server(root) as running:
        wire = running.wire("administrator")
        wire.good(wire.namespace(["s"], "create"))
        wire.good(wire.table(["s", "t"], "create", ROWS_AS_STREAM))
        yield running


def call(wire: Wire, path: str, **fields: Any) -> Any:
    return wire.http.post(f"/tiltyard/v1/protection/{path}", json=fields)


def test_stock_clients_are_refused_by_a_running_server_and_the_audit_has_it(secured: Secured) -> None:
    admin = secured.wire("administrator")
    assert call(admin, "set", **NAMESPACE, kind="deletion", reason="books").status_code == 200
    client = upstream.connect("rest", {"uri": secured.url, "headers.x-api-key": secured.keys["administrator"]})
    with pytest.raises(PermissionDeniedError, match="books"):
        client.drop_table(upstream.DropTableRequest(id=["s", "t"]))
    assert call(admin, "set", object_kind="server", kind="read_only", reason="disks").status_code == 200
    with pytest.raises(PermissionDeniedError, match="The server is read-only"):
        client.create_namespace(upstream.CreateNamespaceRequest(id=["new"]))
    client.table_exists(upstream.TableExistsRequest(id=["s", "t"]))
    assert call(secured.wire("ann"), "lift", object_kind="server", kind="read_only").status_code == 403
    assert call(admin, "lift", object_kind="server", kind="read_only").status_code == 200
    assert call(admin, "lift", **NAMESPACE, kind="deletion").status_code == 200
    records = admin.good(admin.http.post("/tiltyard/v1/audit", json={"limit": 100}))["records"]
    seen = {(each["operation"], each["outcome"]) for each in records}
    assert {("SetProtection", "ok"), ("LiftProtection", "ok"), ("DropTable", "refused")} <= seen
