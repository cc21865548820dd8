"""Queries on one call, as lancedb 0.41 submits them: by a ticket that has the query, with parameters by DoExchange."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pyarrow.flight
import pytest

from tests.access.scenes import send
from tests.flight.conftest import ENDLESS
from tests.flight.test_revocation import GRANT, SCAN, table_of
from tests.services.cases import check_each
from tests.services.lossy import wait_for
from tiltyard.flight.calls import POLLING_METADATA
from tiltyard.flight.messages import MESSAGES, SERVICE, Any_, pack
from tiltyard.model.spec import operations

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.flight.conftest import SqlServer, Wire

ONE = "SELECT title FROM films WHERE id = 1"


def ticket_of(query: str, command: str = "CommandStatementQuery") -> Any:
    """The ticket that submits a query: a message whose field 2 has the command."""
    return MESSAGES["Ticket"](ticket=Any_(value=pack(command, query=query)).SerializeToString())


def submit(wire: Wire, query: str, *, can_poll: bool = False, metadata: tuple[tuple[str, str], ...] = ()) -> Any:
    """The running call that submits a query."""
    call = wire.channel.unary_stream(
        f"/{SERVICE}/DoGet", lambda message: message.SerializeToString(), MESSAGES["FlightData"].FromString
    )
    polling = POLLING_METADATA if can_poll else ()
    return call(ticket_of(query), metadata=(*wire.metadata, *polling, *metadata), timeout=60)


def decision_of(message: Any) -> Any:
    """What the first message of an answer says to a client that can poll."""
    assert not message.data_header
    assert not message.data_body
    decision = Any_.FromString(message.app_metadata)
    assert decision.type_url == "type.googleapis.com/lancedb.sql.QueryResponse"
    return MESSAGES["QueryResponse"].FromString(decision.value)


def read(messages: list[Any]) -> pa.Table:
    """The rows of FlightData messages."""
    stream = b"".join(
        b"\xff\xff\xff\xff" + len(each.data_header).to_bytes(4, "little") + each.data_header + each.data_body
        for each in messages
    )
    return pa.ipc.open_stream(stream).read_all()


def exchange(sql: SqlServer, query: str, rows: pa.Table, name: str = "administrator") -> pa.Table:
    """The rows of a query with parameters, by pyarrow's client."""
    options = pa.flight.FlightCallOptions(headers=[(b"x-api-key", sql.secured.keys[name].encode())], timeout=60)
    with pa.flight.connect(f"grpc://127.0.0.1:{sql.port}") as client:
        descriptor = pa.flight.FlightDescriptor.for_command(pack("CommandStatementQuery", query=query))
        writer, reader = client.do_exchange(descriptor, options)
        with writer:
            writer.begin(rows.schema)
            writer.write_table(rows)
            writer.done_writing()
            return reader.read_all()


