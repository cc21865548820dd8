"""A server with authentication that serves SQL, its tables, and connections of stock clients."""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc
import lancedb
import pyarrow as pa
import pytest

from tests.access.scenes import send
from tests.services.jdbc import jdbc_driver
from tests.services.secured import Secured, secured_server
from tiltyard.flight.messages import MESSAGES, SERVICE, pack
from tiltyard.model.spec import operations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx

FILMS = pa.table(
    {
        "id": range(1, 7),
        "title": ["Alien", "Brazil", "Casablanca", "Dune", "Eraserhead", "Fargo"],
        "owner": ["ann", "bob", "ann", "bob", "ann", "bob"],
        "budget": [11.0, 15.0, 0.9, 40.0, 0.01, 7.0],
    }
)
RATINGS = pa.table({"film": [1, 1, 2, 4], "stars": [5, 4, 3, 5]})
NUMBERS = pa.table({"n": range(200_000), "text": [f"number {n}" for n in range(200_000)]})
OWN_ROWS = {
    "filter": "owner = principal()",
    "masks": [{"column": "budget", "mask": "null"}],
    "exempt_roles": ["everything"],
}
ENDLESS = "SELECT a.text, b.text AS other FROM numbers a JOIN numbers b ON a.n % 7 = b.n % 7"
"""A query of billions of rows, which waits for a reader that nobody is."""


def flight_port(url: str) -> int:
    """The port of SQL, once it is served there."""
    port = int(url.rsplit(":", 1)[1]) + 1
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            assert time.monotonic() < deadline, "SQL is not served"
            time.sleep(0.05)
        else:
            return port


@pytest.fixture(scope="session")
def driver() -> Path:
    """The jar of the JDBC driver."""
    return jdbc_driver()


@dataclass(frozen=True)
class SqlServer:
    """The server: `administrator`, `ann` (all of it), `bob` (reads `films` within a policy), and `cy` (nothing)."""

    secured: Secured
    port: int

    def lancedb(self, name: str = "administrator", *, database: str = "dev", **options: Any) -> Any:
        key, url = self.secured.keys[name], self.secured.url
        return lancedb.connect(f"db://{database}", api_key=key, host_override=url, **options)

    async def lancedb_async(self, name: str = "administrator", **options: Any) -> Any:
        key, url = self.secured.keys[name], self.secured.url
        return await lancedb.connect_async("db://dev", api_key=key, host_override=url, **options)

    @contextmanager
    def channel(self, name: str | None = "administrator") -> Iterator[Wire]:
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            yield Wire(channel, () if name is None else (("x-api-key", self.secured.keys[name]),))


@dataclass(frozen=True)
class Wire:
    """The calls of Flight by gRPC itself."""

    channel: Any
    metadata: Any

    def call(self, method: str, request: Any, response: str, **options: Any) -> Any:
        call = self.channel.unary_unary(
            f"/{SERVICE}/{method}", lambda message: message.SerializeToString(), MESSAGES[response].FromString
        )
        return call(request, metadata=self.metadata, timeout=60, **options)

    def poll(self, query: str) -> Any:
        return self.call("PollFlightInfo", command("CommandStatementQuery", query=query), "PollInfo")

    def stream(self, method: str, request: Any, response: str = "FlightData") -> list[Any]:
        call = self.channel.unary_stream(
            f"/{SERVICE}/{method}", lambda message: message.SerializeToString(), MESSAGES[response].FromString
        )
        return list(call(request, metadata=self.metadata, timeout=60))

    def cancel(self, info: Any) -> int:
        body = MESSAGES["CancelFlightInfoRequest"](info=info).SerializeToString()
        (result,) = self.stream("DoAction", MESSAGES["Action"](type="CancelFlightInfo", body=body), "Result")
        status: int = MESSAGES["CancelFlightInfoResult"].FromString(result.body).status
        return status


def command(name: str, **fields: Any) -> Any:
    return MESSAGES["FlightDescriptor"](type=2, cmd=pack(name, **fields))


@pytest.fixture(scope="module")
def sql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlServer]:
    folder = tmp_path_factory.mktemp("sql")
    environ = {"TILTYARD_AUDIT": "all"}
    with secured_server(folder / "root", environ=environ, names=("ann", "bob", "cy")) as secured:
        server = SqlServer(secured, flight_port(secured.url))
        with secured.http("administrator") as http:
            prepare(server.lancedb(), http)
        yield server


def prepare(db: Any, http: httpx.Client) -> None:
    """Create the tables, and what their readers may see of them."""
    db.create_table("films", FILMS)
    db.create_table("numbers", NUMBERS)
    db.create_namespace(["sales"])
    db.create_table("ratings", RATINGS, namespace_path=["sales"])
    films = {"id": ["films"]}
    for name, fields in (
        ("CreateRole", {"role": "everything"}),
        ("AddRoleMember", {"role": "everything", "member": "ann"}),
        ("GrantPrivileges", {"object_kind": "server", "grantee": "ann", "privileges": ["read"]}),
        ("GrantPrivileges", {"object_kind": "table", **films, "grantee": "bob", "privileges": ["read"]}),
        ("SetTablePolicy", {**films, "name": "own", **OWN_ROWS}),
    ):
        response = send(http, operations()[name], fields)
        assert response.status_code < 300, response.text
