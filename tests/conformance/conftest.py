"""A live server, and the stock clients that talk to it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import lance.namespace
import lance_namespace_urllib3_client as generated_client
import lancedb
import pytest

import tiltyard
from tests.services.postgres import create_database_beside, postgres_server
from tests.services.s3 import CREDENTIALS, S3Server, s3_server
from tests.services.server import ServerProcess

numbers = itertools.count(1)


@pytest.fixture(scope="session", params=["embedded", pytest.param("production", marks=pytest.mark.extended)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server on SQLite and a local folder, then one on PostgreSQL and an object store."""
    with ExitStack() as stack:
        if request.param == "embedded":
            running = ServerProcess(tmp_path_factory.mktemp("root"))
        else:
            postgres = stack.enter_context(postgres_server())
            objects = stack.enter_context(s3_server())
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for name, value in CREDENTIALS.items():
                patch.setenv(name, value)  # clients that read tables by themselves bring their own
            running = ServerProcess(
                f"{objects.new_bucket('tiltyard')}/tables",
                "--db",
                postgres.new_database(),
                environ={"TILTYARD_STORAGE_OPTIONS": json.dumps(objects.options)},
            )
        stack.callback(running.stop)
        yield running


@pytest.fixture
def empty_server(server: ServerProcess, tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of the same kind, with a catalog of its own for what goes through all tables."""
    if server.db is None:
        running = ServerProcess(tmp_path / "root")
    else:
        bucket = S3Server(server.options["aws_endpoint"]).new_bucket(f"tiltyard-{next(numbers)}")
        options = {"TILTYARD_STORAGE_OPTIONS": json.dumps(server.options)}
        running = ServerProcess(f"{bucket}/tables", "--db", create_database_beside(server.db), environ=options)
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


@pytest.fixture(scope="session")
def twin(server: ServerProcess) -> Iterator[tiltyard.Namespace]:
    """The operations in this process, on the catalog of the running server."""
    with tiltyard.Namespace(str(server.root), server.db, storage_options=server.options, jobs=0) as namespace:
        yield namespace


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
