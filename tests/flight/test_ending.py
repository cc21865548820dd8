"""Queries that are ended: whatever they are doing, their process is gone at once, and with it their memory and slot."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pyarrow as pa
import pytest

from tests.flight.conftest import NUMBERS, SqlServer, command, flight_port
from tests.flight.test_service import running_queries
from tests.services.secured import secured_server
from tiltyard.flight.messages import SERVICE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FREE_SECONDS = 1.0
"""How long a canceled query may hold anything, on a machine that has nothing else to do."""
LOADED = 20
"""How many times as long it may take while other tests run."""
LONG_QUERIES = {
    "join": "SELECT count(*) AS n FROM numbers a JOIN numbers b ON a.n % 3 = b.n % 3 AND a.text <> b.text",
    "cross join": "SELECT sum(a.n * b.n) AS n FROM numbers a, numbers b",
    "sort": "SELECT a.text FROM numbers a JOIN numbers b ON a.n % 50 = b.n % 50 ORDER BY b.text || a.text, a.n",
    "aggregate": """
        SELECT a.text, count(DISTINCT b.text) AS n FROM numbers a JOIN numbers b ON a.n % 40 = b.n % 40 GROUP BY a.text
    """,
    "window": """
        SELECT max(n) AS n FROM (
            SELECT array_length(array_agg(text) OVER (ORDER BY n ROWS BETWEEN 20000 PRECEDING AND CURRENT ROW)) AS n
            FROM numbers)
    """,
}
"""Queries that run for far longer than a test, at work in one batch of their input."""


def query_processes(sql: SqlServer) -> set[int]:
    """The processes that run the server's queries, or wait for one: those with a socket to it that it has made."""
    server = sql.secured.server.process.pid
    starters = [child for child in _children(server) if b"forkserver" in _command_line(child)]
    return {child for starter in starters for child in _children(starter)}


def _children(process: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{process}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _command_line(process: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""


def is_busy(process: int) -> bool:
    """Whether it uses a processor."""
    before = _processor_time(process)
    time.sleep(0.3)
    return _processor_time(process) > before + 5


def _processor_time(process: int) -> int:
    with suppress(OSError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])
    return 0


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> float:
    """Wait until something is so; return how long that took."""
    started_at = time.monotonic()
    while not condition():
        assert time.monotonic() < started_at + seconds, "it did not come to be"
        time.sleep(0.02)
    return time.monotonic() - started_at


def wait_until_busy(sql: SqlServer) -> set[int]:
    """Wait until a query is at work; return the processes that are."""
    busy: set[int] = set()
    wait_for(lambda: bool(busy.update(filter(is_busy, query_processes(sql))) or busy))
    return busy


@pytest.mark.parametrize("kind", LONG_QUERIES)
def test_cancelled_query_is_gone_at_once(sql: SqlServer, kind: str) -> None:
    query = sql.lancedb().execute_query_async(LONG_QUERIES[kind])
    busy = wait_until_busy(sql)
    assert query.describe().status == "running"
    query.cancel()
    assert wait_for(lambda: running_queries(sql) == 0 and not busy & query_processes(sql)) < FREE_SECONDS * LOADED
    assert query.describe().status == "cancelled"


def test_query_whose_reader_leaves_is_gone_at_once(sql: SqlServer) -> None:
    with sql.channel() as wire:
        info = wire.call("GetFlightInfo", command("CommandStatementQuery", query=LONG_QUERIES["join"]), "FlightInfo")
        stream = wire.channel.unary_stream(f"/{SERVICE}/DoGet", lambda message: message.SerializeToString(), None)
        reading = stream(info.endpoint[0].ticket, metadata=wire.metadata)
        busy = wait_until_busy(sql)
        reading.cancel()
        assert wait_for(lambda: running_queries(sql) == 0 and not busy & query_processes(sql)) < FREE_SECONDS * LOADED


def test_query_that_is_cancelled_while_it_is_planned_frees_its_slot(sql: SqlServer) -> None:
    """More of them than slots: each call ends before the server knows that its query is planned."""
    asyncio.run(_leave_while_planning(sql, 24))
    wait_for(lambda: running_queries(sql) == 0)
    assert sql.lancedb().execute_query("SELECT 1 AS x").read_all().to_pylist() == [{"x": 1}]


async def _leave_while_planning(sql: SqlServer, number: int) -> None:
    joins = " ".join(f"JOIN films f{at} ON f{at}.id = f.id" for at in range(20))
    descriptor = command("CommandStatementQuery", query=f"SELECT count(*) FROM films f {joins}")
    metadata = (("x-api-key", sql.secured.keys["ann"]),)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{sql.port}") as channel:
        call: Any = channel.unary_unary(f"/{SERVICE}/PollFlightInfo", lambda message: message.SerializeToString())
        for at in range(number):
            polling = call(descriptor, metadata=metadata)
            await asyncio.sleep(0.002 * at)
            polling.cancel()
            with suppress(asyncio.CancelledError, grpc.RpcError):
                await polling


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SqlServer]:
    """A server whose queries have two seconds, and whose processes have less memory than one query's operators.

    One of them is started before the first query.
    """
    environ = {
        "TILTYARD_SQL_PRESTART": "true",
        "TILTYARD_QUERY_TIMEOUT": "2",
        "TILTYARD_SQL_PROCESS_BYTES": str(1 << 28),
        "TILTYARD_SQL_MEMORY_BYTES": str(4 << 30),
    }
    with secured_server(tmp_path_factory.mktemp("limited") / "root", environ=environ, names=()) as secured:
        server = SqlServer(secured, flight_port(secured.url))
        server.lancedb().create_table("numbers", NUMBERS)
        wait_for(lambda: bool(query_processes(server)), 120)
        run_until_started(server)
        yield server


