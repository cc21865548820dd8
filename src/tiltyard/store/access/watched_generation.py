"""Follow a generation of the catalog: what was cached of it is dropped on every server soon after a change.

Each change of what a generation counts (grants, identities, protections) counts it up in the same transaction. A server
reads it every FRESH_SECONDS that it is asked, and at once after a change of its own.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from lance_namespace.errors import ServiceUnavailableError

from tiltyard.store.repository import FRESH_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.store import Store


class WatchedGeneration:
    """A generation as it was read last. Thread-safe: of callers at once one reads it, and the others wait for that."""

    def __init__(self, store: Store, name: str, changed: Callable[[], object], *, pause_seconds: float = 0.0) -> None:
        """`changed` is called with each new generation, before any caller gets that, and first of all with the first.

        It may read the catalog; what it raises is raised to the caller, and it is called again. For `pause_seconds`
        after the catalog could not be read, callers are refused without another try.
        """
        self._store = store
        self._name = name
        self._changed = changed
        self._pause_seconds = pause_seconds
        self._number = -1
        self._check_at = 0.0
        self._unavailable: tuple[float, str] | None = None
        self._checking = threading.Lock()

    @property
    def number(self) -> int:
        """The generation that was read last, which may be old by now; -1 before the first."""
        return self._number

    @property
    def is_fresh(self) -> bool:
        """Whether it was read within FRESH_SECONDS: what is cached of it may be used."""
        return time.monotonic() < self._check_at

    def current(self) -> int:
        """Return the generation, read again where it is not fresh. Raises ServiceUnavailableError, and what `changed`
        raises.

        Who keeps what was read afterwards, keeps it under this number: a change meanwhile has another one.
        """
        if time.monotonic() >= self._check_at:
            self._check()
        return self._number

    def refresh_next(self) -> None:
        """Read it at the next call: this server has made a change."""
        with self._checking:  # a check under way may have read the generation before
            self._check_at = 0.0

    def _check(self) -> None:
        with self._checking:
            now = time.monotonic()
            if now < self._check_at:
                return  # another thread has read it meanwhile
            number = self._read(now)
            if number != self._number:
                self._changed()
                self._number = number
            self._check_at = now + FRESH_SECONDS

    def _read(self, now: float) -> int:
        if self._unavailable is not None and now < self._unavailable[0]:
            raise ServiceUnavailableError(self._unavailable[1])
        try:
            number = self._store.generation(self._name)
        except ServiceUnavailableError as error:
            self._unavailable = time.monotonic() + self._pause_seconds, str(error)
            raise
        self._unavailable = None
        return number
