"""Servers that share out tables: a query goes to one that keeps its table, and is answered where it is without that."""

from __future__ import annotations

import time
from itertools import count
from typing import TYPE_CHECKING

import pytest

from tests.faults.conftest import ROWS, Installation, wait_until
from tests.services.ports import reserve_two_ports
from tests.services.server import LOOPBACK, ServerProcess
from tests.services.wire import stream
from tiltyard.api.execution.forwarding import FORWARDED, SERVER
from tiltyard.catalog.table_servers import KEEPERS, Server, rank

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from tests.services.wire import Wire

WEIGHT = 1_000_000
AWAY = "http://127.0.0.1:9"


def start_sharing(installation: Installation) -> ServerProcess:
    port, _ = reserve_two_ports(LOOPBACK)
    environ = {"SERVER_URL": f"http://{LOOPBACK}:{port}", "VECTOR_CACHE_BYTES": str(WEIGHT), "AUDIT": "all"}
    variables = {f"TILTYARD_{name}": value for name, value in environ.items()}
    return installation.start("--port", str(port), **variables)


def name_of(servers: list[str], first_two: list[str]) -> str:
    """Return the name of a table that these two servers keep, in this order."""
    ranked = [Server(url, WEIGHT) for url in servers]
    return next(
        name
        for name in map("t{}".format, count())
        if [server.url for server in rank(ranked, [name])[:KEEPERS]] == first_two
    )


@pytest.fixture
def sharing(installation: Installation) -> tuple[ServerProcess, ServerProcess]:
    """Two servers that share out tables with a third one, which does not answer."""
    first, second = start_sharing(installation), start_sharing(installation)
    now = int(time.time() * 1000)
    columns = "id, kind, host, pid, version, threads, drivers, running, started_at, seen_at, url, weight"
    installation.sql(
        f"INSERT INTO processes ({columns})"
        f" VALUES ('away', 'server', 'away', 1, '1', 0, 0, 0, {now}, {now}, '{AWAY}', {WEIGHT})"
    )
    wait_until(
        lambda: installation.sql("SELECT count(*) FROM processes WHERE url <> ''") == [(3,)], "all servers are known"
    )
    return first, second


def test_queries_are_forwarded_once_to_a_server_that_keeps_their_table(
    installation: Installation, sharing: tuple[ServerProcess, ServerProcess], talk: Callable[[ServerProcess], Wire]
) -> None:
    first, second = sharing
    wire, other = talk(first), talk(second)
    urls = [first.url, second.url, AWAY]
    own = name_of(urls, [first.url, second.url])
    others = [name_of(urls, [second.url, AWAY]), name_of(urls, [AWAY, second.url])]
    for name in (own, *others):
        wire.good(wire.table([name], "create", stream(ROWS)))
        found = wire.good(wire.http.post(f"/tiltyard/v1/table/{name}/servers", json={}))
        assert set(found["servers"]) == ({first.url, second.url} if name == own else {second.url, AWAY})

    def ask(wire: Wire, name: str, request: str, headers: dict[str, str] | None = None) -> httpx.Response:
        body = {"k": 3, "vector": {}, "filter": "id < 5", "columns": {"column_names": ["id"]}}
        headers = {"x-request-id": request, **(headers or {})}
        response = wire.http.post(f"/v1/table/{name}/query", json=body, headers=headers)
        assert response.status_code == 200, response.text
        return response

    assert SERVER.decode() not in ask(wire, own, "own").headers
    for name in others:
        response = ask(wire, name, name)
        assert response.headers[SERVER.decode()] == second.url
        assert response.headers["x-request-id"] == name
        direct = ask(other, name, f"direct-{name}")
        assert SERVER.decode() not in direct.headers
        assert response.content == direct.content
    assert 'route="forwarded"} 2.0' in wire.http.get("/metrics").text
    # A client's own header is no signature: its request is answered, here, and recorded.
    forged = ask(wire, others[0], "forged", {FORWARDED.decode(): f"{time.time_ns() // 10**6} 10.9.8.7 {'0' * 64}"})
    assert SERVER.decode() not in forged.headers
    assert wire.http.post(f"/v1/table/{others[0]}/query", json={"k": 1, "filter": "nothing = 1"}).status_code == 400

    def recorded() -> list[tuple[str, str]]:
        return installation.sql(
            "SELECT request_id, address FROM audit WHERE operation = 'QueryTable' AND status = 200 ORDER BY request_id"
        )

    expected = sorted((name, LOOPBACK) for name in ("own", *others, *(f"direct-{name}" for name in others), "forged"))
    wait_until(lambda: len(recorded()) >= len(expected), "all requests are recorded")
    assert recorded() == expected

    second.kill()
    for name in others:
        assert SERVER.decode() not in ask(wire, name, f"after-{name}").headers


def test_a_forwarded_query_is_counted_once_in_what_its_caller_has_used(
    sharing: tuple[ServerProcess, ServerProcess], talk: Callable[[ServerProcess], Wire]
) -> None:
    first, second = sharing
    wire, other = talk(first), talk(second)
    name = name_of([first.url, second.url, AWAY], [second.url, AWAY])
    wire.good(wire.table([name], "create", stream(ROWS)))

    def counted() -> int:
        """Return the requests about what is in the root; those for usage itself name nothing."""
        days = wire.good(wire.http.post("/tiltyard/v1/usage", json={}))["days"]
        return sum(each["requests"] for each in days if each.get("namespace") == [])

    wait_until(lambda: counted() == 1, "the creation is counted")
    for number in range(5):
        response = wire.http.post(f"/v1/table/{name}/query", json={"k": 1, "vector": {}, "filter": f"id <> {number}"})
        assert response.headers[SERVER.decode()] == second.url
    wait_until(lambda: counted() >= 6, "the queries are counted")
    direct = {"k": 1, "vector": {}, "filter": "id <> 9"}
    assert other.http.post(f"/v1/table/{name}/query", json=direct).status_code == 200
    wait_until(lambda: counted() >= 7, "the other server has added what it has counted, too")
    assert counted() == 7
