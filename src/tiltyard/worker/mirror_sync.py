"""Sync the mirrors that are due, several at once, so that a catalog that hangs delays no other.

Any number of workers may do that on one catalog: the one that holds a mirror's lease syncs it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from lance_namespace.errors import ServiceUnavailableError

from tiltyard.catalog.mounts.mirror_sync import is_due, try_sync
from tiltyard.context import Context
from tiltyard.model.principals import SERVER

if TYPE_CHECKING:
    from tiltyard.context import Services
    from tiltyard.store import MirrorRecord

MIRRORS_AT_ONCE = 4
_PAGE = 1000


class MirrorSync:
    """Starts what is due whenever `start_due` is called, by one thread."""

    def __init__(self, services: Services, stopping: threading.Event) -> None:
        self._services = services
        self._stopping = stopping
        self._running: dict[int, threading.Thread] = {}

    def start_due(self) -> None:
        """Start to sync the mirrors that are due. Raises ServiceUnavailableError."""
        store = self._services.store
        mirrors = store.list_mirrors(None, _PAGE)
        if not mirrors:
            return
        fingerprint, now = store.tables_fingerprint(), self._services.clock()
        for mirror in mirrors:
            is_free = mirror.lease_until <= now and mirror.id not in self._running
            if is_free and len(self._running) < MIRRORS_AT_ONCE and is_due(mirror, fingerprint, now):
                thread = threading.Thread(target=self._sync, args=(mirror,), name="mirror", daemon=True)
                self._running[mirror.id] = thread
                thread.start()

    def stop(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for what runs, which ends at the next table: another worker goes on with it."""
        deadline = time.monotonic() + timeout
        for thread in list(self._running.values()):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _sync(self, mirror: MirrorRecord) -> None:
        ctx = Context(self._services, f"publication {mirror.name}", principal=SERVER)
        try:
            try_sync(ctx, mirror.id, self._stopping.is_set)
        except ServiceUnavailableError as error:  # of our own database; the lease ends by itself
            self._services.outage_log.report(error)
        finally:
            del self._running[mirror.id]
