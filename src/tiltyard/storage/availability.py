"""Know of the object stores in use whether they respond: while one does not, requests get 503 at once.

Lance waits for a store that keeps connections and sends nothing for minutes, and each wait holds a thread. So a store
that requests have used in the last seconds is asked for an object that is not there, and after two questions without
an answer all requests that need it get 503, until it answers again.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from tiltyard.runtime.outage_log import StorageUnavailableError
from tiltyard.runtime.pool import attempt

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger("tiltyard.storage")

PROBE_SECONDS = 2.0
"""How long between two questions to a store."""
IN_USE_SECONDS = 10.0
"""How long after a request a store is asked."""
MAX_FAILURES = 2
"""Questions without an answer after which a store is away."""
_PROBED = ".tiltyard-probe"
_STATUS = re.compile(r"status(?: code)?:? ?\d{3}")
"""Part of the text of an error that is a response of the store."""
_LIMITS = {"timeout": "3s", "connect_timeout": "3s"}


@dataclass(slots=True)
class _Store:
    """An object store, or a folder of it, and what is known of it."""

    location: str
    options: Mapping[str, str]
    used_at: float
    failures: int = 0
    error: Exception | None = None

    def probe(self) -> None:
        """Ask for an object that is not there. Raises BaseError where no answer comes."""
        import obstore  # noqa: PLC0415  # a local server needs none of it

        from tiltyard.model.settings.object_stores import open_object_store  # noqa: PLC0415

        store = open_object_store(self.location, {**self.options, **_LIMITS}, max_retries=0)
        try:
            obstore.head(store, _PROBED)
        except (FileNotFoundError, PermissionDeniedError, UnauthenticatedError):
            return  # an answer


class AvailabilityMonitor:
    """Asks stores in a thread, from `start` on. Thread-safe."""

    def __init__(self) -> None:
        self._stores: dict[str, _Store] = {}
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to ask the stores that are in use."""
        self._thread = threading.Thread(target=self._run, name="storage-monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._done.set()

    def check(self, location: str, options: Mapping[str, str]) -> None:
        """Note that a root is used. Raises StorageUnavailableError while its store does not respond."""
        if self._thread is None:
            return
        store = self._stores.get(location)
        if store is None:
            store = self._stores.setdefault(location, _Store(location, options, time.monotonic()))
        store.used_at = time.monotonic()
        if store.failures >= MAX_FAILURES:
            raise StorageUnavailableError(
                "The storage does not respond: try again in a moment.", location
            ) from store.error

    def _run(self) -> None:
        while not self._done.wait(PROBE_SECONDS):
            for store in list(self._stores.values()):
                if store.failures or store.used_at > time.monotonic() - IN_USE_SECONDS:
                    attempt(partial(self._ask, store))

    @staticmethod
    def _ask(store: _Store) -> None:
        try:
            store.probe()
        except (BaseError, OSError) as error:
            if _STATUS.search(str(error)):  # it is overloaded, or refuses: callers are told so by its own response
                store.failures = 0
                return
            store.error = error
            store.failures += 1
            if store.failures == MAX_FAILURES:
                log.warning("The storage of %s does not respond: requests that need it are refused.", store.location)
        else:
            if store.failures >= MAX_FAILURES:
                log.warning("The storage of %s responds again.", store.location)
            store.failures = 0