def code_of(call: Callable[[], Any]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    code: grpc.StatusCode = raised.value.code()
    return code


def test_query_is_answered_on_its_call_with_a_schema_in_any_case(sql: SqlServer) -> None:
    with sql.channel() as wire:
        for query, expected in (
            (ONE, ["Alien"]),
            ("SELECT title FROM films WHERE id > 4 ORDER BY id", ["Eraserhead", "Fargo"]),
            ("SELECT title FROM films WHERE id = 99", []),
            ("SELECT title FROM films WHERE id > 99", []),
        ):
            assert read(list(submit(wire, query)))["title"].to_pylist() == expected
            first, *rows = submit(wire, query, can_poll=True)
            assert not decision_of(first).HasField("poll_info")
            assert read(rows)["title"].to_pylist() == expected


def test_what_is_no_query_is_refused_at_its_submission(sql: SqlServer) -> None:
    refused = {
        "SELECT nothing FROM films": grpc.StatusCode.INVALID_ARGUMENT,
        "SELECT * FROM nowhere": grpc.StatusCode.NOT_FOUND,
        "DELETE FROM films": grpc.StatusCode.UNIMPLEMENTED,
        "": grpc.StatusCode.INVALID_ARGUMENT,
    }
    with sql.channel() as wire:
        for query, code in refused.items():
            assert code_of(lambda query=query: list(submit(wire, query))) is code
        ticket = ticket_of("SELECT 1", "CommandStatementUpdate")
        assert code_of(lambda: wire.stream("DoGet", ticket)) is grpc.StatusCode.UNIMPLEMENTED


def test_query_without_early_rows_is_polled_for_by_clients_that_can(sql: SqlServer) -> None:
    silent = f"SELECT count(*) AS n FROM ({ENDLESS}) AS endless"
    with sql.channel() as wire:
        (first,) = submit(wire, silent, can_poll=True)
        polled = decision_of(first).poll_info
        assert polled.HasField("flight_descriptor")
        again = wire.call("PollFlightInfo", polled.flight_descriptor, "PollInfo")
        assert again.HasField("flight_descriptor"), "the query outlives the call that has submitted it"
        assert wire.cancel(again.info) == 1
        running = submit(wire, silent)
        assert dict(running.initial_metadata()).keys().isdisjoint(dict(POLLING_METADATA)), "before any row"
        running.cancel()


def test_query_whose_call_is_dropped_frees_its_place(sql: SqlServer) -> None:
    with sql.channel() as wire:
        for can_poll in (True, False):
            for _ in range(12):  # more than run at once
                running = submit(wire, ENDLESS, can_poll=can_poll)
                next(running)
                running.cancel()
                wait_for(lambda: is_answered(wire))  # the server hears of it a little later


def is_answered(wire: Wire) -> bool:
    try:
        return len(list(submit(wire, "SELECT count(*) FROM films"))) == 2
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
        return False


def test_rows_are_those_that_policies_and_grants_leave_the_caller(sql: SqlServer) -> None:
    with sql.channel("bob") as bob, sql.channel("cy") as cy:
        rows = read(list(submit(bob, "SELECT title, budget FROM films ORDER BY id")))
        assert rows.to_pydict() == {"title": ["Brazil", "Dune", "Fargo"], "budget": [None, None, None]}
        assert code_of(lambda: list(submit(cy, ONE))) is grpc.StatusCode.NOT_FOUND
    with pytest.raises(pa.ArrowException, match="films"):
        exchange(sql, "SELECT title FROM films WHERE id = $1", pa.table({"id": [1]}), "cy")
    rows = exchange(sql, "SELECT title FROM films WHERE id IN ($1, $2)", pa.table({"a": [1], "b": [2]}), "bob")
    assert rows["title"].to_pylist() == ["Brazil"]


def test_names_are_of_the_database_and_the_namespace_of_the_metadata(sql: SqlServer) -> None:
    query = "SELECT count(*) AS n FROM ratings"
    with sql.channel() as wire:
        for metadata in (
            (("database", ""), ("namespace-path", "sales")),
            (("database", "sales"), ("namespace-path", "public")),
        ):
            assert read(list(submit(wire, query, metadata=metadata)))["n"].to_pylist() == [4]
        assert code_of(lambda: list(submit(wire, query, metadata=(("database", ""),)))) is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"operation": "RevokePrivileges", **GRANT}, "not found|privilege|needs"),
        ({"operation": "SetTablePolicy", "id": ["secrets"], "name": "few", "filter": "id < 5"}, "policy"),
    ],
    ids=["grant", "policy"],
)
def test_rows_that_are_still_to_come_end_with_the_right_to_read_them(
    sql: SqlServer, change: dict[str, Any], reason: str
) -> None:
    many = "SELECT a.text, c.text AS other FROM secrets a CROSS JOIN secrets b CROSS JOIN secrets c"
    with table_of(sql) as call, sql.channel("cy") as cy:
        running = submit(cy, many, can_poll=True)
        next(running)
        operation = change.pop("operation")
        call(operation, **change)
        with pytest.raises(grpc.RpcError, match=reason):
            for _ in running:
                pass
        if operation == "RevokePrivileges":
            assert code_of(lambda: list(submit(cy, SCAN))) is grpc.StatusCode.NOT_FOUND


