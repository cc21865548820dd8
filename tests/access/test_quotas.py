"""Quotas are kept to, by whom they bind, and are not lifted by whom they bind."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import lance
import lance_namespace as upstream
import lancedb
import pyarrow as pa
import pytest
from click.testing import CliRunner
from lance_namespace.errors import (
    InvalidInputError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    ThrottlingError,
)

import tiltyard
from tests.access.conftest import ROWS_AS_STREAM, Catalog
from tests.faults.conftest import wait_until
from tests.services.cases import check_each
from tests.services.secured import Secured, secured_server
from tests.services.wire import stream
from tiltyard.cli import main
from tiltyard.model.lineage import RUN_PROPERTY
from tiltyard.model.principals import EVERYBODY
from tiltyard.store.access.quotas import RequestsUsedUpError
from tiltyard.tables.versions.records import MANAGED
from tiltyard.worker.runner import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

ROWS = pa.table({"id": [1, 2]})
NUMBER = ROWS.num_rows


@pytest.fixture
def home(catalog: Catalog) -> Catalog:
    """A catalog with the namespaces s, s.below and other; ann and bob may do all in them but administer."""
    for path in (("s",), ("s", "below"), ("other",)):
        catalog.namespace(*path)
    for name in ("ann", "bob"):
        for top in ("s", "other"):
            catalog.grant(name, "use,create,drop,alter,write,read,run_udfs,manage_grants", namespace=(top,))
    for client in (catalog.owner, catalog.as_("ann"), catalog.as_("bob")):
        client._services.quotas.start()  # as a server does
    return catalog


def limit(home: Catalog, resource: str, **fields: Any) -> None:
    home.owner.call("SetQuota", {"resource": resource, **fields})
    settle(home)


def settle(home: Catalog) -> None:
    """Let all that was used be counted, and read, by all, as if some seconds had passed."""
    clients = list(home._clients.values())
    for _ in range(2):
        for client in clients:
            client._services.quotas.flush()


def error_of(client: Any, operation: str, **fields: Any) -> LanceNamespaceError:
    with pytest.raises(LanceNamespaceError) as caught:
        client.call(operation, fields)
    return caught.value


def create(client: Any, *path: str, rows: pa.Table = ROWS) -> None:
    client.create_table({"id": list(path), "properties": {MANAGED: "true"}}, stream(rows))


def insert(client: Any, *path: str) -> None:
    client.insert_into_table({"id": list(path)}, stream(ROWS))


def listed(client: Any, operation: str, entries: str, **fields: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.call(operation, fields)[entries]
    return found


def used(home: Catalog, resource: str) -> int:
    settle(home)
    [quota] = [each for each in listed(home.owner, "ListQuotas", "quotas") if each["resource"] == resource]
    return int(quota["used"])


def test_tables_of_a_namespace_and_below_it_are_counted_to_the_last(home: Catalog) -> None:
    limit(home, "tables", namespace=["s"], hard=2)
    ann = home.as_("ann")
    create(ann, "s", "a")
    create(ann, "s", "below", "b")
    create(ann, "other", "c")

    ways: dict[str, Callable[[], Any]] = {
        "create": lambda: create(ann, "s", "x"),
        "create below": lambda: create(ann, "s", "below", "x"),
        "declare": lambda: ann.call("DeclareTable", {"id": ["s", "x"]}),
        "batch": lambda: ann.call("BatchCommitTables", {"operations": [{"declare_table": {"id": ["s", "x"]}}]}),
        "view": lambda: ann.call("CreateView", {"id": ["s", "x"], "query": "SELECT 1 AS one"}),
        "move": lambda: ann.call(
            "RenameTable", {"id": ["other", "c"], "new_table_name": "x", "new_namespace_id": ["s"]}
        ),
    }

    def is_refused(way: str) -> None:
        with pytest.raises(PermissionDeniedError, match=r"The namespace s has 2 of 2 tables.*drop some"):
            ways[way]()

    check_each(ways, is_refused)
    assert used(home, "tables") == 2
    ann.call("RenameTable", {"id": ["s", "a"], "new_table_name": "renamed"})  # it stays there
    ann.call("DropTable", {"id": ["s", "renamed"]})
    create(ann, "s", "x")
    error = error_of(ann, "UndropTable", id=["s", "renamed"])
    assert isinstance(error, PermissionDeniedError) and "2 of 2 tables" in str(error)


def test_what_is_restored_counts_for_its_creator_and_its_namespace(home: Catalog) -> None:
    ann = home.as_("ann")
    ann.call("CreateNamespace", {"id": ["s", "more"]})
    for name in ("a", "b"):
        create(ann, "s", "more", name)
    create(ann, "s", "c")
    ann.call("DropTable", {"id": ["s", "c"]})
    ann.call("DropNamespace", {"id": ["s", "more"], "behavior": "Cascade"})
    create(ann, "other", "d")
    limit(home, "tables", principal="ann", hard=1)
    owner = home.owner
    assert "ann has 1 of 1 tables" in str(error_of(owner, "UndropTable", id=["s", "c"]))
    assert "ann has 1 of 1 tables" in str(error_of(owner, "UndropNamespace", id=["s", "more"]))
    limit(home, "tables", principal="ann", hard=3)
    owner.call("UndropNamespace", {"id": ["s", "more"]})
    assert "ann has 3 of 3 tables" in str(error_of(owner, "UndropTable", id=["s", "c"]))
    assert used(home, "tables") == 3


def test_a_quota_of_all_requests_can_be_lifted(home: Catalog) -> None:
    create(home.as_("ann"), "s", "t")
    limit(home, "requests_per_day", namespace=[], hard=0)
    ann = home.as_("ann")
    assert "0 of 0 requests of today" in str(error_of(ann, "TableExists", id=["s", "t"]))
    assert [each["hard"] for each in listed(ann, "ListQuotas", "quotas")] == []
    home.grant("ann", "administer")
    assert [each["hard"] for each in listed(ann, "ListQuotas", "quotas")] == [0]
    ann.call("DropQuota", {"namespace": [], "resource": "requests_per_day"})
    settle(home)
    ann.call("TableExists", {"id": ["s", "t"]})


def test_tables_of_a_principal_are_those_that_it_has_created(home: Catalog) -> None:
    limit(home, "tables", principal="ann", hard=1)
    create(home.as_("bob"), "s", "of_bob")
    create(home.as_("ann"), "s", "a")
    with pytest.raises(PermissionDeniedError, match="The principal ann has 1 of 1 tables"):
        create(home.as_("ann"), "other", "b")
    create(home.as_("bob"), "other", "b")
    stored = listed(home.as_("ann"), "ListUsage", "stored")
    assert [(each["principal"], each["namespace"], each["tables"]) for each in stored] == [("ann", ["s"], 1)]


def test_rows_are_counted_for_whoever_commits_them_by_whatever_way(home: Catalog) -> None:
    ann, bob = home.as_("ann"), home.as_("bob")
    limit(home, "rows_per_day", principal="ann", hard=3 * NUMBER)
    limit(home, "bytes", namespace=["s"], soft=1)
    create(ann, "s", "t")
    insert(ann, "s", "t")
    insert(bob, "s", "t")
    assert used(home, "rows_per_day") == 2 * NUMBER
    location = ann.call("DescribeTable", {"id": ["s", "t"]}).location
    lance.write_dataset(ROWS, namespace_client=ann, table_id=["s", "t"], mode="append")  # CreateTableVersion
    assert used(home, "rows_per_day") == 3 * NUMBER
    assert used(home, "bytes") == sum(
        file.file_size_bytes for fragment in lance.dataset(location).get_fragments() for file in fragment.metadata.files
    )
    message = r"The principal ann has 6 of 6 rows of today written: go on after midnight UTC"
    with pytest.raises(PermissionDeniedError, match=message):
        insert(ann, "s", "t")
    with pytest.raises(PermissionDeniedError, match=message):
        create(ann, "s", "u")
    version = {"id": ["s", "t"], "version": 5, "manifest_path": "none"}
    batch = {"operations": [{"create_table_version": version}]}
    for name, fields in (
        ("CreateTableVersion", version),
        ("BatchCreateTableVersions", {"entries": [version]}),
        ("BatchCommitTables", batch),
        ("UpdateTable", {"id": ["s", "t"], "updates": [["id", "id"]]}),
    ):
        assert "6 of 6 rows" in str(error_of(ann, name, **fields)), name
    ann.call("DeleteFromTable", {"id": ["s", "t"], "predicate": "id = 1"})  # what frees is not refused
    insert(bob, "s", "t")
    days = {
        each["principal"]: each["rows_written"]
        for each in listed(home.owner, "ListUsage", "days")
        if each["rows_written"]
    }
    settle(home)
    assert days["ann"] == 3 * NUMBER
    assert [each["principal"] for each in listed(ann, "ListUsage", "days")] == ["ann"]


def test_bytes_of_a_namespace_end_writes_until_some_are_freed(home: Catalog) -> None:
    ann = home.as_("ann")
    create(ann, "s", "below", "t")
    settle(home)
    limit(home, "bytes", namespace=["s"], hard=10)
    with pytest.raises(PermissionDeniedError, match=r"The namespace s has \d+ of 10 bytes: delete rows or drop tables"):
        insert(ann, "s", "below", "t")
    assert "of 10 bytes" in str(
        error_of(ann, "CreateTableIndex", id=["s", "below", "t"], column="id", index_type="BTREE")
    )
    create(ann, "other", "t")
    ann.call("DropTable", {"id": ["s", "below", "t"]})
    settle(home)
    create(ann, "s", "t")


def test_jobs_are_counted_where_they_are_queued(home: Catalog) -> None:
    ann = home.as_("ann")
    create(ann, "s", "t")
    limit(home, "jobs", namespace=["s"], hard=1)
    index = {"id": ["s", "t"], "column": "id", "index_type": "BTREE"}
    ann.call("CreateTableIndex", index)
    error = error_of(home.as_("bob"), "SubmitJob", name="optimize", table=["s", "t"])
    assert isinstance(error, ThrottlingError) and "The namespace s has 1 of 1 jobs" in str(error)
    assert used(home, "jobs") == 1


def test_rows_of_a_job_count_for_who_has_asked_for_it(home: Catalog) -> None:
    ann, bob = home.as_("ann"), home.as_("bob")
    create(home.owner, "s", "t")
    job = ann.call("SubmitJob", {"name": "optimize", "table": ["s", "t"]})["job"]["id"]

    def append(client: Any) -> None:
        dataset = lance.dataset(namespace_client=client, table_id=["s", "t"])
        operation = lance.LanceOperation.Append(lance.fragment.write_fragments(ROWS, dataset.uri))
        properties = {RUN_PROPERTY: job}
        lance.LanceDataset.commit(
            dataset, lance.Transaction(dataset.version, operation, transaction_properties=properties)
        )

    append(home.owner)  # as a driver does
    append(bob)  # with the name of a job that is none of his
    settle(home)
    rows = {each["principal"]: each["rows_written"] for each in listed(home.owner, "ListUsage", "days")}
    assert {name: rows[name] for name in ("ann", "bob")} == {"ann": NUMBER, "bob": NUMBER}
    home.owner.call("DeclareTable", {"id": ["s", "made"]})
    location = home.owner.call("DescribeTable", {"id": ["s", "made"]}).location
    made = lance.write_dataset(ROWS, location, transaction_properties={RUN_PROPERTY: job})
    record = home.store.describe_table(("s", "made"))
    home.owner._services.quotas.note_version(record.id, "", made.version, EVERYBODY)  # as its driver's commit does
    settle(home)
    stored = {each["principal"]: each["tables"] for each in listed(home.owner, "ListUsage", "stored")}
    assert stored["ann"] == 1, "what a job makes is of who has asked for it"
    limit(home, "rows_per_day", principal="ann", hard=NUMBER)
    error = error_of(ann, "SubmitJob", name="ingest", table=["s", "t"], arguments={"table": "s$t", "sources": ["x"]})
    assert isinstance(error, PermissionDeniedError) and "4 of 2 rows of today" in str(error)
    ann.call("SubmitJob", {"name": "optimize", "table": ["s", "t"]})  # it writes no rows


def test_what_commits_nothing_counts_for_nobody(home: Catalog) -> None:
    ann, bob = home.as_("ann"), home.as_("bob")
    rows = {"id": ["s", "t"]}
    ann.create_table(rows, stream(ROWS))
    settle(home)

    def commit_nothing() -> None:
        bob.insert_into_table(rows, stream(ROWS.slice(0, 0)))
        bob.create_table({**rows, "mode": "exist_ok"}, stream(ROWS))
        bob.merge_insert_into_table({**rows, "on": ["id"], "when_matched_update_all": True}, stream(ROWS.slice(0, 0)))

    commit_nothing()
    ann.insert_into_table(rows, stream(ROWS))
    commit_nothing()
    settle(home)
    counted = {each["principal"]: each["rows_written"] for each in listed(home.owner, "ListUsage", "days")}
    assert counted == {"ann": 2 * NUMBER}


def test_rows_of_a_view_count_for_who_has_it_refreshed(home: Catalog) -> None:
    ann = home.as_("ann")
    create(home.as_("bob"), "s", "t")
    limit(home, "tables", principal="ann", hard=1)
    view: dict[str, Any] = {"kind": "select", "source_query": "SELECT id FROM s.t", "output_schema": ""}
    ann.call("CreateMaterializedView", {"id": ["s", "view"], **view})
    ann.call("RefreshMaterializedView", {"id": ["s", "view"]})
    Worker(home.owner._services, 0).run_one()
    settle(home)
    rows = {each["principal"]: each["rows_written"] for each in listed(home.owner, "ListUsage", "days")}
    assert rows == {"ann": NUMBER, "bob": NUMBER}
    error = error_of(ann, "CreateMaterializedView", id=["s", "more"], **view)
    assert isinstance(error, PermissionDeniedError) and "ann has 1 of 1 tables" in str(error)
    limit(home, "rows_per_day", principal="ann", hard=NUMBER)
    error = error_of(ann, "RefreshMaterializedView", id=["s", "view"])
    assert isinstance(error, PermissionDeniedError) and "2 of 2 rows of today" in str(error)


def test_quotas_of_a_mount_hold_for_what_is_written_through_this_server(home: Catalog, tmp_path: Path) -> None:
    (tmp_path / "root" / "lake").mkdir()
    settings = {"root": str(tmp_path / "root" / "lake"), "mode": "manifest"}
    home.owner.call("MountCatalog", {"id": ["m"], "kind": "dir", "settings": settings, "max_age_millis": 0})
    home.owner.call("CreateNamespace", {"id": ["m", "x"]})
    limit(home, "rows_per_day", namespace=["m"], hard=NUMBER)
    home.owner.create_table({"id": ["m", "x", "t"]}, stream(ROWS))
    settle(home)
    with pytest.raises(PermissionDeniedError, match=r"The namespace m has 2 of 2 rows of today"):
        home.owner.insert_into_table({"id": ["m", "x", "t"]}, stream(ROWS))
    home.owner.create_table({"id": ["s", "beside"]}, stream(ROWS))


def test_requests_of_a_minute_are_used_up_by_all_who_send_them(home: Catalog) -> None:
    create(home.as_("ann"), "s", "t")
    limit(home, "requests_per_minute", namespace=["s"], hard=2)
    ann, other = home.as_("ann")._services.quotas, home.as_("bob")._services.quotas
    ann.count_request("ann", ("s", "below"))
    other.count_request("bob", ("s",))
    other.count_request("bob", ("other",))
    settle(home)
    for checks in (ann, other):
        with pytest.raises(RequestsUsedUpError, match="2 of 2 requests of this minute") as caught:
            checks.check_requests("eve", ("s", "below", "t"))
        assert 0 < caught.value.seconds <= 60
        checks.check_requests("eve", ("other",))
    assert isinstance(error_of(home.as_("ann"), "TableExists", id=["s", "t"]), ThrottlingError)
    assert isinstance(
        error_of(home.as_("eve"), "TableExists", id=["s", "t"]), NamespaceNotFoundError
    )  # nothing is told


def test_a_soft_limit_warns_once_and_refuses_nothing(home: Catalog, caplog: pytest.LogCaptureFixture) -> None:
    limit(home, "rows_per_day", principal="ann", soft=1)
    create(home.as_("ann"), "s", "t")
    caplog.clear()
    for _ in range(3):
        home.as_("ann")._services.quotas.flush()
    warnings = [record.getMessage() for record in caplog.records if record.name == "tiltyard.quotas"]
    assert warnings == [f"quota of rows_per_day: the principal ann has {NUMBER}, above its soft limit of 1"]
    [quota] = listed(home.as_("ann"), "ListQuotas", "quotas")
    assert (quota["state"], quota["used"], quota["soft"], quota.get("hard")) == ("soft", NUMBER, 1, None)
    insert(home.as_("ann"), "s", "t")


def test_only_administrators_set_quotas_and_nobody_sees_what_is_not_his(home: Catalog) -> None:
    limit(home, "tables", namespace=["s"], hard=5)
    limit(home, "tables", principal="bob", hard=5)
    ann = home.as_("ann")
    for operation in ("SetQuota", "DropQuota"):
        for fields in ({"namespace": ["s"]}, {"principal": "ann"}, {"principal": "bob"}):
            more = {"hard": 9} if operation == "SetQuota" else {}
            assert isinstance(error_of(ann, operation, resource="tables", **fields, **more), PermissionDeniedError)
    assert [each["namespace"] for each in listed(ann, "ListQuotas", "quotas")] == [["s"]]
    assert listed(home.as_("eve"), "ListQuotas", "quotas") == []
    assert home.as_("eve").call("ListUsage", {}) == {"days": [], "stored": []}
    create(home.as_("bob"), "s", "t")
    settle(home)
    assert isinstance(error_of(ann, "ListUsage", principal="bob"), PermissionDeniedError)
    assert listed(ann, "ListUsage", "stored") == []
    assert [each["principal"] for each in listed(home.owner, "ListUsage", "stored", principal="bob")] == ["bob"]
    home.owner.call("DropQuota", {"namespace": ["s"], "resource": "tables"})
    assert [each["principal"] for each in listed(home.owner, "ListQuotas", "quotas")] == ["bob"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resource": "tables", "hard": 1}, "name one of them"),
        ({"resource": "tables", "hard": 1, "principal": "ann", "namespace": ["s"]}, "name one of them"),
        ({"resource": "tables", "principal": "ann"}, "soft limit"),
        ({"resource": "tables", "principal": "ann", "hard": -1}, "between 0"),
        ({"resource": "tables", "principal": "ann", "soft": 2, "hard": 1}, "above"),
        ({"resource": "", "principal": "ann", "hard": 1}, "is no resource"),
        ({"resource": "smells", "principal": "ann", "hard": 1}, "resource"),
    ],
)
def test_quotas_that_mean_nothing_are_refused(home: Catalog, fields: dict[str, Any], message: str) -> None:
    error = error_of(home.owner, "SetQuota", **fields)
    assert isinstance(error, InvalidInputError) and message in str(error)
    missing = error_of(home.owner, "DropQuota", principal="ann", resource="tables")
    assert isinstance(missing, InvalidInputError)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    root: Path = tmp_path_factory.mktemp("quotas")
    with secured_server(root) as running:
        wire = running.wire("administrator")
        wire.good(wire.namespace(["s"], "create"))
        wire.good(wire.table(["s", "t"], "create", ROWS_AS_STREAM))
        grant = {"object_kind": "namespace", "id": ["s"], "grantee": "ann"}
        privileges = ["use", "read", "write", "create"]
        wire.good(wire.http.post("/tiltyard/v1/grant/add", json={**grant, "privileges": privileges}))
        yield running


def test_stock_clients_are_refused_by_a_running_server_which_tells_who_used_what(secured: Secured) -> None:
    admin = secured.wire("administrator")

    def set_quota(**fields: Any) -> Any:
        return admin.http.post("/tiltyard/v1/quota/set", json=fields)

    assert set_quota(namespace=["s"], resource="tables", hard=1).status_code == 200
    assert set_quota(principal="ann", resource="rows_per_day", hard=1).status_code == 200
    client = upstream.connect("rest", {"uri": secured.url, "headers.x-api-key": secured.keys["ann"]})
    with pytest.raises(PermissionDeniedError, match="The namespace s has 1 of 1 tables"):
        client.create_table(upstream.CreateTableRequest(id=["s", "u"]), stream(ROWS))
    db = lancedb.connect("db://s", api_key=secured.keys["ann"], host_override=secured.url)
    table = db.open_table("t")
    before = table.count_rows()
    table.add(pa.ipc.open_stream(ROWS_AS_STREAM).read_all())
    deadline = time.monotonic() + 20
    while table.count_rows() > before and time.monotonic() < deadline:  # until it is counted: a moment
        usage = admin.good(admin.http.post("/tiltyard/v1/usage", json={}))
        if any(each["principal"] == "ann" and each["rows_written"] for each in usage["days"]):
            break
        time.sleep(0.2)
    with pytest.raises(Exception, match="rows of today written"):
        table.add(pa.ipc.open_stream(ROWS_AS_STREAM).read_all())
    metrics = admin.http.get("/metrics").text
    assert 'tiltyard_quota_limit{kind="namespace",limit="hard",resource="tables",subject="s"} 1.0' in metrics
    assert 'tiltyard_quota_used{kind="namespace",resource="tables",subject="s"} 1.0' in metrics
    assert set_quota(principal="ann", resource="requests_per_minute", hard=1).status_code == 200
    statuses = []
    while 429 not in statuses and time.monotonic() < deadline + 20:
        answer = secured.wire("ann").http.post("/v1/table/s$t/exists", json={})
        statuses.append(answer.status_code)
        time.sleep(0.2)
    assert statuses[-1] == 429 and 0 < int(answer.headers["retry-after"]) <= 60
    assert "requests of this minute" in answer.json()["error"]

    def recorded() -> set[tuple[str, str]]:
        records = admin.good(admin.http.post("/tiltyard/v1/audit", json={"limit": 200}))["records"]
        return {(each["operation"], each["outcome"]) for each in records}

    expected = {("SetQuota", "ok"), ("CreateTable", "refused"), ("TableExists", "refused")}
    wait_until(lambda: expected <= recorded(), "the audit has them")


def test_commands_set_list_and_drop_quotas_and_export_usage(tmp_path: Path) -> None:
    root = str(tmp_path / "root")
    client = tiltyard.Namespace(root, jobs=0)
    client.create_namespace({"id": ["s"]})
    client._services.quotas.start()
    create(client, "s", "t")
    client.close()

    def run(*words: str) -> str:
        result = CliRunner().invoke(main, [*words, "--root", root])
        assert result.exit_code == 0, result.output
        return result.output

    assert (
        run("quota", "set", "tables", "--on", "namespace:s", "--hard", "1") == "namespace:s: tables 1 used of hard 1\n"
    )
    lines = run("quota", "list", "--format", "csv").splitlines()
    assert lines == ["subject,resource,used,soft,hard,state", "namespace:s,tables,1,,1,hard"]
    [head, row] = run("usage", "--format", "csv").splitlines()
    assert head == "day,principal,namespace,requests,rows_written" and row.endswith(f",everybody,s,0,{NUMBER}")
    stored = run("usage", "--stored", "--format", "csv").splitlines()[1]
    assert stored.startswith("everybody,s,1,") and not stored.endswith(",0")
    run("quota", "drop", "tables", "--on", "namespace:s")
    assert run("quota", "list", "--format", "csv").splitlines()[1:] == []
    wrong = CliRunner().invoke(main, ["quota", "drop", "tables", "--on", "table:s$t", "--root", root])
    assert wrong.exit_code and "no subject of a quota" in wrong.output
