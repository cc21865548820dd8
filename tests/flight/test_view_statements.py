"""Materialized views by SQL statements, as lancedb 0.41 sends them, and by other clients of the port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import adbc_driver_manager
import grpc
import pyarrow as pa
import pytest

from tests.access.scenes import send
from tests.flight.conftest import FILMS, SqlServer, command, flight_port
from tests.flight.test_adbc import connect
from tests.flight.test_submission import code_of, decision_of, read, submit
from tests.services.cases import check_each
from tests.services.lossy import wait_for
from tests.services.secured import secured_server
from tiltyard.flight.messages import SERVICE
from tiltyard.model.spec import operations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.flight.conftest import Wire

SALES = (("namespace-path", "sales"),)


@pytest.fixture
def db(sql: SqlServer) -> Iterator[Any]:
    """The administrator's connection; its views are dropped."""
    yield sql.lancedb()
    with sql.channel() as wire:
        for name in shown(wire):
            run(wire, f'DROP MATERIALIZED VIEW "{name}"')


def run(wire: Wire, statement: str, metadata: tuple[tuple[str, str], ...] = ()) -> list[dict[str, Any]]:
    """The rows of a statement, as a client gets them that polls where it is told to."""
    first, *rest = submit(wire, statement, can_poll=True, metadata=metadata)
    decision = decision_of(first)
    if not decision.HasField("poll_info"):
        return list(read(rest).to_pylist())
    polled = decision.poll_info
    while polled.HasField("flight_descriptor"):
        polled = wire.call("PollFlightInfo", polled.flight_descriptor, "PollInfo")
    return list(read(wire.stream("DoGet", polled.info.endpoint[0].ticket)).to_pylist())


def shown(wire: Wire, rest: str = "", metadata: tuple[tuple[str, str], ...] = ()) -> list[str]:
    return [row["name"] for row in run(wire, f"SHOW MATERIALIZED VIEWS{rest}", metadata)]


def test_view_is_populated_when_its_create_ends_and_follows_its_source(sql: SqlServer, db: Any) -> None:
    db.create_table("source", pa.table({"id": range(10)}), mode="overwrite")
    with sql.channel() as wire:
        create = 'CREATE MATERIALIZED VIEW "even" AS SELECT id AS "id" FROM "source" WHERE id % 2 = 0 LIMIT 100'
        assert run(wire, create) == [{"name": "even", "mode": "rebuild", "rows_written": 5, "version": 2}]
        assert db.open_table("even").count_rows() == 5
        query = create.split(" AS ", 1)[1]
        assert run(wire, 'DESCRIBE MATERIALIZED VIEW "even"') == [{"name": "even", "query": query}]
        opened = db.open_materialized_view("even").definition.query
        assert opened == query.replace(' AS "id"', "").replace('"', ""), "a client of 0.40 opens it, too"
        db.open_table("source").add(pa.table({"id": range(10, 20)}))
        assert run(wire, 'REFRESH MATERIALIZED VIEW "even"')[0]["mode"] == "incremental"
        assert db.open_table("even").count_rows() == 10
        again = run(wire, 'REFRESH MATERIALIZED VIEW "even" WITH (full = true)')
        assert again == [{"name": "even", "mode": "rebuild", "rows_written": 10, "version": 4}]
        assert run(wire, "refresh materialized view Even;")[0]["mode"] == "no_op", "without quotes, in lower case"
        assert run(wire, 'DROP MATERIALIZED VIEW "even"') == [{"name": "even"}]
        for statement in ("DESCRIBE", "REFRESH", "DROP"):
            with pytest.raises(grpc.RpcError, match="even"):
                run(wire, f'{statement} MATERIALIZED VIEW "even"')
    db.drop_table("source")


@pytest.mark.extended
def test_view_follows_its_source_by_itself_where_it_says_so(tmp_path: Path) -> None:
    with secured_server(tmp_path / "root", environ={"TILTYARD_UPKEEP": "true"}, names=()) as secured:
        server = SqlServer(secured, flight_port(secured.url))
        db = server.lancedb()
        db.create_table("source", pa.table({"id": range(10)}))
        with server.channel() as wire:
            for name, enabled in (("follows", "true"), ("stays", "false")):
                options = f"auto_refresh_enabled = {enabled}, auto_refresh_interval_seconds = 0.5"
                run(wire, f"CREATE MATERIALIZED VIEW {name} WITH ({options}) AS SELECT * FROM source")
        db.open_table("source").add(pa.table({"id": range(10, 20)}))
        wait_for(lambda: db.open_table("follows").count_rows() == 20)
        assert db.open_table("stays").count_rows() == 10


