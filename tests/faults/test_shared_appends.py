"""Servers that append to one table at the same time: none loses or doubles a row, and none waits long for another."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event, Lock
from uuid import uuid4

import httpx
import lancedb
import pyarrow as pa
import pytest

from tests.faults.conftest import ROWS, Installation, wait_until
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream
from tiltyard.runtime.lease import TURN_LEASE_MS

TABLE = ["t"]
MAX_SECONDS = TURN_LEASE_MS / 1000 + 6
"""What a server in the turn that hangs costs the others, and what a busy machine adds."""


def row(number: int) -> bytes:
    """Return a body with one row."""
    return stream(pa.table({"id": pa.array([number], pa.int64()), "text": [str(number)]}))


class Writers:
    """Threads that insert rows through servers, each row once, and remember which were acknowledged."""

    def __init__(self, pool: ThreadPoolExecutor, *, keyed: bool = False) -> None:
        self._pool, self._keyed = pool, keyed
        self._lock, self._number = Lock(), 0
        self._stopping = Event()
        self.threads: list[Future[None]] = []
        self.acknowledged: list[int] = []
        self.statuses: set[int] = set()
        self.longest = 0.0

    def start(self, server: ServerProcess, threads: int = 2) -> None:
        self.threads += [self._pool.submit(self._insert, server.url) for _ in range(threads)]

    def stop(self) -> list[BaseException | None]:
        """Stop; return how each thread ended."""
        self._stopping.set()
        return [thread.exception() for thread in self.threads]

    def _insert(self, url: str) -> None:
        with Wire(url) as wire:
            while not self._stopping.is_set():
                with self._lock:
                    self._number += 1
                    number = self._number
                started = time.monotonic()
                headers = {"x-request-id": str(uuid4()), "Idempotency-Key": str(uuid4())} if self._keyed else {}
                status = wire.http.post("/v1/table/t/insert", content=row(number), headers=headers).status_code
                self.longest = max(self.longest, time.monotonic() - started)
                self.statuses.add(status)
                if status == 200:
                    self.acknowledged.append(number)


@pytest.fixture
def pair(installation: Installation, tmp_path: Path) -> tuple[ServerProcess, ServerProcess]:
    """Two servers that know that the other one commits to the table; the second may be held before it records."""
    servers = []
    for name in ("first", "second"):
        (own := tmp_path / name).mkdir()  # as on machines of their own: no locks of files between them
        fault = f"before_record=hold@{tmp_path}/hold" if name == "second" else ""
        servers.append(installation.start(TMPDIR=str(own), TILTYARD_FAULT=fault))
    with Wire(servers[0].url) as first, Wire(servers[1].url) as second:
        first.good(first.table(TABLE, "create", stream(ROWS.schema)))
        for number in range(-8, 0):
            wire = (first, second)[number % 2]
            wire.good(wire.table(TABLE, "insert", row(number)))
    return servers[0], servers[1]


def rows_of(installation: Installation) -> list[int]:
    numbers = installation.dataset("t").to_table()["id"].to_pylist()
    return [number for number in numbers if number > 0]


def left_in_queue(installation: Installation) -> int:
    [(number,)] = installation.sql("SELECT count(*) FROM queued_appends")
    return int(number)


@pytest.mark.parametrize("keyed", [False, True])
def test_servers_commit_each_others_rows_and_lose_none(
    installation: Installation, pair: tuple[ServerProcess, ServerProcess], keyed: bool
) -> None:
    with ThreadPoolExecutor(8) as pool:
        writers = Writers(pool, keyed=keyed)
        for server in pair:
            writers.start(server, 4)
        wait_until(lambda: len(writers.acknowledged) > 200, "200 rows are inserted")
        assert writers.stop() == [None] * 8
    assert writers.statuses == {200}
    assert sorted(rows_of(installation)) == sorted(writers.acknowledged)
    assert left_in_queue(installation) == 0
    versions = installation.dataset("t").latest_version
    assert versions < len(writers.acknowledged) * 0.7, "rows of several callers are in one version"


def hold_in_turn(installation: Installation, folder: Path, server: ServerProcess, pool: ThreadPoolExecutor) -> Future:
    """Let a server stop before it records a commit in its turn; return the request that waits for it."""
    (folder / "hold").touch()

    def insert() -> int:
        with Wire(server.url) as wire:
            return wire.table(TABLE, "insert", row(1_000_000)).status_code

    request = pool.submit(insert)
    wait_until((folder / "hold.reached").exists, "the server is in its turn")
    assert installation.sql("SELECT count(*) FROM append_turns WHERE holder <> ''") == [(1,)]
    return request


@pytest.mark.parametrize("is_killed", [True, False])
def test_server_that_dies_or_hangs_in_its_turn_costs_the_others_a_moment(
    installation: Installation, pair: tuple[ServerProcess, ServerProcess], tmp_path: Path, is_killed: bool
) -> None:
    survivor, victim = pair
    with ThreadPoolExecutor(8) as pool:
        request = hold_in_turn(installation, tmp_path, victim, pool)
        if is_killed:
            victim.kill()
        else:
            os.kill(victim.process.pid, signal.SIGSTOP)
        try:
            writers = Writers(pool)
            writers.start(survivor, 4)
            wait_until(lambda: len(writers.acknowledged) > 40, "the other server goes on")
            assert writers.stop() == [None] * 4
        finally:
            (tmp_path / "hold").unlink()
            if not is_killed:
                os.kill(victim.process.pid, signal.SIGCONT)
        assert writers.statuses == {200} and writers.longest < MAX_SECONDS, writers.longest
        if is_killed:
            assert isinstance(request.exception(), httpx.TransportError)
        else:
            assert request.result() == 200
    rows = rows_of(installation)
    assert len(rows) == len(set(rows)) and set(writers.acknowledged) | {1_000_000} == set(rows), (
        "the other server commits the rows that the victim had queued, once"
    )


def test_rows_that_do_not_fit_fail_alone(pair: tuple[ServerProcess, ServerProcess], talk: Callable[..., Wire]) -> None:
    wires = [talk(server) for server in pair]
    wrong = stream(pa.table({"id": ["no number"], "text": ["1"]}))

    def insert(number: int) -> int:
        return wires[number % 2].table(TABLE, "insert", wrong if number % 5 == 0 else row(number + 1)).status_code

    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(insert, range(60)))
    assert [status for number, status in enumerate(statuses) if number % 5] == [200] * 48
    assert all(400 <= status < 500 for number, status in enumerate(statuses) if not number % 5), statuses
    assert wires[0].table(TABLE, "count_rows").text == str(48 + 8)


def test_lancedb_clients_of_two_servers_lose_no_row(
    installation: Installation, pair: tuple[ServerProcess, ServerProcess]
) -> None:
    def add(caller: int) -> None:
        server = pair[caller % 2]
        table = lancedb.connect("db://any", api_key="none", host_override=server.url).open_table("t")
        for number in range(caller * 10 + 1, caller * 10 + 11):
            table.add([{"id": number, "text": "added"}])
            assert table.count_rows(f"id = {number}") == 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(8)))
    assert sorted(rows_of(installation)) == list(range(1, 81))
    assert left_in_queue(installation) == 0
