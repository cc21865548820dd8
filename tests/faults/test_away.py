"""A database or a disk that fails for a while: 503 with code 17 meanwhile, and no restart needed afterwards."""

from __future__ import annotations

import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pyarrow as pa

from tests.faults.conftest import ROWS, Place, wait_until
from tests.services.postgres import PostgresServer, postgres_server
from tests.services.server import ServerProcess
from tests.services.wire import Wire, check_error, stream

Talk = Callable[[ServerProcess], Wire]


def unavailable(response: httpx.Response) -> None:
    assert response.status_code == 503, response.text
    assert check_error(response) == 17


def test_database_away_is_503_and_comes_back(tmp_path: Path) -> None:
    with postgres_server() as postgres:
        place = Place(tmp_path / "root", postgres.new_database())
        try:
            _lose_the_database(place, postgres)
        finally:
            place.close()


def _lose_the_database(place: Place, postgres: PostgresServer) -> None:
    server = place.start()
    http = httpx.Client(base_url=server.url, timeout=60)
    with Wire(server.url) as wire:
        wire.good(wire.table(["t"], "create", stream(ROWS)))
    postgres.stop()
    with ThreadPoolExecutor(4) as pool:  # each waits for a connection until it gives up
        asked = [
            pool.submit(http.post, "/v1/table/t/describe", json={}),
            pool.submit(http.post, "/v1/namespace/n/create", json={}),
            pool.submit(http.post, "/v1/table/u/create", content=stream(ROWS)),
        ]
        ready = pool.submit(http.get, "/health/ready").result()
        for answer in asked:
            unavailable(answer.result())
    assert ready.status_code == 503 and ready.json()["checks"]["storage"] == "ok"
    assert http.get("/health/live").status_code == 200
    postgres.start()
    wait_until(lambda: http.get("/health/ready").status_code == 200, "the server has its database again")
    assert http.post("/v1/table/t/count_rows", json={}).text == "100"
    assert http.post("/v1/table/u/create", content=stream(ROWS)).status_code == 200
    place.wait_until_swept()
    http.close()
    assert server.stop() == 0
    assert not [line for line in server.log if "Traceback" in line], "".join(server.log)


def test_disk_that_takes_no_more_is_503_and_leaves_nothing(small_place: Place, talk: Talk) -> None:
    """A limit on the size of files stands in for a full disk: both fail inside a write."""
    server = small_place.start()
    wire = talk(server)
    large = pa.table({"id": pa.array(range(1_000_000), pa.int64()), "text": ["x" * 10] * 1_000_000})
    wire.good(wire.table(["t"], "create", stream(ROWS)))
    before = small_place.files()
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (2 << 20, resource.RLIM_INFINITY))
    for path in ("t/insert", "t/insert?mode=overwrite", "t/create?mode=overwrite", "new/create"):
        unavailable(wire.http.post(f"/v1/table/{path}", content=stream(large)))
    assert wire.table(["t"], "count_rows").text == "100"
    assert wire.table(["new"], "exists").status_code == 404
    wait_until(lambda: small_place.files() == before, "the files are as before")
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert wire.good(wire.table(["t"], "insert", stream(large)))["version"] == 2
    wire.good(wire.table(["new"], "create", stream(large)))
    small_place.wait_until_swept()