def test_views_are_shown_in_order_and_in_pages(sql: SqlServer, db: Any) -> None:
    names = ["a", "b'c", "d", "e.f"]
    for name in names:
        body = {"id": [name], "kind": "select", "source_query": "SELECT id FROM films", "output_schema": ""}
        with sql.secured.http("administrator") as http:
            response = send(http, operations()["CreateMaterializedView"], body)
            assert response.status_code < 300, response.text
    with sql.channel() as wire, sql.channel("bob") as bob, sql.channel("ann") as ann:
        assert shown(wire) == shown(wire, " LIMIT 2147483648") == shown(ann) == names
        assert shown(wire, " LIMIT 2") == names[:2]
        assert shown(wire, " WHERE name > 'b''c' LIMIT 3") == names[2:]
        assert shown(wire, " WHERE name > 'aa' LIMIT 1") == names[1:2], "no view has this name"
        assert shown(wire, " WHERE name > 'zz'") == shown(wire, " LIMIT 0") == []
        assert shown(wire, "", SALES) == shown(bob) == []


def test_statement_names_the_view_of_its_namespace_and_its_database(sql: SqlServer, db: Any) -> None:
    with sql.channel() as wire:
        run(wire, 'CREATE MATERIALIZED VIEW "best" AS SELECT * FROM "sales"."ratings" WHERE stars = 5', SALES)
        assert shown(wire, "", SALES) == ["best"]
        assert run(wire, "REFRESH MATERIALIZED VIEW sales.best")[0]["name"] == "best"
        within = (("database", "sales"), ("namespace-path", "public"))
        assert shown(wire, "", within) == ["best"]
        assert run(wire, 'DESCRIBE MATERIALIZED VIEW "best"', within)[0]["name"] == "best"
        db.create_namespace(["sales", "eu"])
        run(wire, 'CREATE MATERIALIZED VIEW "sales$eu"."worst" AS SELECT * FROM "sales"."best" LIMIT 1')
        run(wire, 'CREATE MATERIALIZED VIEW "copy" AS SELECT * FROM "sales$eu"."worst"')
        assert db.open_table("copy").count_rows() == 1
        run(wire, 'DROP MATERIALIZED VIEW "sales$eu"."worst"')
        run(wire, 'DROP MATERIALIZED VIEW "best"', SALES)
        db.drop_namespace(["sales", "eu"])


def test_statements_need_what_their_operations_need(sql: SqlServer, db: Any) -> None:
    with sql.channel() as wire, sql.channel("bob") as bob, sql.channel("cy") as cy, sql.channel("ann") as ann:
        run(wire, 'CREATE MATERIALIZED VIEW "own" AS SELECT id, title FROM films')
        denied, missing = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.NOT_FOUND
        cases = {
            ("ann", 'CREATE MATERIALIZED VIEW "other" AS SELECT id FROM films'): (ann, denied),
            ("ann", 'REFRESH MATERIALIZED VIEW "own"'): (ann, denied),
            ("ann", 'DROP MATERIALIZED VIEW "own"'): (ann, denied),
            ("bob", 'DESCRIBE MATERIALIZED VIEW "own"'): (bob, missing),
            ("bob", 'REFRESH MATERIALIZED VIEW "own"'): (bob, missing),
            ("cy", 'DROP MATERIALIZED VIEW "own"'): (cy, missing),
        }

        def check(case: tuple[str, str]) -> None:
            caller, code = cases[case]
            assert code_of(lambda: run(caller, case[1])) is code

        check_each(cases, check)
        assert run(ann, 'DESCRIBE MATERIALIZED VIEW "own"')[0]["name"] == "own"
        with sql.secured.http("administrator") as http:
            grant = {"object_kind": "server", "grantee": "bob", "privileges": ["create"]}
            assert send(http, operations()["GrantPrivileges"], grant).status_code < 300
            with pytest.raises(grpc.RpcError, match="Policies restrict"):  # it would copy what they hide from others
                run(bob, 'CREATE MATERIALIZED VIEW "hidden" AS SELECT * FROM films')
            assert code_of(lambda: run(bob, 'CREATE MATERIALIZED VIEW "h" AS SELECT * FROM numbers')) is denied
            assert send(http, operations()["RevokePrivileges"], grant).status_code < 300
        assert shown(wire) == ["own"]


