"""An object store that refuses connections, or keeps them and sends nothing: 503 at once, and all is there later."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from time import monotonic

import httpx
import pytest

from tests.faults.conftest import ROWS, Installation, wait_until
from tests.services.proxy import Proxy
from tests.services.s3 import S3Server
from tests.services.server import ServerProcess
from tests.services.wire import Wire, check_error, stream

BUCKETS = count(1)
AT_ONCE_SECONDS = 2.0
"""A bound for machines that are busy: a refusal takes milliseconds, and a wait 3 seconds at least."""
QUERY = {"vector": {"single_vector": []}, "k": 5}
CALLS = {
    "t/query": {"json": QUERY},
    "t/count_rows": {"json": {}},
    "t/insert": {"content": stream(ROWS)},
    "t/delete": {"json": {"predicate": "id = 1"}},
    "t/version/list": {"json": {}},
    "u/create": {"content": stream(ROWS)},
}


@pytest.fixture
def proxy(objects: S3Server) -> Iterator[Proxy]:
    with Proxy(objects.endpoint) as proxy:
        yield proxy


@pytest.fixture
def server(objects: S3Server, proxy: Proxy, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with the table `t` of 100 rows, whose store is behind the proxy."""
    root = f"{objects.new_bucket(f'away-{next(BUCKETS)}')}/tables"
    options = {**objects.options, "aws_endpoint": proxy.url, "timeout": "3s", "connect_timeout": "2s"}
    installation = Installation(root, f"sqlite:///{tmp_path / 'catalog.db'}", options)
    server = installation.start()
    with Wire(server.url) as wire:
        wire.good(wire.table(["t"], "create", stream(ROWS)))
        assert wire.table(["t"], "count_rows").text == "100"
    yield server
    installation.close()


def call(server: ServerProcess, path: str) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/table/{path}", timeout=120, **CALLS[path])  # type: ignore[arg-type]


def check_refused(response: httpx.Response) -> None:
    assert (response.status_code, check_error(response)) == (503, 17), response.text


@pytest.mark.extended
@pytest.mark.parametrize("outage", ["cut", "hold"])
def test_store_away_is_503_at_once_and_comes_back(server: ServerProcess, proxy: Proxy, outage: str) -> None:
    getattr(proxy, outage)()
    with ThreadPoolExecutor(len(CALLS)) as threads:
        first = [threads.submit(call, server, path) for path in CALLS]
        wait_until(lambda: "requests that need it are refused" in "".join(server.log), "the store is known to be away")
        for path in CALLS:
            began = monotonic()
            check_refused(call(server, path))
            assert monotonic() < began + AT_ONCE_SECONDS, path
        assert httpx.post(f"{server.url}/v1/table/t/describe", json={}).status_code == 200
        assert httpx.get(f"{server.url}/health/live").status_code == 200
        assert httpx.get(f"{server.url}/health/ready").status_code == 503
        for response in first:
            check_refused(response.result())
    proxy.mend()
    wait_until(lambda: call(server, "t/count_rows").status_code == 200, "the server has its store again")
    assert call(server, "t/count_rows").text == "100"
    assert {path: call(server, path).status_code for path in CALLS} == dict.fromkeys(CALLS, 200)
    assert call(server, "t/count_rows").text == "198"
    assert server.stop() == 0
    assert not [line for line in server.log if "Traceback" in line], "".join(server.log)
    assert len([line for line in server.log if "does not respond: requests" in line]) == 1
    assert len([line for line in server.log if "responds again" in line]) == 1
