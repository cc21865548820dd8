"""Where operations run that may not run on the event loop: one pool of threads for each kind of work.

Kinds do not wait for each other: a hundred slow uploads leave the catalog answering, and queries get as many threads
as the processors can feed (`docs/architecture.md` has the measurement).
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from tiltyard.model.spec import Operation, Shape

CATALOG_THREADS = 32
WRITE_THREADS = 64
IDENTITY_THREADS = 4
"""Few: a flood of keys that nobody has must not take the threads, and the database, from those who have one."""


class Threads:
    """The pools of one process."""

    def __init__(self) -> None:
        processors = os.cpu_count() or 1
        self.catalog = ThreadPoolExecutor(CATALOG_THREADS, "catalog")
        self.identity = ThreadPoolExecutor(IDENTITY_THREADS, "identity")
        self._queries = ThreadPoolExecutor(max(8, 4 * processors), "query")
        self._writes = ThreadPoolExecutor(WRITE_THREADS, "write")
        self._pools = {
            "catalog": self.catalog,
            "identity": self.identity,
            "queries": self._queries,
            "writes": self._writes,
        }

    def of(self, operation: Operation) -> ThreadPoolExecutor:
        """The pool for an operation: uploads and other changes of data wait for each other, so they get the most."""
        if operation.request_shape is Shape.ARROW or operation.name in ("UpdateTable", "DeleteFromTable"):
            return self._writes
        return self._queries if "Data" in operation.tags else self.catalog

    def waiting(self) -> dict[str, float]:
        """How much waits for a thread of each pool."""
        return {f"{name} waiting for a thread": pool._work_queue.qsize() for name, pool in self._pools.items()}

    def close(self) -> None:
        """Start nothing more. The server has drained by now: what still runs is not waited for."""
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
