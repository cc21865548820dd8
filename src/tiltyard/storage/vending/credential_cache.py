"""Credentials for many callers: fetched once, renewed ahead of their end.

Whoever asks first for a folder fetches, and all who ask meanwhile wait for that one answer, be it an error. From half
of their life on, at most five minutes before the end, the next caller renews them while the others get those that are
still good.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from concurrent.futures import Future
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError

from tiltyard.storage.vending.vended_credentials import Credentials, Folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.storage.vending.vended_credentials import Vendor

log = logging.getLogger("tiltyard.storage")

RENEW_AHEAD_MS = 5 * 60 * 1000
"""How long before their end credentials are renewed at the latest."""
CLIENT_AHEAD_MS = 60 * 1000
"""How long before the end clients ask again: what Lance does by itself."""

_MOST_FOLDERS = 10_000
_PATIENCE_SECONDS = 60.0

Key = tuple[Folder, bool]


def refresh_offset(credentials: Credentials) -> int:
    """How many milliseconds before their end clients shall ask again; less than from when on the server renews."""
    return min(CLIENT_AHEAD_MS, (credentials.expires_at - credentials.issued_at) // 4)


class CredentialCache:
    """A vendor whose credentials are shared by all callers of this process. Safe to use from several threads."""

    def __init__(self, vendor: Vendor, clock: Callable[[], int]) -> None:
        self._vendor = vendor
        self._clock = clock
        self._known: OrderedDict[Key, Credentials] = OrderedDict()
        self._flights: dict[Key, Future[Credentials]] = {}
        self._lock = threading.Lock()

    def vend(self, folder: Folder, *, writable: bool) -> Credentials:
        """See Vendor."""
        key, now = (folder, writable), self._clock()
        with self._lock:
            known = self._known.get(key)
            if known is not None and now < known.expires_at - _renewal(known):
                self._known.move_to_end(key)
                return known
            flight = self._flights.get(key)
            first = flight is None
            if flight is None:
                flight = self._flights[key] = Future()
        good = known if known is not None and now < known.expires_at - refresh_offset(known) else None
        if first:
            return self._fetch(key, flight, good)
        return good or _awaited(flight)

    def _fetch(self, key: Key, flight: Future[Credentials], good: Credentials | None) -> Credentials:
        folder, writable = key
        try:
            found = self._vendor.vend(folder, writable=writable)
            with self._lock:
                self._known[key] = found
                self._known.move_to_end(key)
                if len(self._known) > _MOST_FOLDERS:
                    self._known.popitem(last=False)
            flight.set_result(found)
        except BaseException as error:
            flight.set_exception(error)
            if good is None or not isinstance(error, LanceNamespaceError):
                raise
            log.warning("credentials cannot be renewed yet, those handed out are still good: %s", error)
            return good
        finally:
            with self._lock:
                del self._flights[key]
        return found


def _renewal(credentials: Credentials) -> int:
    """How many milliseconds before their end credentials are renewed."""
    return min(RENEW_AHEAD_MS, (credentials.expires_at - credentials.issued_at) // 2)


def _awaited(flight: Future[Credentials]) -> Credentials:
    try:
        return flight.result(_PATIENCE_SECONDS)
    except TimeoutError as error:
        raise ServiceUnavailableError("The storage's provider does not answer: try again in a moment.") from error
