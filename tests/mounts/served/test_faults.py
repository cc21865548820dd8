"""A mounted catalog that is killed and started again under writers, and two servers over one catalog."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from tests.mounts.backends import hive_backend, local_directory
from tests.mounts.served.conftest import MOUNT, environ
from tests.services.hive import HiveMetastore, hive_metastore
from tests.services.postgres import postgres_server
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream
from tiltyard.model.ids import Id

pytestmark = pytest.mark.extended

ROWS = pa.table({"id": [1, 2, 3]})
WRITERS = 8
TABLES = 6
"""Of each writer."""
KILLS = 3


@pytest.fixture
def metastore(tmp_path: Path) -> Iterator[HiveMetastore]:
    (tmp_path / "hive").mkdir()
    with hive_metastore(tmp_path / "hive") as metastore:
        yield metastore


def until_done(http: httpx.Client, path: str, content: bytes, seconds: float = 240) -> int:
    """Send a write until it is answered with something else than that it cannot be now; return the status."""
    until = time.monotonic() + seconds
    while True:
        response = http.post(path, content=content)
        if response.status_code not in (503, 500, 409) or time.monotonic() > until:
            return response.status_code
        if response.status_code == 409:  # it was done before the answer got lost
            return 409
        time.sleep(0.3)


def test_metastore_killed_and_started_under_eight_writers_has_every_table_once(
    metastore: HiveMetastore, tmp_path: Path
) -> None:
    backend = hive_backend(metastore)
    backend.settings = {**backend.settings, "timeout": 10, "connect_timeout": 2}
    server = ServerProcess(tmp_path / "served", environ=environ(backend, tmp_path, 0.0))
    stop = threading.Event()

    def kill_now_and_then() -> None:
        for _ in range(KILLS):
            if stop.wait(6):
                return
            metastore.kill()
            time.sleep(1)
            metastore.start()

    def write(writer: int) -> list[int]:
        with httpx.Client(base_url=server.url, timeout=120) as http:
            return [
                until_done(http, f"/v1/table/{MOUNT}$db$w{writer}x{table}/create", stream(ROWS))
                for table in range(TABLES)
            ]

    killer = threading.Thread(target=kill_now_and_then)
    try:
        with Wire(server.url, timeout=120) as wire:
            assert wire.call("namespace", [MOUNT, "db"], "create").status_code == 200
            wire.call("table", ["own"], "create", stream(ROWS))
            killer.start()
            with ThreadPoolExecutor(WRITERS) as pool:
                statuses = list(pool.map(write, range(WRITERS)))
            stop.set()
            killer.join()
            assert {status for each in statuses for status in each} <= {200, 409}
            names = [f"w{writer}x{table}" for writer in range(WRITERS) for table in range(TABLES)]
            until = time.monotonic() + 60
            while (listed := wire.http.get(f"/v1/namespace/{MOUNT}$db/table/list")).status_code != 200:
                assert time.monotonic() < until, listed.text
                time.sleep(0.5)
            assert sorted(listed.json()["tables"]) == sorted(names)
            for name in names:
                counted = wire.http.post(f"/v1/table/{MOUNT}$db${name}/count_rows", json={})
                if counted.status_code != 200:  # declared, and its first rows refused with the answer
                    assert counted.json()["code"] == 19, counted.text
                    created = wire.http.post(f"/v1/table/{MOUNT}$db${name}/create", content=stream(ROWS))
                    assert created.status_code == 200, created.text
                else:
                    assert counted.json() == 3
            assert wire.call("table", ["own"], "count_rows").json() == 3
    finally:
        stop.set()
        server.stop()


def test_two_servers_over_one_folder_see_each_others_tables_at_once(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    backend = local_directory(tmp_path / "lake", "manifest")
    with postgres_server() as postgres:
        first = ServerProcess(tmp_path / "one", environ=environ(backend, tmp_path, 0.0))
        second = ServerProcess(
            tmp_path / "two", "--db", postgres.new_database(), environ=environ(backend, tmp_path, 0.0)
        )
        catalog = backend.open()
        try:
            with Wire(first.url) as one, Wire(second.url) as two:
                one.call("namespace", [MOUNT, "a"], "create")

                def create(number: int) -> int:
                    wire = one if number % 2 else two
                    return wire.call("table", [MOUNT, "a", f"t{number}"], "create", stream(ROWS)).status_code

                with ThreadPoolExecutor(8) as pool:
                    assert set(pool.map(create, range(24))) == {200}
                for wire in (one, two):
                    listed = wire.call("namespace", [MOUNT, "a"], "table/list", method="GET").json()["tables"]
                    assert sorted(listed) == sorted(f"t{number}" for number in range(24))
                assert one.call("table", [MOUNT, "a", "t0"], "insert", stream(ROWS)).status_code == 200
                assert two.call("table", [MOUNT, "a", "t0"], "count_rows").json() == 6
                assert two.call("table", [MOUNT, "a", "t0"], "drop").status_code == 200
                assert one.call("table", [MOUNT, "a", "t0"], "exists").json()["code"] == 4
                assert len(catalog.list_tables(Id(("a",))).names) == 23
        finally:
            catalog.close()
            first.stop()
            second.stop()
