"""Cache vended credentials: fetch them once for concurrent callers, and renew them before they expire.

The first caller for a folder fetches, and concurrent callers wait for its result, also if it is an error. From half of
their lifetime on, at most five minutes before expiry, the next caller renews them, while the others get the cached
ones.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError

from tiltyard.runtime.cache import Cache
from tiltyard.storage.vending.vendor import Folder, VendedCredentials

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.storage.vending.vendor import Vendor

log = logging.getLogger("tiltyard.storage")

RENEW_AHEAD_MS = 5 * 60 * 1000
"""How long before their expiry the server renews credentials, at most."""
CLIENT_AHEAD_MS = 60 * 1000
"""How long before their expiry clients request new ones: Lance's own default."""

_MAX_FOLDERS = 10_000
_WAIT_SECONDS = 60.0

Key = tuple[Folder, bool]


def refresh_offset(credentials: VendedCredentials) -> int:
    """Return how many milliseconds before expiry clients request new credentials: later than the server renews them."""
    return min(CLIENT_AHEAD_MS, (credentials.expires_at - credentials.issued_at) // 4)


class CredentialCache:
    """A vendor whose credentials all callers of this process share. Safe to use from several threads."""

    def __init__(self, vendor: Vendor, clock: Callable[[], int]) -> None:
        self._vendor = vendor
        self._clock = clock
        self._credentials: Cache[Key, VendedCredentials] = Cache(
            "credentials",
            "Storage credentials of tables' folders for clients, and for tables of mounts with the clients they opened",
            max_entries=_MAX_FOLDERS,
            invalidated_by="half of their lifetime, five minutes before their end at most",
        )
        self._pending: dict[Key, Future[VendedCredentials]] = {}
        self._lock = threading.Lock()

    def vend(self, folder: Folder, *, writable: bool) -> VendedCredentials:
        key, now = (folder, writable), self._clock()
        with self._lock:
            cached = self._credentials.get(key)
            if cached is not None and now < cached.expires_at - _renewal_offset(cached):
                return cached
            pending = self._pending.get(key)
            is_first = pending is None
            if pending is None:
                pending = self._pending[key] = Future()
        valid = cached if cached is not None and now < cached.expires_at - refresh_offset(cached) else None
        if is_first:
            return self._fetch(key, pending, valid)
        return valid or _wait_for(pending)

    def _fetch(
        self, key: Key, pending: Future[VendedCredentials], valid: VendedCredentials | None
    ) -> VendedCredentials:
        """Fetch credentials for all waiting callers; where that fails, return cached ones that are still valid."""
        folder, writable = key
        try:
            credentials = self._vendor.vend(folder, writable=writable)
            self._credentials.put(key, credentials)
            pending.set_result(credentials)
        except BaseException as error:
            pending.set_exception(error)
            if valid is None or not isinstance(error, LanceNamespaceError):
                raise
            log.warning("credentials cannot be renewed yet, the cached ones are still valid: %s", error)
            return valid
        finally:
            with self._lock:
                del self._pending[key]
        return credentials


def _renewal_offset(credentials: VendedCredentials) -> int:
    """Return how many milliseconds before expiry the server renews credentials."""
    return min(RENEW_AHEAD_MS, (credentials.expires_at - credentials.issued_at) // 2)


def _wait_for(pending: Future[VendedCredentials]) -> VendedCredentials:
    try:
        return pending.result(_WAIT_SECONDS)
    except TimeoutError as error:
        raise ServiceUnavailableError("The storage's provider does not respond: try again in a moment.") from error
