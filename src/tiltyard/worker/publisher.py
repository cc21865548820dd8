"""The publisher: syncs the publications that are due, several at once, so that a catalog that hangs delays no other.

Any number of workers may do that on one catalog: the one that holds a publication's lease syncs it.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING
from uuid import uuid4

from lance_namespace.errors import ServiceUnavailableError

from tiltyard.catalog.mounts.publication_sync import LEASE_MS, is_due, sync
from tiltyard.context import Context
from tiltyard.model.principals import SERVER

if TYPE_CHECKING:
    from tiltyard.context import Services
    from tiltyard.store import PublicationRecord

PUBLICATIONS_AT_ONCE = 4
_PAGE = 1000


class Publisher:
    """Starts what is due whenever `start_due` is called, by one thread."""

    def __init__(self, services: Services, stopping: threading.Event) -> None:
        self._services = services
        self._stopping = stopping
        self._running: dict[int, threading.Thread] = {}

    def start_due(self) -> None:
        """Start to sync the publications that are due. Raises ServiceUnavailableError."""
        store = self._services.store
        publications = store.list_publications(None, _PAGE)
        if not publications:
            return
        fingerprint, now = store.tables_fingerprint(), self._services.clock()
        for publication in publications:
            is_free = publication.lease_until <= now and publication.id not in self._running
            if is_free and len(self._running) < PUBLICATIONS_AT_ONCE and is_due(publication, fingerprint, now):
                thread = threading.Thread(target=self._sync, args=(publication,), name="publication", daemon=True)
                self._running[publication.id] = thread
                thread.start()

    def stop(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for what runs, which ends at the next table: another worker goes on with it."""
        deadline = time.monotonic() + timeout
        for thread in list(self._running.values()):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _sync(self, publication: PublicationRecord) -> None:
        owner = uuid4().hex
        try:
            claimed = self._services.store.claim_publication(publication.id, owner, LEASE_MS)
            if claimed is not None:
                ctx = Context(self._services, f"publication {publication.name}", principal=SERVER)
                sync(ctx, claimed, owner, self._stopping.is_set)
        except ServiceUnavailableError as error:  # of our own database; the lease ends by itself
            self._services.outage_log.report(error)
        finally:
            del self._running[publication.id]
