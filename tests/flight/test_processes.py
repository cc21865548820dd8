"""Queries of a server of two processes, its catalog in PostgreSQL: each process answers for the queries of both."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.access.scenes import send
from tests.flight.conftest import ENDLESS, FILMS, NUMBERS, SqlServer, Wire, flight_port
from tests.flight.test_service import status_of
from tests.services.postgres import postgres_server
from tests.services.secured import secured_server
from tiltyard.flight.handles import QueryHandle, decode_handle
from tiltyard.flight.messages import MESSAGES, unpack
from tiltyard.model.spec import operations

pytestmark = pytest.mark.extended
COUNT = "SELECT count(*) AS n FROM numbers"


@dataclass(frozen=True)
class TwoProcesses:
    """The server, and a connection of the same principal to each of its processes."""

    sql: SqlServer
    first: Wire
    second: Wire


def handle_of(polled: Any) -> QueryHandle:
    """What the ticket of a query names."""
    _, ticket = unpack(polled.info.endpoint[0].ticket.ticket) or ("", None)
    return decode_handle(ticket.statement_handle)  # type: ignore[union-attr]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlServer]:
    with postgres_server() as postgres:
        root = tmp_path_factory.mktemp("processes") / "root"
        flags = ("--workers", "2")
        with secured_server(root, *flags, db=postgres.new_database(), names=("ann", "bob")) as secured:
            server = SqlServer(secured, flight_port(secured.url))
            server.lancedb().create_table("films", FILMS)
            server.lancedb().create_table("numbers", NUMBERS)
            yield server


@pytest.fixture(scope="module")
def two(served: SqlServer) -> Iterator[TwoProcesses]:
    """Connections are opened until each process has got one."""
    with ExitStack() as stack:
        wires: dict[str, Wire] = {}
        deadline = time.monotonic() + 60
        while len(wires) < 2:
            assert time.monotonic() < deadline, "one process got all connections"
            options = (("grpc.use_local_subchannel_pool", 1),)
            channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{served.port}", options))
            wire = Wire(channel, (("x-api-key", served.secured.keys["administrator"]),))
            wires.setdefault(handle_of(wire.poll("SELECT 1 AS x")).process, wire)
        assert "" not in wires
        yield TwoProcesses(served, *wires.values())


def describe(wire: Wire, polled: Any) -> Any:
    """Poll a query by its ticket, as a client does that looks for it again."""
    ticket = polled.info.endpoint[0].ticket.ticket
    return wire.call("PollFlightInfo", MESSAGES["FlightDescriptor"](type=2, cmd=ticket), "PollInfo")


def test_query_is_described_and_read_by_the_other_process(two: TwoProcesses) -> None:
    polled = two.first.poll(COUNT)
    assert handle_of(polled).process != handle_of(two.second.poll(COUNT)).process
    deadline = time.monotonic() + 60
    while describe(two.second, polled).HasField("flight_descriptor"):  # it runs
        assert time.monotonic() < deadline
    schema, rows = two.second.stream("DoGet", polled.info.endpoint[0].ticket)
    assert schema.data_header and rows.data_body
    many = two.first.poll("SELECT * FROM numbers")
    messages = two.second.stream("DoGet", many.info.endpoint[0].ticket)
    assert sum(len(message.data_body) for message in messages) > NUMBERS.nbytes * 0.9


def test_query_is_cancelled_by_the_other_process(two: TwoProcesses) -> None:
    polled = two.first.poll(ENDLESS)
    assert describe(two.second, polled).HasField("flight_descriptor")
    assert two.second.cancel(polled.info) == 1
    assert not describe(two.first, polled).HasField("flight_descriptor")
    for wire in (two.first, two.second):
        assert status_of(lambda wire=wire: wire.stream("DoGet", polled.info.endpoint[0].ticket)) is (
            grpc.StatusCode.INVALID_ARGUMENT
        )


def test_query_of_another_principal_is_not_theirs_in_either_process(two: TwoProcesses) -> None:
    polled = two.first.poll(ENDLESS)
    key = two.sql.secured.keys["bob"]
    for wire in (two.first, two.second):
        stranger = Wire(wire.channel, (("x-api-key", key), ("x-tiltyard-peer", "ipv4:10.0.0.1:1")))
        assert stranger.cancel(polled.info) == 3
        assert status_of(lambda stranger=stranger: describe(stranger, polled)) is grpc.StatusCode.INVALID_ARGUMENT
        nobody = Wire(wire.channel, ())
        assert status_of(lambda nobody=nobody: describe(nobody, polled)) is grpc.StatusCode.UNAUTHENTICATED
    assert two.second.cancel(polled.info) == 1


def test_query_is_not_handed_over_by_either_process_once_its_grant_is_revoked(two: TwoProcesses) -> None:
    grant = {"object_kind": "table", "id": ["numbers"], "grantee": "bob", "privileges": ["read"]}
    bob = (("x-api-key", two.sql.secured.keys["bob"]),)
    first, second = Wire(two.first.channel, bob), Wire(two.second.channel, bob)
    with two.sql.secured.http("administrator") as http:
        assert send(http, operations()["GrantPrivileges"], grant).status_code < 300
        submitted = [first.poll(COUNT), first.poll(COUNT)]
        assert send(http, operations()["RevokePrivileges"], grant).status_code < 300
    for wire, polled in zip((first, second), submitted, strict=True):
        assert status_of(lambda wire=wire, polled=polled: describe(wire, polled)) is grpc.StatusCode.NOT_FOUND
        assert status_of(lambda wire=wire, polled=polled: wire.stream("DoGet", polled.info.endpoint[0].ticket)) is (
            grpc.StatusCode.NOT_FOUND
        )


def test_ticket_of_a_process_that_has_ended_is_run_again(two: TwoProcesses) -> None:
    """The last test: one of the connections is lost."""
    polled = two.first.poll(COUNT)
    address = next(process for process in two.sql.secured.server.workers if _serves(process, handle_of(polled).process))
    os.kill(address, signal.SIGKILL)
    assert status_of(lambda: describe(two.second, polled)) is grpc.StatusCode.INVALID_ARGUMENT
    assert len(two.second.stream("DoGet", polled.info.endpoint[0].ticket)) == 2
    assert two.second.cancel(polled.info) in (1, 3)


def _serves(process: int, name: str) -> bool:
    """Whether a process listens at the socket of this name."""
    inodes = set()
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            inodes.add(str(descriptor.readlink()))
    lines = Path("/proc/net/unix").read_text().splitlines()
    return any(f"socket:[{line.split()[6]}]" in inodes for line in lines if line.endswith(f"/{name}"))
