"""Calls of Flight on the wire: authentication, handles of others, what is malformed, the audit log and the metrics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import grpc
import httpx
import pyarrow as pa
import pytest

from tests.access.scenes import send
from tests.flight.conftest import ENDLESS, command
from tiltyard.flight.messages import MESSAGES, pack
from tiltyard.flight.service import FIRST_ROWS_SECONDS
from tiltyard.model.spec import operations

if TYPE_CHECKING:
    from tests.flight.conftest import SqlServer, Wire


def status_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    code: grpc.StatusCode = raised.value.code()
    assert "Traceback" not in raised.value.details() and ".py" not in raised.value.details()
    return code


def rows(wire: Wire, ticket: Any) -> int:
    """How many messages follow the schema."""
    return len(wire.stream("DoGet", ticket)) - 1


def test_call_without_valid_credentials_is_refused(sql: SqlServer) -> None:
    with sql.channel(None) as wire:
        assert status_of(lambda: wire.poll("SELECT 1")) is grpc.StatusCode.UNAUTHENTICATED
        for metadata in (
            (("x-api-key", "tilt_0000000000000000_no"),),
            (("authorization", "Basic YTpi"),),
            (("authorization", "Bearer nothing"),),
        ):
            other = type(wire)(wire.channel, metadata)
            assert status_of(lambda other=other: other.poll("SELECT 1")) is grpc.StatusCode.UNAUTHENTICATED
            assert status_of(lambda other=other: other.stream("DoGet", MESSAGES["Ticket"]())) is (
                grpc.StatusCode.UNAUTHENTICATED
            )


def test_ticket_gives_no_rights_to_its_holder(sql: SqlServer) -> None:
    with sql.channel("ann") as ann, sql.channel("cy") as cy, sql.channel("bob") as bob:
        query = "SELECT id FROM films"
        info = ann.call("GetFlightInfo", command("CommandStatementQuery", query=query), "FlightInfo")
        ticket = info.endpoint[0].ticket
        assert rows(ann, ticket) == 1
        assert rows(ann, ticket) == 1, "a ticket carries its query, and can be used again"
        assert status_of(lambda: cy.stream("DoGet", ticket)) is grpc.StatusCode.NOT_FOUND
        polled = ann.poll(ENDLESS)
        assert polled.HasField("flight_descriptor")
        assert bob.cancel(polled.info) == 3
        assert status_of(lambda: bob.call("PollFlightInfo", polled.flight_descriptor, "PollInfo")) is (
            grpc.StatusCode.INVALID_ARGUMENT
        )
        assert ann.call("PollFlightInfo", polled.flight_descriptor, "PollInfo").HasField("flight_descriptor")
        assert ann.cancel(polled.info) == 1
        assert ann.cancel(polled.info) == 1
        assert status_of(lambda: ann.stream("DoGet", polled.info.endpoint[0].ticket)) is (
            grpc.StatusCode.INVALID_ARGUMENT
        )


def test_submitted_query_is_complete_when_it_has_ended(sql: SqlServer) -> None:
    with sql.channel() as wire:
        polled = wire.poll("SELECT count(*) AS n FROM films")
        while polled.HasField("flight_descriptor"):  # it still runs
            polled = wire.call("PollFlightInfo", polled.flight_descriptor, "PollInfo")
        schema = pa.ipc.read_schema(pa.py_buffer(polled.info.schema))
        assert schema.names == ["n"]
        assert rows(wire, polled.info.endpoint[0].ticket) == 1


def test_submission_waits_for_the_rows_of_a_short_query(sql: SqlServer) -> None:
    query = "SELECT count(*) AS n FROM numbers a JOIN numbers b ON a.n % 2000 = b.n % 2000"
    with sql.channel() as wire:
        started = time.monotonic()
        polled = wire.poll(query)
        assert not polled.HasField("flight_descriptor") or time.monotonic() - started >= FIRST_ROWS_SECONDS


def test_reader_that_leaves_stops_its_query(sql: SqlServer) -> None:
    with sql.channel() as wire:
        info = wire.call("GetFlightInfo", command("CommandStatementQuery", query=ENDLESS), "FlightInfo")
        before = running_queries(sql)
        stream = wire.channel.unary_stream(
            "/arrow.flight.protocol.FlightService/DoGet", lambda message: message.SerializeToString(), None
        )(info.endpoint[0].ticket, metadata=wire.metadata)
        next(stream)
        assert running_queries(sql) == before + 1
        stream.cancel()
        deadline = time.monotonic() + 30
        while running_queries(sql) > before:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def running_queries(sql: SqlServer) -> int:
    """How many queries run, by the metrics."""
    with sql.secured.http("administrator") as http:
        text = http.get("/metrics").text
    (line,) = [line for line in text.splitlines() if "SQL queries running" in line]
    return int(float(line.rsplit(" ", 1)[1]))


@pytest.mark.parametrize(
    ("method", "request_", "code"),
    [
        ("PollFlightInfo", MESSAGES["FlightDescriptor"](), "INVALID_ARGUMENT"),
        ("PollFlightInfo", MESSAGES["FlightDescriptor"](type=1, path=["films"]), "INVALID_ARGUMENT"),
        ("PollFlightInfo", MESSAGES["FlightDescriptor"](type=2, cmd=b"SELECT 1"), "INVALID_ARGUMENT"),
        ("PollFlightInfo", MESSAGES["FlightDescriptor"](type=2), "UNIMPLEMENTED"),
        ("PollFlightInfo", command("CommandStatementUpdate", query="DROP TABLE films"), "UNIMPLEMENTED"),
        ("PollFlightInfo", command("CommandGetTables"), "UNIMPLEMENTED"),
        ("PollFlightInfo", command("TicketStatementQuery", statement_handle=b"\x93"), "INVALID_ARGUMENT"),
        ("PollFlightInfo", command("CommandStatementQuery", query="x" * 200_000), "INVALID_ARGUMENT"),
        (
            "GetFlightInfo",
            command("CommandPreparedStatementQuery", prepared_statement_handle=b"\xff"),
            "INVALID_ARGUMENT",
        ),
        ("GetSchema", command("CommandStatementQuery", query="SELECT * FROM nothing"), "NOT_FOUND"),
    ],
)
def test_malformed_call_is_refused(sql: SqlServer, method: str, request_: Any, code: str) -> None:
    with sql.channel() as wire:
        assert status_of(lambda: wire.call(method, request_, "PollInfo")).name == code
        assert rows(wire, wire.poll("SELECT 1").info.endpoint[0].ticket) == 1


@pytest.mark.parametrize("ticket", [b"", b"\xff\xff", b"x" * 1000, pack("TicketStatementQuery", statement_handle=b"x")])
def test_malformed_ticket_is_refused(sql: SqlServer, ticket: bytes) -> None:
    with sql.channel() as wire:
        assert status_of(lambda: wire.stream("DoGet", MESSAGES["Ticket"](ticket=ticket))) in (
            grpc.StatusCode.INVALID_ARGUMENT,
            grpc.StatusCode.UNIMPLEMENTED,
        )
        action = MESSAGES["Action"](type="CancelFlightInfo", body=ticket)
        assert status_of(lambda: wire.stream("DoAction", action, "Result")) is grpc.StatusCode.INVALID_ARGUMENT
        assert status_of(lambda: wire.stream("DoAction", MESSAGES["Action"](type="Shutdown"), "Result")) is (
            grpc.StatusCode.UNIMPLEMENTED
        )


def test_types_are_described_by_their_codes(sql: SqlServer) -> None:
    with sql.channel("cy") as wire:
        info = wire.call("GetFlightInfo", command("CommandGetXdbcTypeInfo"), "FlightInfo")
        schema = pa.ipc.read_schema(pa.py_buffer(info.schema))
        types = read_rows(wire, info)
        assert types.schema == schema
        codes = types.column("data_type").to_pylist()
        assert codes == sorted(codes)
        assert {"BOOLEAN", "BIGINT", "DOUBLE", "VARCHAR", "TIMESTAMP"} <= set(types.column("type_name").to_pylist())
        one = wire.call("GetFlightInfo", command("CommandGetXdbcTypeInfo", data_type=12), "FlightInfo")
        assert read_rows(wire, one).column("type_name").to_pylist() == ["VARCHAR"]


def read_rows(wire: Wire, info: Any) -> pa.Table:
    """What a question about the catalog is answered with."""
    stream = b"".join(
        b"\xff\xff\xff\xff" + len(data.data_header).to_bytes(4, "little") + data.data_header + data.data_body
        for data in wire.stream("DoGet", info.endpoint[0].ticket)
    )
    return pa.ipc.open_stream(stream).read_all()


@pytest.mark.parametrize("text", ["", "YTpi", "!", "OnRpbHRfbm8=", "ZXZl", "YWRtaW5pc3RyYXRvcjo="])
def test_basic_credentials_without_a_valid_key_are_refused(sql: SqlServer, text: str) -> None:
    with sql.channel(None) as wire:
        other = type(wire)(wire.channel, (("authorization", f"Basic {text}"),))
        assert status_of(lambda: other.poll("SELECT 1")) is grpc.StatusCode.UNAUTHENTICATED


def test_queries_are_in_the_audit_log_and_the_metrics(sql: SqlServer) -> None:
    with sql.channel("bob") as wire:
        rows(wire, wire.poll("SELECT count(*) FROM films").info.endpoint[0].ticket)
        status_of(lambda: wire.poll("SELECT * FROM numbers"))
    deadline = time.monotonic() + 30
    with sql.secured.http("administrator") as http:
        while not (found := _entries(http, "bob")):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        executed = [entry for entry in found if entry["operation"] == "ExecuteQuery"]
        assert {(entry["object"], entry["outcome"]) for entry in executed} >= {("films", "ok")}
        assert all(entry["address"] == "127.0.0.1" for entry in executed)
        assert 'operation="ExecuteQuery"' in http.get("/metrics").text


def _entries(http: httpx.Client, principal: str) -> list[dict[str, Any]]:
    entries = send(http, operations()["ListAuditRecords"], {"principal": principal}).json()["records"]
    return [entry for entry in entries if entry["object"] == "films"]
