"""Heartbeats of servers and workers: recorded, forgotten, and no part of a dump."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tiltyard.store import ProcessRecord, Store, read_rows
from tiltyard.store.processes import FORGET_MS

if TYPE_CHECKING:
    from pathlib import Path

NOW = 1_700_000_000_000
SERVER = ProcessRecord("a", "server", "alpha", 7, "1.0", 2, 0, 1, started_at=NOW, seen_at=NOW)
WORKER = ProcessRecord("b", "worker", "beta", 7, "1.0", 4, 1, 0, started_at=NOW + 1, seen_at=NOW + 1)


def later(process: ProcessRecord, ms: int, running: int = 0) -> ProcessRecord:
    """Return a later heartbeat of a process."""
    return msgspec.structs.replace(process, seen_at=process.seen_at + ms, running=running)


def test_heartbeat_replaces_the_last_one_and_forgets_silent_processes(store: Store) -> None:
    store.record_process(WORKER)
    store.record_process(SERVER)
    assert store.list_processes() == [SERVER, WORKER]
    busy = later(WORKER, FORGET_MS - 1, running=3)
    store.record_process(busy)
    assert store.list_processes() == [SERVER, busy]
    last = later(WORKER, FORGET_MS)
    store.record_process(last)
    assert store.list_processes() == [last]


def test_process_that_ends_is_listed_no_more(store: Store) -> None:
    store.record_process(SERVER)
    store.record_process(WORKER)
    store.delete_process(WORKER.id)
    store.delete_process("unknown")
    assert store.list_processes() == [SERVER]


def test_dump_has_no_processes(store: Store, tmp_path: Path) -> None:
    store.record_process(SERVER)
    store.dump(tmp_path / "dump")
    assert "processes" not in {table for table, _ in read_rows(tmp_path / "dump")}