def test_parameters_are_bound_by_number_and_by_name(sql: SqlServer) -> None:
    named = pa.table({"least": pa.array([2], pa.int64()), "owner": ["bob"]})
    cases = {
        "SELECT id FROM films WHERE id >= $1 AND owner = $2 ORDER BY id": [2, 4, 6],
        "SELECT id FROM films WHERE id >= $least AND owner = $owner ORDER BY id": [2, 4, 6],
        "SELECT id FROM films WHERE id >= ? AND owner = ? ORDER BY id": [2, 4, 6],
        "SELECT id FROM films WHERE id >= $1 + $least AND owner = $owner ORDER BY id": [4, 6],
        "WITH f AS (SELECT * FROM films) SELECT id FROM f WHERE owner = $2 AND id > $1 AND title <> '$9' ORDER BY id": [
            4,
            6,
        ],
    }

    def check(query: str) -> None:
        assert exchange(sql, query, named)["id"].to_pylist() == cases[query]

    check_each(cases, check)
    assert exchange(sql, "SELECT title FROM films WHERE id = $1", pa.table({"1": [4]}))["title"].to_pylist() == ["Dune"]
    plan = exchange(sql, "EXPLAIN SELECT id FROM films WHERE id > $n", pa.table({"n": [3]}))
    assert "films" in str(plan.to_pydict())


def test_parameters_that_do_not_fit_are_refused(sql: SqlServer) -> None:
    one, two = pa.table({"n": [1]}), pa.table({"n": [1], "m": [2]})
    cases = {
        "two rows": ("SELECT $1", pa.table({"n": [1, 2]}), "one row"),
        "no row": ("SELECT $1", one.slice(0, 0), "one row"),
        "unused": ("SELECT $2 FROM films", two, "does not use the parameter 'n'"),
        "none used": ("SELECT 1", one, "does not use"),
        "without a value": ("SELECT $1 + $2", one, "The query has \\$2, and 1 values"),
        "of another name": ("SELECT $other", one, "no parameter of that name"),
        "of two columns": ("SELECT $n, $1, $2", pa.Table.from_arrays([[1], [2]], ["n", "n"]), "without a number"),
        "not a query": ("DELETE FROM films WHERE id = $1", one, "SELECT"),
        "described": ("DESCRIBE films", one, "SELECT"),
        "too large": ("SELECT $1", pa.table({"n": ["x" * (2 << 20)]}), "bytes|MiB"),
    }

    def check(name: str) -> None:
        query, rows, message = cases[name]
        with pytest.raises(pa.ArrowInvalid, match=message):
            exchange(sql, query, rows)

    check_each(cases, check)


def test_submissions_are_in_the_audit_log_as_queries(sql: SqlServer) -> None:
    with sql.channel() as wire:
        list(submit(wire, "SELECT count(*) FROM films", metadata=(("x-request-id", "on-one-call"),)))
        code_of(lambda: list(submit(wire, "SELECT", metadata=(("x-request-id", "refused-on-one-call"),))))

    def found(http: Any, request_id: str) -> list[tuple[str, str, str]]:
        records = send(http, operations()["ListAuditRecords"], {"principal": "administrator"}).json()["records"]
        return [
            (each["operation"], each["object"], each["outcome"]) for each in records if each["request_id"] == request_id
        ]

    with sql.secured.http("administrator") as http:
        expected = {
            "on-one-call": [("ExecuteQuery", "films", "ok")],
            "refused-on-one-call": [("ExecuteQuery", "", "failed")],
        }
        for request_id, records in expected.items():
            wait_for(lambda request_id=request_id, records=records: found(http, request_id) == records)
