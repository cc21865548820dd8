"""A live server, and the stock clients that talk to it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import lance.namespace
import lance_namespace_urllib3_client as generated_client
import lancedb
import pytest

from tests.services.postgres import find_binaries, postgres_server
from tests.services.server import ServerProcess

numbers = itertools.count(1)


@pytest.fixture(scope="session", params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server on each database; the tests of one database run before those of the next."""
    root = tmp_path_factory.mktemp("root")
    if request.param == "sqlite":
        running = ServerProcess(root)
        yield running
        running.stop()
        return
    binaries = find_binaries()
    assert binaries is not None, "these tests need a PostgreSQL server: install the package postgresql"
    with postgres_server(binaries) as postgres:
        running = ServerProcess(root, "--db", postgres.new_database())
        yield running
        running.stop()


class Raw:
    """HTTP without a client library: what the wire really carries."""

    def __init__(self, url: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=60)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.http.post(path, json={} if body is None else body, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, **options)


@pytest.fixture
def raw(server: ServerProcess) -> Iterator[Raw]:
    client = Raw(server.url)
    yield client
    client.http.close()


@pytest.fixture
def generated(server: ServerProcess) -> generated_client.ApiClient:
    """Client U: the generated one, base of the Python and Java stacks."""
    return generated_client.ApiClient(generated_client.Configuration(host=server.url))


@pytest.fixture
def rest(server: ServerProcess) -> lance.namespace.RestNamespace:
    """Client R: Rust, inside pylance."""
    return lance.namespace.RestNamespace(uri=server.url)


@pytest.fixture
def remote(server: ServerProcess) -> Any:
    """Client D: lancedb's remote protocol."""
    return lancedb.connect("db://tests", api_key="none", host_override=server.url)


@pytest.fixture
def local_writes(server: ServerProcess) -> Any:
    """Client N: lancedb that finds its tables here and reads and writes them itself."""
    return lancedb.connect_namespace("rest", {"uri": server.url})


@pytest.fixture
def fresh() -> Callable[[str], str]:
    """Names that no other test uses."""
    return lambda stem: f"{stem}_{next(numbers)}"


@pytest.fixture
def namespace(raw: Raw, fresh: Callable[[str], str]) -> str:
    """A new namespace."""
    name = fresh("space")
    assert raw.post(f"/v1/namespace/{name}/create").status_code == 200
    return name
