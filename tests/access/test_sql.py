"""Calls of SQL, as each caller, on each kind of object: their status is the one in docs/security.md."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from tests.access.matrix import PAGE
from tests.access.scenes import CALLERS, GRANTED, Place, Scene, Stage
from tests.flight.conftest import SqlServer, Wire, command, flight_port
from tests.services.secured import secured_server
from tiltyard.flight.handles import QueryHandle
from tiltyard.flight.messages import MESSAGES

TABLE = PAGE.read_text().partition("<!-- sql -->")[2].partition("<!-- end of sql -->")[0]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", TABLE, re.MULTILINE)]
DOCUMENTED = {cells[0]: cells[2:] for cells in ROWS[2:]}


@pytest.fixture(scope="module")
def sql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlServer]:
    with secured_server(tmp_path_factory.mktemp("matrix"), names=(*GRANTED, "stranger")) as secured:
        yield SqlServer(secured, flight_port(secured.url))


def query_of(scene: Scene, place: Place) -> str:
    *namespace, name = scene.table(place)
    return f'SELECT count(*) AS n FROM "{"$".join(namespace)}".{name}'


def plan(wire: Wire, query: str, polled: Any) -> Any:
    return wire.call("GetFlightInfo", command("CommandStatementQuery", query=query), "FlightInfo")


def execute(wire: Wire, query: str, polled: Any) -> Any:
    return wire.poll(query)


def read(wire: Wire, query: str, polled: Any) -> Any:
    """With a ticket as another caller may have got it."""
    return wire.stream("DoGet", MESSAGES["Ticket"](ticket=QueryHandle.of(query, (), ()).ticket))


def describe(wire: Wire, query: str, polled: Any) -> Any:
    ticket = polled.info.endpoint[0].ticket.ticket if polled else QueryHandle.of(query, (), ()).ticket
    return wire.call("PollFlightInfo", MESSAGES["FlightDescriptor"](type=2, cmd=ticket), "PollInfo")


def list_catalog(wire: Wire, query: str, polled: Any) -> Any:
    ticket = MESSAGES["Ticket"](ticket=command("CommandGetTables").cmd)
    return wire.stream("DoGet", ticket)


CALLS: dict[str, Callable[[Wire, str, Any], Any]] = {
    "ExecuteQuery": execute,
    "PlanQuery": plan,
    "ReadQuery": read,
    "DescribeQuery": describe,
    "ListCatalog": list_catalog,
}


def status_of(call: Callable[[Wire, str, Any], Any], wire: Wire, query: str, polled: Any) -> str:
    try:
        call(wire, query, polled)
    except grpc.RpcError as error:
        name: str = error.code().name  # type: ignore[attr-defined]  # what a call raises is a call, too
        return name
    return "OK"


def test_table_has_every_call() -> None:
    assert set(DOCUMENTED) == set(CALLS)


def test_calls_by_each_caller_end_as_the_table_says(sql: SqlServer) -> None:
    scene = Stage(sql.secured).admin.scene()
    queries = {place: query_of(scene, place) for place in Place}
    with sql.channel() as wire:
        there = {place: wire.poll(queries[place]) for place in (Place.THERE, Place.SIBLING)}
        for name, call in CALLS.items():
            outcomes = []
            for caller in CALLERS:
                own = Wire(wire.channel, (("x-api-key", sql.secured.keys[caller]),))
                statuses = [status_of(call, own, queries[place], there.get(place)) for place in Place]
                outcomes.append(statuses[0] if len(set(statuses)) == 1 else " · ".join(statuses))
            assert outcomes == DOCUMENTED[name], name
