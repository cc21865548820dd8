"""Which of a namespace's tables are Lance's, for catalogs whose lists are names: each has to be loaded to know."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from lance_namespace.errors import TableNotFoundError

from tiltyard.model.ids import Id

MAX_REMEMBERED = 200_000
"""Tables: some 40 MB."""


class TableFormats:
    """Loads tables in parallel, and remembers for a while whether they are Lance's.

    Names are never remembered, so that a list is always the catalog's. What may be late for as long as formats are
    remembered is a table of another format that has taken the name of a dropped one.
    """

    def __init__(
        self,
        load: Callable[[Id], object],
        threads: int,
        seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`load` raises TableNotFoundError for a table of another format; `seconds` is how long that is remembered."""
        self._load = load
        self._seconds = seconds
        self._monotonic = monotonic
        self._threads = ThreadPoolExecutor(threads, "mount")
        self._lock = threading.Lock()
        self._remembered: dict[Id, tuple[bool, float]] = {}

    def are_lance(self, tables: Sequence[Id]) -> list[bool]:
        """Return for each table whether it is Lance's; of those that are gone by now, False. Raises as loading does."""
        now = self._monotonic()
        with self._lock:
            known = {table: verdict for table in tables if (verdict := self._verdict(table, now)) is not None}
        unknown = [table for table in tables if table not in known]
        for table, is_lance in zip(unknown, self._threads.map(self._is_lance, unknown), strict=True):
            self.remember(table, is_lance=is_lance)
            known[table] = is_lance
        return [known[table] for table in tables]

    def remember(self, table: Id, *, is_lance: bool) -> None:
        """Note what a table is known to be."""
        with self._lock:
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[table] = is_lance, self._monotonic() + self._seconds

    def forget(self, table: Id) -> None:
        """Forget a table that is dropped or renamed."""
        with self._lock:
            self._remembered.pop(table, None)

    def close(self) -> None:
        """Start no further loads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _verdict(self, table: Id, now: float) -> bool | None:
        is_lance, until = self._remembered.get(table, (False, now))
        return is_lance if now < until else None

    def _is_lance(self, table: Id) -> bool:
        try:
            self._load(table)
        except TableNotFoundError:
            return False
        return True
