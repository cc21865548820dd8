"""Records of processes: each server and worker writes into the catalog that it is alive.

People who look after it see them, and servers share out tables by them (`catalog/table_servers`). Nothing that has to
be right depends on them: who may run a transaction is a matter of leases.
"""

from __future__ import annotations

import os
import socket
import threading
import uuid
from typing import TYPE_CHECKING, Literal

import msgspec

from tiltyard import __version__
from tiltyard.store import ProcessRecord
from tiltyard.worker.runner import run_step

if TYPE_CHECKING:
    from tiltyard.context import Services
    from tiltyard.worker.drivers import DriverPool
    from tiltyard.worker.runner import Worker

INTERVAL_SECONDS = 15.0
"""How often a process writes: a row, in a transaction of its own."""


class ProcessRecorder:
    """Record that this process is alive, from `start` until `stop`."""

    def __init__(
        self,
        services: Services,
        kind: Literal["server", "worker"],
        worker: Worker,
        drivers: DriverPool | None,
    ) -> None:
        """Prepare the record of a process that has this worker, and drivers of jobs if any."""
        self._services = services
        self._worker = worker
        self._drivers = drivers
        now, settings = services.clock(), services.settings
        vectors = settings.vector_cache_bytes
        self._record = ProcessRecord(
            id=uuid.uuid4().hex,
            kind=kind,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            threads=worker.limit,
            drivers=0 if drivers is None else drivers.limit,
            running=0,
            started_at=now,
            seen_at=now,
            url=settings.server_url if kind == "server" else "",
            weight=1 if vectors == "auto" else max(vectors, 1),
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="process record", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Take the process away, within `timeout` seconds; else others do, once it has been silent for long."""
        self._stopping.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        outage_log = self._services.outage_log
        while not self._stopping.is_set():
            run_step(self._send, self._stopping, outage_log)
            self._stopping.wait(INTERVAL_SECONDS)
        run_step(lambda: self._services.store.delete_process(self._record.id), self._stopping, outage_log)

    def _send(self) -> None:
        jobs = 0 if self._drivers is None else self._drivers.count_running()
        running, now = self._worker.count_running() + jobs, self._services.clock()
        self._services.store.record_process(msgspec.structs.replace(self._record, running=running, seen_at=now))
