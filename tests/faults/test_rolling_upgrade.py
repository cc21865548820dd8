"""A rolling upgrade: a server of the version before the last migration, and one of this, on one PostgreSQL."""

from __future__ import annotations

import io
import itertools
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from tests.services.postgres import PostgresServer
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream
from tiltyard.store import upgrade
from tiltyard.store.schema import migrations

pytestmark = pytest.mark.extended

REPOSITORY = Path(__file__).parents[2]
TABLES = ("a", "b", "shared")


@pytest.fixture
def earlier_source(tmp_path: Path) -> Path:
    """Extract the source of the commit before the last migration; return its folder."""
    last = f"src/tiltyard/store/migrations/{migrations()[-1].name}.sql"
    try:
        added = _git("log", "--diff-filter=A", "--format=%H", "-1", "--", last).decode().strip()
        archive = _git("archive", f"{added}~1", "src")
    except (OSError, subprocess.CalledProcessError):
        added = ""
    if not added:
        pytest.skip("The history of the repository is not here: there is no earlier version to run.")
    with tarfile.open(fileobj=io.BytesIO(archive)) as source:
        source.extractall(tmp_path / "earlier", filter="data")
    return tmp_path / "earlier" / "src"


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, check=True, timeout=60).stdout


class Load:
    """Clients that append rows to tables without a pause, each through the servers that it is given at the moment."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self.acknowledged: list[tuple[str, int]] = []
        self.uncertain: list[tuple[str, int]] = []
        self.wrong: list[str] = []
        self._numbers, self._stopping = itertools.count(), threading.Event()
        self._pool = ThreadPoolExecutor(4)
        self._writers = [self._pool.submit(self._write, turn) for turn in range(4)]

    def _write(self, turn: int) -> None:
        with httpx.Client(timeout=60) as client:
            while not self._stopping.is_set():
                number, urls = next(self._numbers), self.urls
                table, url = TABLES[number % len(TABLES)], urls[(turn + number) % len(urls)]
                row = stream(pa.table({"id": pa.array([number], pa.int64())}))
                kind = {"content-type": "application/vnd.apache.arrow.stream"}
                try:
                    response = client.post(f"{url}/v1/table/{table}/insert", content=row, headers=kind)
                except httpx.TransportError:  # its server has just stopped
                    self.uncertain.append((table, number))
                    continue
                if response.status_code == 200:
                    self.acknowledged.append((table, number))
                elif response.status_code != 503 or url in self.urls:
                    self.wrong.append(f"{url} {response.status_code} {response.text}")

    def wait(self, number: int) -> None:
        """Wait until so many more rows are acknowledged."""
        until, goal = time.monotonic() + 120, len(self.acknowledged) + number
        while len(self.acknowledged) < goal:
            assert time.monotonic() < until, self.wrong
            time.sleep(0.02)

    def stop(self) -> None:
        self._stopping.set()
        self._pool.shutdown()
        for writer in self._writers:
            writer.result()


def test_servers_of_two_versions_take_rows_side_by_side(
    earlier_source: Path, tmp_path: Path, postgres: PostgresServer, talk: Callable[[ServerProcess], Wire]
) -> None:
    """The earlier server goes on while the database is upgraded, serves beside this one, and is then stopped."""
    url, root = postgres.new_database(), tmp_path / "root"
    earlier = ServerProcess(root, "--db", url, environ={"PYTHONPATH": str(earlier_source)}, forked=False)
    servers = [earlier]
    load: Load | None = None
    try:
        wire = talk(earlier)
        for table in TABLES:
            wire.good(wire.table([table], "create", stream(pa.schema({"id": pa.int64()}))))
        load = Load([earlier.url])
        load.wait(20)
        assert upgrade(url) == [migrations()[-1].name]
        load.wait(20)
        servers.append(ServerProcess(root, "--db", url))
        load.urls = [earlier.url, servers[1].url]
        load.wait(60)
        both = [talk(server) for server in servers]
        for one, other in itertools.permutations(both):
            name = f"made{both.index(one)}"
            one.good(one.table([name], "create", stream(pa.table({"id": pa.array([1], pa.int64())}))))
            one.good(one.table([name], "create_scalar_index", {"column": "id", "index_type": "BTREE"}))
            other.good(other.table([name], "insert", stream(pa.table({"id": pa.array([2], pa.int64())}))))
            assert one.table([name], "count_rows").text == "2"
        load.urls = [servers[1].url]
        assert earlier.stop() == 0
        load.wait(20)
        load.stop()
        assert load.wrong == []
        for table in TABLES:
            acknowledged = {number for name, number in load.acknowledged if name == table}
            uncertain = {number for name, number in load.uncertain if name == table}
            ids = _read_ids(both[1], table)
            assert sorted(set(ids)) == ids  # none twice
            assert acknowledged <= set(ids) <= acknowledged | uncertain
    finally:
        if load is not None:
            load.stop()
        for server in servers:
            if server.process.poll() is None:
                server.kill()
        postgres.drop_database(url)


def _read_ids(wire: Wire, table: str) -> list[int]:
    query = {"k": 1_000_000, "vector": {"single_vector": []}, "columns": {"column_names": ["id"]}}
    answer = wire.table([table], "query", query)
    return sorted(pa.ipc.open_file(answer.content).read_all()["id"].to_pylist())
