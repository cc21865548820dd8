"""The record of a process: written while it runs, also after a time without the database, and deleted at its end."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from lance_namespace.errors import ServiceUnavailableError

from tiltyard.config import Settings
from tiltyard.runtime.outage_log import OutageLog
from tiltyard.store import ProcessRecord, open_store, wall_clock
from tiltyard.worker import ProcessRecorder, process_record, runner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_SECONDS = 60


class Catalog:
    """A store whose database is away where a test says so."""

    def __init__(self, folder: Path) -> None:
        self.store = open_store(f"sqlite:///{folder}/catalog.db")
        self.is_away = False

    def record_process(self, process: ProcessRecord) -> None:
        if self.is_away:
            raise ServiceUnavailableError("away")
        self.store.record_process(process)

    def delete_process(self, id_: str) -> None:
        self.store.delete_process(id_)

    def wait(self, running: int) -> ProcessRecord:
        """Wait until the only process has so much under way."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while [process.running for process in self.store.list_processes()] != [running]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self.store.list_processes()[0]


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    monkeypatch.setattr(process_record, "INTERVAL_SECONDS", 0.01)
    monkeypatch.setattr(runner, "PAUSE_SECONDS", 0.01)
    catalog = Catalog(tmp_path)
    yield catalog
    catalog.store.close()


def test_process_is_recorded_with_what_it_runs_until_it_stops(catalog: Catalog) -> None:
    work = {"transactions": 0, "jobs": 0}
    settings = Settings(server_url="http://a:1", vector_cache_bytes=7)
    outages = OutageLog((), "sqlite:///x")
    services: Any = SimpleNamespace(store=catalog, clock=wall_clock, outage_log=outages, settings=settings)
    worker: Any = SimpleNamespace(limit=2, count_running=lambda: work["transactions"])
    drivers: Any = SimpleNamespace(limit=3, count_running=lambda: work["jobs"])
    beats = ProcessRecorder(services, "worker", worker, drivers)
    beats.start()
    process = catalog.wait(0)
    assert (process.kind, process.pid, process.threads, process.drivers) == ("worker", os.getpid(), 2, 3)
    assert not process.url  # workers answer no queries
    catalog.is_away = True
    work.update(transactions=2, jobs=1)
    time.sleep(0.05)
    assert catalog.wait(0).id == process.id
    catalog.is_away = False
    assert catalog.wait(3).id == process.id
    beats.stop(PATIENCE_SECONDS)
    assert catalog.store.list_processes() == []