def run_until_started(sql: SqlServer) -> None:
    """Run a query until the first process has started, which on a loaded machine takes longer than a query may."""

    def has_run() -> bool:
        with suppress(RuntimeError):
            return bool(sql.lancedb().execute_query("SELECT 1 AS x").read_all().num_rows)
        return False

    wait_for(has_run, 120)


def test_query_beyond_its_time_is_gone_at_once(limited: SqlServer) -> None:
    with pytest.raises(RuntimeError, match="more than 2 s"):
        limited.lancedb().execute_query(LONG_QUERIES["join"]).read_all()
    assert wait_for(lambda: running_queries(limited) == 0) < FREE_SECONDS * LOADED


def test_query_beyond_its_processs_memory_is_ended(limited: SqlServer) -> None:
    def is_ended_for_its_memory() -> bool:
        """Run a query that takes too much memory, and on a loaded machine perhaps too much time before that."""
        with pytest.raises(RuntimeError, match=r"sql_process_bytes|more than 2 s") as raised:
            limited.lancedb().execute_query(LONG_QUERIES["sort"]).read_all()
        return "sql_process_bytes" in str(raised.value)

    wait_for(is_ended_for_its_memory, 120)
    wait_for(lambda: running_queries(limited) == 0)
    run_until_started(limited)


def test_process_that_ends_by_itself_fails_its_query_alone(sql: SqlServer) -> None:
    db = sql.lancedb()
    query = db.execute_query_async(LONG_QUERIES["join"])
    for process in wait_until_busy(sql):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGSEGV)
    with pytest.raises(RuntimeError, match="has ended"):
        query.reader().read_all()
    wait_for(lambda: running_queries(sql) == 0)
    assert db.execute_query("SELECT 1 AS x").read_all().to_pylist() == [{"x": 1}]


def test_point_query_takes_no_process(sql: SqlServer) -> None:
    query = "SELECT text FROM numbers WHERE n = 7"
    sql.lancedb().open_table("numbers").create_scalar_index("n", wait_timeout=timedelta(seconds=60))
    for process in query_processes(sql):
        os.kill(process, signal.SIGKILL)
    wait_for(lambda: not query_processes(sql))
    assert sql.lancedb("ann").execute_query(query).read_all().to_pylist() == [{"text": "number 7"}]
    with sql.channel("ann") as wire:
        info = wire.call("GetFlightInfo", command("CommandStatementQuery", query=query), "FlightInfo")
        assert pa.ipc.read_schema(pa.py_buffer(info.schema)) == pa.schema([("text", pa.string())])
        assert len(wire.stream("DoGet", info.endpoint[0].ticket)) == 2  # the schema and a batch
    assert not query_processes(sql)
    with pytest.raises(RuntimeError, match="numbers"):
        sql.lancedb("bob").execute_query(query)
