"""Find the mount that an id is below; follow the changes that other servers make to the mounts."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError

from tiltyard.model.ids import Id
from tiltyard.mounts.registry.mount import Mount
from tiltyard.runtime.pool import submit_shared
from tiltyard.store import FRESH_SECONDS, MOUNTS_GENERATION

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tiltyard.storage.vending.vendor import VendedCredentials
    from tiltyard.store import Store

log = logging.getLogger("tiltyard.mounts")


class Mounts:
    """All mounts. Safe to use from several threads; `find` neither waits nor reads the catalog."""

    def __init__(self, store: Store, check_foreign: Callable[[str], None]) -> None:
        """Read the mounts. `check_foreign` is `Roots.check_foreign`. Raises ServiceUnavailableError."""
        self._store = store
        self._check_foreign = check_foreign
        self._lock = threading.Lock()
        self._mounts: dict[Id, Mount] = {}
        self._deepest = 0
        self.vends_credentials = False
        """Whether any mount's tables are opened with credentials of its catalog."""
        self._generation = -1
        self._check_at = 0.0
        self._is_checking = False
        self.refresh()

    def find(self, path: Sequence[str]) -> tuple[Mount, Id] | None:
        """Return the mount that an object is, or is below, and its id relative to that; None if it is in this catalog.

        A change by another server is known within FRESH_SECONDS, or with the next call after a pause.
        """
        if time.monotonic() >= self._check_at:
            self._check_later()
        if not self._mounts:  # most servers have none, and each request asks
            return None
        for depth in range(1, min(len(path), self._deepest) + 1):
            mount = self._mounts.get(Id(path[:depth]))
            if mount is not None:
                return mount, Id(path[depth:])
        return None

    def by_id(self, mount_id: int) -> Mount | None:
        """Return a mount by the id of its namespace."""
        return next((mount for mount in self._mounts.values() if mount.id == mount_id), None)

    def server_credentials(self, location: str) -> VendedCredentials | None:
        """Return what the catalog that has a table at a location vends for it, to write; None for all other tables."""
        for mount in self._mounts.values():
            if mount.record.vends_credentials and (vended := mount.vend_credentials(location, writable=True)):
                return vended
        return None

    def all(self) -> list[Mount]:
        """Return all mounts, by path."""
        return [self._mounts[path] for path in sorted(self._mounts)]

    def refresh(self) -> None:
        """Read the mounts again if any was changed. Raises ServiceUnavailableError."""
        with self._lock:
            self._check_at = time.monotonic() + FRESH_SECONDS
            generation = self._store.generation(MOUNTS_GENERATION)
            if generation == self._generation:
                return
            records = {Id(record.path): record for record in self._store.list_mounts()}
            before = self._mounts
            self._mounts = {
                path: kept
                if (kept := before.get(path)) is not None and kept.record == record
                else Mount(record, self._store, self._check_foreign)
                for path, record in records.items()
            }
            self._deepest = max(map(len, records), default=0)
            self.vends_credentials = any(record.vends_credentials for record in records.values())
            self._generation = generation
            for mount in before.values():
                if mount not in self._mounts.values():
                    mount.retire()

    def close(self) -> None:
        """Close all backends."""
        self._is_checking = True  # so that no check begins
        with self._lock:
            mounts, self._mounts, self._deepest = self._mounts, {}, 0
        for mount in mounts.values():
            mount.close()

    def _check_later(self) -> None:
        """Refresh in the thread: the catalog may be slow, and callers do not wait for it."""
        self._check_at = time.monotonic() + FRESH_SECONDS
        if not self._is_checking:
            self._is_checking = True
            submit_shared(self._check)

    def _check(self) -> None:
        try:
            self.refresh()
        except LanceNamespaceError as error:
            log.warning("cannot read the mounts: %s", error)
        finally:
            self._is_checking = False
