"""Which of a namespace's tables are Lance's, for catalogs whose lists are names: each has to be loaded to know."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from lance_namespace.errors import TableNotFoundError

from tiltyard.model.ids import Id
from tiltyard.runtime.cache import Cache
from tiltyard.runtime.pool import run_together

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
        self._threads = threads
        self._known: Cache[Id, bool] = Cache(
            "table formats",
            "Which tables of a catalog without formats in its lists are Lance's",
            max_entries=MAX_REMEMBERED,
            seconds=seconds,
            clock=monotonic,
            invalidated_by="a drop or rename by this process",
        )

    def are_lance(self, tables: Sequence[Id]) -> list[bool]:
        """Return for each table whether it is Lance's; of those that are gone by now, False. Raises as loading does."""
        known = {table: is_lance for table in tables if (is_lance := self._known.get(table)) is not None}
        unknown = [table for table in tables if table not in known]
        for table, is_lance in zip(unknown, run_together(self._is_lance, unknown, self._threads), strict=True):
            self.remember(table, is_lance=is_lance)
            known[table] = is_lance
        return [known[table] for table in tables]

    def remember(self, table: Id, *, is_lance: bool) -> None:
        """Note what a table is known to be."""
        self._known.put(table, is_lance)

    def forget(self, table: Id) -> None:
        """Forget a table that is dropped or renamed."""
        self._known.pop(table)

    def _is_lance(self, table: Id) -> bool:
        try:
            self._load(table)
        except TableNotFoundError:
            return False
        return True
