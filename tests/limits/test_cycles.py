"""Requests leave no reference cycles: their objects are freed with them, above all the body."""

from __future__ import annotations

import gc
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lance_namespace
import lancedb
import pyarrow as pa
import pytest
import uvicorn
from lance_namespace import DescribeTableRequest, ListTablesRequest
from lance_namespace.errors import TableNotFoundError
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from tests.services.wire import Wire, stream
from tiltyard.api.app import Api
from tiltyard.api.bodies.uploads import MAX_MEMORY_BYTES, MemoryBody, StreamedBody
from tiltyard.api.exchange import Exchange
from tiltyard.api.idempotency.requests import IdempotentRequest
from tiltyard.api.request_log import LoggedRequest
from tiltyard.bootstrap import open_services, register_operations
from tiltyard.config import Settings
from tiltyard.context import Context
from tiltyard.server.http_protocol import HttpProtocol

TIMES = 20
OF_ONE_REQUEST = (
    Context,
    Exchange,
    IdempotentRequest,
    LoggedRequest,
    MemoryBody,
    RequestResponseCycle,
    StreamedBody,
)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A server in this process, so that what it leaves can be seen."""
    register_operations()
    services = open_services(Settings(root=str(tmp_path / "root")))
    with services.store, socket.create_server(("127.0.0.1", 0)) as listener:
        api = Api(services)
        server = uvicorn.Server(uvicorn.Config(api, http=HttpProtocol, lifespan="off", log_config=None))
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        serving.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        serving.join()
        api.close()


@contextmanager
def left_to_the_collector() -> Iterator[Counter[str]]:
    """Count the objects of requests that are in cycles at the end of the block, by type.

    Those of a type that are fewer than TIMES are of no request that the block makes: the server has others to do.
    """
    types = Counter[str]()
    gc.collect()
    gc.disable()
    try:
        yield types
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = Counter(type(item).__name__ for item in gc.garbage if isinstance(item, OF_ONE_REQUEST))
        types.update({name: count for name, count in left.items() if count >= TIMES})
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_reads_leave_no_cycles(url: str) -> None:
    client = lance_namespace.connect("rest", {"uri": url})
    table = lancedb.connect("db://d", api_key="k", host_override=url).create_table("t", pa.table({"id": range(100)}))
    with left_to_the_collector() as cycles:
        for _ in range(TIMES):
            client.describe_table(DescribeTableRequest(id=["t"]))
            client.list_tables(ListTablesRequest(id=[]))
            assert table.search().where("id = 7").limit(2).to_arrow().num_rows == 1
            with pytest.raises(TableNotFoundError):
                client.describe_table(DescribeTableRequest(id=["missing"]))
    assert not cycles


def test_refused_writes_leave_no_cycles(url: str) -> None:
    table = lancedb.connect("db://d", api_key="k", host_override=url).create_table("t", pa.table({"id": range(100)}))
    not_arrow, other_columns = b"no Arrow at all", stream(pa.table({"name": ["a"]}))
    large = stream(pa.table({"name": ["a" * MAX_MEMORY_BYTES * 2]}))
    with Wire(url) as wire, left_to_the_collector() as cycles:
        for _ in range(TIMES):
            for body in (not_arrow, other_columns, large):
                assert wire.call("table", ["t"], "insert", body).status_code == 400
            assert wire.call("table", ["missing"], "insert", other_columns).status_code == 404
            assert wire.call("table", ["t"], "merge_insert", other_columns, query={"on": "name"}).status_code == 400
            assert wire.call("table", ["t"], "query", {"k": 1, "filter": "no such ("}).status_code == 400
            assert wire.call("table", ["t"], "version/create", {"version": 2, "manifest_path": "x"}).status_code == 400
            assert wire.call("table", ["t"], "delete", {"predicate": "missing = 1"}).status_code == 404
            assert wire.call("table", ["t"], "create", other_columns).status_code == 409
    assert table.count_rows() == 100
    assert not cycles


def test_writes_leave_no_cycles(url: str) -> None:
    database = lancedb.connect("db://d", api_key="k", host_override=url)
    table = database.create_table("t", pa.table({"id": range(100)}))
    large = pa.table({"id": pa.array(range(MAX_MEMORY_BYTES // 8 + 1000))})
    with left_to_the_collector() as cycles:
        for number in range(TIMES):
            table.add(pa.table({"id": [1000 + number]}))
            table.delete(f"id = {number}")
        for _ in range(3):
            table.add(large)
    assert table.count_rows() == 100 + 3 * large.num_rows
    assert not cycles