def test_statements_with_other_words_are_refused(sql: SqlServer, db: Any) -> None:
    invalid, unimplemented = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED
    cases = {
        'CREATE OR REPLACE MATERIALIZED VIEW "v" AS SELECT id FROM films': invalid,
        'CREATE MATERIALIZED VIEW IF NOT EXISTS "v" AS SELECT id FROM films': invalid,
        'CREATE MATERIALIZED VIEW "v" WITH (owner = true) AS SELECT id FROM films': invalid,
        'CREATE MATERIALIZED VIEW "v" WITH (auto_refresh_interval_seconds = 0) AS SELECT id FROM films': invalid,
        'CREATE MATERIALIZED VIEW "v" WITH (auto_refresh_enabled = 1) AS SELECT id FROM films': invalid,
        'CREATE MATERIALIZED VIEW "v" AS': invalid,
        'CREATE MATERIALIZED VIEW "v" AS SELECT missing FROM films': grpc.StatusCode.NOT_FOUND,
        'CREATE MATERIALIZED VIEW "v" AS SELECT id FROM films; SELECT 1': unimplemented,
        'CREATE MATERIALIZED VIEW "v" AS SELECT count(*) AS n FROM films GROUP BY id': unimplemented,
        'CREATE MATERIALIZED VIEW "v" AS SELECT id FROM nowhere': grpc.StatusCode.NOT_FOUND,
        'CREATE MATERIALIZED VIEW "films" AS SELECT id FROM films': grpc.StatusCode.FAILED_PRECONDITION,
        'REFRESH MATERIALIZED VIEW "films"': invalid,
        'REFRESH MATERIALIZED VIEW "v" CONCURRENTLY': invalid,
        'REFRESH MATERIALIZED VIEW "v" WITH (full = 1)': invalid,
        "DROP MATERIALIZED VIEW a, b": invalid,
        'DROP MATERIALIZED VIEW IF EXISTS "v"': invalid,
        "ALTER MATERIALIZED VIEW v RENAME TO w": invalid,
        "SHOW MATERIALIZED VIEWS LIKE 'a%'": invalid,
        "SHOW MATERIALIZED VIEWS LIMIT x": invalid,
        "SHOW MATERIALIZED VIEW a": invalid,
        'DESCRIBE MATERIALIZED VIEW "films"': grpc.StatusCode.NOT_FOUND,
        "DESCRIBE MATERIALIZED VIEW $1": invalid,
    }
    with sql.channel() as wire:

        def check(statement: str) -> None:
            assert code_of(lambda: run(wire, statement)) is cases[statement]

        check_each(cases, check)
        assert shown(wire) == []


def test_failed_refresh_is_an_error_of_the_stream(sql: SqlServer, db: Any) -> None:
    db.create_table("source", pa.table({"id": [0, 1]}), mode="overwrite")
    with sql.channel() as wire:
        with pytest.raises(grpc.RpcError, match="was not refreshed") as raised:
            run(wire, 'CREATE MATERIALIZED VIEW "bad" AS SELECT 1 / id AS x FROM source')
        assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert shown(wire) == ["bad"], "the view is there, to be refreshed or dropped"
    db.drop_table("source")


def rows_of(cursor: Any, statement: str) -> list[tuple[Any, ...]]:
    cursor.execute(statement)
    return list(cursor.fetchall())


