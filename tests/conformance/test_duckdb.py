"""DuckDB's extension, unmodified: every statement, two ways with lancedb and pylance, and what its callers may do."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import lance.namespace
import lancedb
import pyarrow as pa
import pytest

from tests.conformance.duckdb_lance import (
    Attachment,
    DuckDB,
    duckdb,
    observe_database,
    observe_lake,
    observe_namespace,
    with_database,
)
from tests.conformance.lance_spark import token
from tests.conformance.observations import lake, open_server
from tests.conformance.packages import NoWheelError
from tests.services.secured import Secured
from tests.services.server import ServerProcess

PEOPLE = "CREATE TABLE lake.main.people (id BIGINT, name VARCHAR, vec FLOAT[2])"
INSERT = "INSERT INTO lake.main.people VALUES (1, 'ann', [1, 0]), (2, 'bob', [0, 1]), (3, 'cleo', [1, 1])"
IDS = "SELECT id FROM lake.main.people ORDER BY id"
BY_VECTOR = (
    "SELECT id, name FROM lance_vector_search('lake.main.people', 'vec', [1.0, 1.0]::FLOAT[2], k = 5) ORDER BY id"
)
BY_TEXT = "SELECT id FROM lance_fts('lake.main.people', 'name', 'cleo', k = 5)"

numbers = itertools.count(1)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DuckDB]:
    try:
        with duckdb(tmp_path_factory.mktemp("duckdb")) as started:
            yield started
    except NoWheelError as error:
        pytest.skip(str(error))


def test_every_statement_in_a_database_works_as_it_is_known_to(client: DuckDB, tmp_path: Path) -> None:
    observed = observe_database(client, tmp_path)
    assert [call for call in observed.calls if not call.is_expected] == []
    assert len(observed.calls) > 50


@pytest.mark.extended
@pytest.mark.parametrize("observe", [observe_namespace, observe_lake])
def test_every_statement_elsewhere_works_as_it_is_known_to(client: DuckDB, tmp_path: Path, observe: Any) -> None:
    assert [call for call in observe(client, tmp_path).calls if not call.is_expected] == []


# Two ways, on the same tables


@dataclass(frozen=True)
class Shared:
    """One table, as DuckDB, lancedb (remote) and pylance open it."""

    client: DuckDB
    server: ServerProcess

    def attach(self) -> None:
        """Open a session, which has seen nothing of the table yet."""
        assert "error" not in self.client.attach(self.server.url, with_database("shared"))

    def remote(self) -> Any:
        return lancedb.connect("db://shared", api_key="none", host_override=self.server.url).open_table("people")

    def dataset(self) -> lance.LanceDataset:
        namespace = lance.namespace.RestNamespace(uri=self.server.url)
        return lance.dataset(namespace_client=namespace, table_id=["shared", "people"])

    def by_duckdb(self, sql: str) -> None:
        self.attach()
        self.client.rows(sql)

    def columns(self) -> list[str]:
        self.attach()
        return [row[0] for row in self.client.rows("DESCRIBE lake.main.people")]


@pytest.fixture
def shared(client: DuckDB, tmp_path: Path) -> Iterator[Shared]:
    with open_server(tmp_path / "root") as server:
        lancedb.connect_catalog(server.url, api_key="none").create_database("shared")
        shared = Shared(client, server)
        shared.by_duckdb(PEOPLE)
        shared.by_duckdb(INSERT)
        yield shared


def rows_of(*ids: int) -> pa.Table:
    vectors = pa.array([[0.0, 0.0] for _ in ids], pa.list_(pa.float32(), 2))
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{number}" for number in ids], "vec": vectors})


def append_by_pylance(shared: Shared) -> None:
    namespace = lance.namespace.RestNamespace(uri=shared.server.url)
    lance.write_dataset(rows_of(5), namespace_client=namespace, table_id=["shared", "people"], mode="append")


WRITES: tuple[tuple[str, Callable[[Shared], object], list[int]], ...] = (
    ("created by DuckDB", lambda shared: None, [1, 2, 3]),
    ("added by lancedb", lambda shared: shared.remote().add(rows_of(4)), [1, 2, 3, 4]),
    ("appended by pylance", append_by_pylance, [1, 2, 3, 4, 5]),
    ("deleted by DuckDB", lambda shared: shared.by_duckdb("DELETE FROM lake.main.people WHERE id = 1"), [2, 3, 4, 5]),
    ("deleted by lancedb", lambda shared: shared.remote().delete("id = 2"), [3, 4, 5]),
    ("deleted by pylance", lambda shared: shared.dataset().delete("id = 5"), [3, 4]),
    ("updated by DuckDB", lambda shared: shared.by_duckdb("UPDATE lake.main.people SET id = 30 WHERE id = 3"), [4, 30]),
    ("updated by lancedb", lambda shared: shared.remote().update("id = 4", values_sql={"id": "40"}), [30, 40]),
    (
        "merged by lancedb",
        lambda shared: shared.remote().merge_insert("id").when_not_matched_insert_all().execute(rows_of(30, 50)),
        [30, 40, 50],
    ),
    (
        "copied by DuckDB",
        lambda shared: shared.by_duckdb(f"{INSERT.partition('VALUES')[0]} VALUES (6, 'f', [0, 0])"),
        [6, 30, 40, 50],
    ),
)


def test_rows_that_one_client_writes_are_those_that_all_others_read(shared: Shared) -> None:
    for what, write, expected in WRITES:
        write(shared)
        shared.attach()
        read = {
            "DuckDB": [row[0] for row in shared.client.rows(IDS)],
            "lancedb": sorted(shared.remote().search().limit(99).to_arrow()["id"].to_pylist()),
            "pylance": sorted(shared.dataset().to_table(columns=["id"])["id"].to_pylist()),
        }
        assert read == dict.fromkeys(read, expected), what
    versions = [entry["version"] for entry in shared.remote().list_versions()]
    assert versions == list(range(1, len(WRITES) + 2)), "each write is a version: those of DuckDB were found in storage"


def test_rows_that_duckdb_and_lancedb_write_at_once_are_all_kept_also_when_old_versions_are_deleted(
    shared: Shared,
) -> None:
    shared.attach()
    table = shared.remote()
    with ThreadPoolExecutor(1) as pool:
        added = pool.submit(lambda: [table.add(rows_of(100 + number)) for number in range(10)])
        for number in range(10):
            shared.client.rows(f"INSERT INTO lake.main.people VALUES ({200 + number}, 'd', [0, 0])")
        added.result()
    assert table.count_rows() == 23
    latest = table.version
    assert [entry["version"] for entry in table.list_versions()] == list(range(1, latest + 1))
    shared.by_duckdb("VACUUM LANCE lake.main.people")
    assert [entry["version"] for entry in table.list_versions()] == [latest], "the server sees which are gone"
    table.add(rows_of(300))
    assert table.count_rows() == 24


def test_columns_and_indexes_that_one_client_makes_are_those_of_the_others(shared: Shared) -> None:
    shared.by_duckdb("ALTER TABLE lake.main.people ADD COLUMN age INTEGER DEFAULT 7")
    assert shared.remote().search().limit(1).to_list()[0]["age"] == 7
    shared.remote().add_columns({"twice": "id * 2"})
    assert shared.columns() == ["id", "name", "vec", "age", "twice"]
    assert shared.client.rows("SELECT twice FROM lake.main.people WHERE id = 3") == [[6]]
    shared.dataset().drop_columns(["twice"])
    assert shared.columns() == ["id", "name", "vec", "age"]
    shared.by_duckdb("CREATE INDEX id_idx ON lake.main.people(id) USING BTREE")
    shared.dataset().create_scalar_index("name", "INVERTED", name="name_idx")
    assert {index.name for index in shared.remote().list_indices()} == {"id_idx", "name_idx"}
    assert "ScalarIndexQuery" in shared.remote().search().where("id = 3").explain_plan()
    shared.attach()
    assert {row[0] for row in shared.client.rows("SHOW INDEXES ON lake.main.people")} == {"id_idx", "name_idx"}
    assert shared.client.rows(BY_TEXT) == [[3]]


def test_nested_namespace_by_its_name_has_its_tables(client: DuckDB, tmp_path: Path) -> None:
    with open_server(tmp_path / "root") as server:
        local = lancedb.connect_namespace("rest", {"uri": server.url})
        for path in (["a"], ["a", "b"]):
            local.create_namespace(path)
        namespace = Attachment("a$b")
        for sql in (PEOPLE, INSERT):
            client.attach(server.url, namespace)
            client.rows(sql)
        client.attach(server.url, namespace)
        assert client.rows("SHOW TABLES FROM lake.main") == [["people"]]
        assert client.rows(IDS) == [[1], [2], [3]]
        assert (local.list_tables().tables, local.list_tables(["a", "b"]).tables) == ([], ["people"])


def test_table_of_the_root_with_the_same_name_is_not_the_database_s(client: DuckDB, tmp_path: Path) -> None:
    with open_server(tmp_path / "root", TILTYARD_DATABASES="strict") as server:
        lancedb.connect_catalog(server.url, api_key="none").create_database("sales")
        in_root = lancedb.connect_namespace("rest", {"uri": server.url}).create_table("people", rows_of(77))
        client.attach(server.url, with_database("sales"))
        assert client.rows("SHOW TABLES FROM lake.main") == []
        for sql in (PEOPLE, INSERT, "DELETE FROM lake.main.people WHERE id = 3"):
            client.rows(sql)
        assert client.rows(IDS) == [[1], [2]]
        client.rows("DROP TABLE lake.main.people")
        assert client.rows("SHOW TABLES FROM lake.main") == []
        assert in_root.count_rows() == 1
        misspelt = client.attach(server.url, with_database("sale"))
        assert "sale" in misspelt["error"]


NEW_SESSION = ""
FAULTS: tuple[tuple[str, list[list[Any]] | str | None], ...] = (
    ("CREATE TABLE lake.main.lost AS SELECT id FROM lake.main.people", None),
    (NEW_SESSION, None),
    ("SELECT count(id) FROM lake.main.lost", [[0]]),
    ("SHOW ALL TABLES", None),
    ("CREATE TABLE lake.main.kept AS SELECT id FROM lake.main.people", [[3]]),
    ("SELECT id FROM lake.main.kept", "does not exist"),
    (NEW_SESSION, None),
    ("SELECT count(id) FROM lake.main.kept", [[3]]),
    ("SELECT max(id) FROM lake.main.people", [[3]]),
    ("INSERT INTO lake.main.people VALUES (50, 'z', [0, 0])", [[1]]),
    ("SELECT max(id) FROM lake.main.people", [[3]]),
    ("SET disabled_optimizers = 'extension'", None),
    ("SELECT max(id) FROM lake.main.people", [[50]]),
    ("SHOW ALL TABLES", None),
    ("CREATE TABLE lake.main.spans (span INTERVAL)", "Unsupported data type"),
    ("CREATE SCHEMA lake.other", None),
    ("CREATE VIEW lake.main.seen AS SELECT 1 AS one", None),
    ("COPY (SELECT 1 AS id) TO 'lake.main.copied' (FORMAT lance)", [[1]]),
    (NEW_SESSION, None),
    ("SHOW TABLES FROM lake.main", [["kept"], ["lost"], ["people"], ["spans"]]),
)
"""Faults that docs/compatibility.md lists: statements of sessions, with their rows or errors."""


def test_faults_of_the_extension_are_those_that_the_page_lists(shared: Shared) -> None:
    shared.attach()
    for sql, expected in FAULTS:
        if sql == NEW_SESSION:
            shared.attach()
        elif isinstance(expected, str):
            assert expected in shared.client.error(sql), sql
        else:
            rows = shared.client.rows(sql)
            assert expected in (None, rows), (sql, rows)
    assert [50] in shared.client.rows(IDS)
    shared.remote().delete("id = 50")
    shared.client.rows("DETACH lake")
    shared.client.ask(with_database("shared").statement(shared.server.url))
    assert [50] in shared.client.rows(IDS), "what others wrote is not seen by a session that has read the table"


# What callers may do


@dataclass(frozen=True)
class Guarded:
    """A server with authentication that vends credentials for S3, a database, and the table `people` in it."""

    client: DuckDB
    secured: Secured
    database: str

    def attach(self, name: str, attachment: Attachment | None = None) -> dict[str, Any]:
        """Attach the database (else the attachment) with the key of one of them."""
        key = f", API_KEY '{self.secured.keys[name]}'"
        attached = attachment or with_database(self.database)
        return self.client.attach(self.secured.url, Attachment(attached.namespace, attached.options + key))

    def owner(self, path: str, **body: Any) -> Any:
        with self.secured.http("administrator") as http:
            response = http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def grant_on_people(self, grantee: str, *privileges: str) -> None:
        path = [self.database, "people"]
        self.owner("/tiltyard/v1/grant/add", object_kind="table", id=path, grantee=grantee, privileges=privileges)

    def tables(self, path: str) -> list[str]:
        with self.secured.http("administrator") as http:
            names: list[str] = http.get(f"/v1/namespace/{path}/table/list").json()["tables"]
        return names

    def versions(self) -> list[int]:
        listed = self.owner(f"/v1/table/{self.database}$people/version/list")["versions"]
        return [version["version"] for version in listed]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with lake(tmp_path_factory.mktemp("lake")) as secured:
        yield secured


@pytest.fixture
def guarded(client: DuckDB, secured: Secured) -> Guarded:
    guarded = Guarded(client, secured, f"sales{next(numbers)}")
    guarded.owner(f"/v1/namespace/{guarded.database}/create")
    for sql in (PEOPLE, INSERT):
        guarded.attach("administrator")
        client.rows(sql)
    return guarded


READ_ONLY = (
    "INSERT INTO lake.main.people VALUES (4, 'd', [0, 0])",
    "DELETE FROM lake.main.people WHERE id = 1",
    "ALTER TABLE lake.main.people ADD COLUMN age INTEGER DEFAULT 7",
    "CREATE INDEX id_idx ON lake.main.people(id) USING BTREE",
)
"""Statements that commit by path, or write files before they ask: the vended credentials can only read."""


def test_callers_read_and_write_what_their_grants_and_policies_allow(client: DuckDB, guarded: Guarded) -> None:
    database = guarded.database
    assert "Unauthenticated" in client.attach(guarded.secured.url, with_database(database))["error"]
    for credentials in (
        f"HEADER 'x-api-key={guarded.secured.keys['administrator']}'",
        f"BEARER_TOKEN '{token(guarded.secured)}'",
    ):
        assert client.attach(guarded.secured.url, Attachment(database, f", {credentials}")) == {"rows": []}
        assert client.rows(IDS) == [[1], [2], [3]]
    guarded.grant_on_people("ann", "read")
    guarded.attach("ann")
    assert client.rows(IDS) == [[1], [2], [3]]
    for sql in READ_ONLY:
        assert "AccessDenied" in client.error(sql), sql
    for sql in ("DROP TABLE lake.main.people", "CREATE TABLE lake.main.other (id BIGINT)"):
        assert "Permission denied" in client.error(sql), sql
    assert (guarded.tables(database), guarded.versions()) == (["people"], [1, 2])

    guarded.grant_on_people("bob", "read")
    policy = {"name": "few", "filter": "id < 3", "masks": [{"column": "name", "mask": "null"}]}
    guarded.owner(f"/tiltyard/v1/table/{database}$people/policy/set", **policy)
    guarded.attach("bob")
    assert "Permission denied" in client.error(IDS)
    assert client.rows(BY_VECTOR) == [[1, None], [2, None]]
    assert "Permission denied" in client.error(BY_TEXT)


def test_database_that_a_caller_cannot_see_has_no_tables_for_it(client: DuckDB, guarded: Guarded) -> None:
    guarded.attach("bob")
    assert client.rows("SHOW TABLES FROM lake.main") == []
    assert "Permission denied" in client.error("CREATE TABLE lake.main.other (id BIGINT)")


def test_namespace_by_name_is_safe_from_the_root_for_who_has_no_rights_there(client: DuckDB, guarded: Guarded) -> None:
    guarded.attach("administrator", Attachment("$"))
    client.rows("SHOW ALL TABLES")
    client.rows("CREATE TABLE lake.main.people AS SELECT 77 AS id")
    namespace = Attachment(guarded.database)
    guarded.grant_on_people("ann", "read", "write", "drop")
    guarded.attach("ann", namespace)
    assert client.rows(IDS) == [[1], [2], [3]]
    assert "not found" in client.error("DROP TABLE lake.main.people")
    assert "Permission denied" in client.error("CREATE TABLE lake.main.other (id BIGINT)")
    assert (guarded.tables(guarded.database), guarded.tables("$")) == (["people"], ["people"])
    guarded.attach("administrator", namespace)
    assert client.rows(IDS) == [[77]], "the client asks for the root's first: docs/clients.md warns of it"


def test_audit_has_who_declared_and_altered_a_table_and_its_versions_have_all_commits(
    client: DuckDB, guarded: Guarded
) -> None:
    guarded.attach("administrator")
    client.rows("COMMENT ON TABLE lake.main.people IS 'who is here'")
    records = guarded.owner("/tiltyard/v1/audit")["records"]
    changes = {
        (record["operation"], record["principal"])
        for record in records
        if record.get("object") == f"{guarded.database}$people" and record["status"] == 200
    }
    assert changes == {("DeclareTable", "administrator"), ("CreateTableVersion", "administrator")}
    assert guarded.versions() == [1, 2, 3]