def test_statements_of_other_clients_run_once(sql: SqlServer, db: Any) -> None:
    with connect(sql) as connection, connection.cursor() as cursor:
        created = rows_of(cursor, "CREATE MATERIALIZED VIEW copied AS SELECT id FROM films")
        assert created == [("copied", "rebuild", 6, 2)]
        assert rows_of(cursor, "-- a comment\nSHOW MATERIALIZED VIEWS") == [("copied",)]
        with pytest.raises(adbc_driver_manager.Error, match="copied"):
            rows_of(cursor, "CREATE MATERIALIZED VIEW copied AS SELECT id FROM films")
        assert rows_of(cursor, "DESCRIBE MATERIALIZED VIEW copied") == [("copied", "SELECT id FROM films")]
        statement = adbc_driver_manager.AdbcStatement(connection.adbc_connection)
        statement.set_sql_query("REFRESH MATERIALIZED VIEW copied")
        assert statement.execute_update() == 0
        statement.set_sql_query("DELETE FROM films")
        with pytest.raises(adbc_driver_manager.Error, match="only read"):
            statement.execute_update()
        statement.close()
        assert rows_of(cursor, "DROP MATERIALIZED VIEW copied") == [("copied",)]
    assert db.execute_query("SHOW MATERIALIZED VIEWS").read_all().num_rows == 0, "a client of 0.40 may send them, too"
    with sql.channel() as wire:
        planned = wire.call(
            "GetFlightInfo",
            command("CommandStatementQuery", query="CREATE MATERIALIZED VIEW planned AS SELECT id FROM films"),
            "FlightInfo",
        )
        assert shown(wire) == [], "to plan a statement runs nothing"
        polled = wire.poll("CREATE MATERIALIZED VIEW polled AS SELECT id FROM films")
        assert shown(wire) == ["polled"]
        ticket = polled.info.endpoint[0].ticket
        assert len(wire.stream("DoGet", ticket)) == 2
        with pytest.raises(grpc.RpcError, match="not run again"):
            wire.stream("DoGet", ticket)
        assert len(wire.stream("DoGet", planned.endpoint[0].ticket)) == 2
        assert shown(wire) == ["planned", "polled"]


def test_changes_by_statements_are_in_the_audit_log_as_by_http(sql: SqlServer, db: Any) -> None:
    def found(http: Any) -> list[tuple[str, str, str]]:
        records = send(http, operations()["ListAuditRecords"], {"principal": "administrator"}).json()["records"]
        return [
            (each["operation"], each["object"], each["outcome"])
            for each in records
            if each["request_id"].startswith("statement-")
        ]

    with sql.channel() as wire, sql.secured.http("administrator") as http:
        for number, statement in enumerate(("CREATE", "REFRESH", "DROP")):
            rest = " AS SELECT id FROM films" if statement == "CREATE" else ""
            run(wire, f"{statement} MATERIALIZED VIEW recorded{rest}", (("x-request-id", f"statement-{number}"),))
        changes = ["DropMaterializedView", "RefreshMaterializedView", "CreateMaterializedView"]
        wait_for(lambda: found(http) == [(change, "recorded", "ok") for change in changes])


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlServer]:
    """A server whose jobs nobody runs."""
    folder = tmp_path_factory.mktemp("idle")
    with secured_server(folder / "root", environ={"TILTYARD_JOBS": "0"}, names=("ann",)) as secured:
        server = SqlServer(secured, flight_port(secured.url))
        server.lancedb().create_table("films", FILMS)
        yield server


@pytest.mark.parametrize("how", ["poll", "call", "read"])
def test_statement_that_is_stopped_cancels_its_job(idle: SqlServer, how: str) -> None:
    with idle.channel() as wire, idle.secured.http("administrator") as http:

        def states() -> list[str]:
            listed = http.post("/v1/jobs/list", json={"table": how}).json()
            return [job["state"] for job in listed["jobs"]]

        statement = f"CREATE MATERIALIZED VIEW {how} AS SELECT id FROM films"
        running = submit(wire, statement, can_poll=how != "call")
        if how == "call":
            running.initial_metadata()
            wait_for(lambda: states() == ["QUEUED"])
            running.cancel()
        else:
            (first,) = running
            polled = decision_of(first).poll_info
            again = wire.call("PollFlightInfo", polled.flight_descriptor, "PollInfo")
            assert again.HasField("flight_descriptor")
            assert states() == ["QUEUED"]
            if how == "poll":
                assert wire.cancel(again.info) == 1
            else:
                reading = wire.channel.unary_stream(f"/{SERVICE}/DoGet", bytes)(
                    again.info.endpoint[0].ticket.SerializeToString(), metadata=wire.metadata, timeout=60
                )
                reading.initial_metadata()
                reading.cancel()
        wait_for(lambda: states() == ["CANCELLED"])
        assert run(wire, f"DROP MATERIALIZED VIEW {how}") == [{"name": how}]
