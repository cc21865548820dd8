"""Share look-ups: those of one key that are under way at once, and their results for as long as they are fresh.

Errors that say that something is not there are results too. For catalogs whose lists are names, where each table has to
be loaded to know whether it is Lance's, lists share these loads (`TableFormats`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from lance_namespace.errors import NamespaceNotFoundError, TableNotFoundError

from tiltyard.model.ids import Id
from tiltyard.runtime.cache import FOREVER, Cache
from tiltyard.runtime.pool import run_together

T = TypeVar("T")

MAX_RESULTS = 20_000
"""Of one mount, or tables whose formats are known of one catalog: a kilobyte or two each."""


@dataclass(slots=True)
class _Lookup:
    future: Future[Any]
    began_at: float


class LookupCache:
    """The results of the last look-ups of a catalog. Thread-safe.

    A result is fresh for `max_age` seconds from when its look-up began: the other catalog may have changed since then.
    """

    def __init__(self, max_age: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_age = max_age
        self._clock = clock
        self._lock = threading.Lock()
        self._lookups: Cache[Hashable, _Lookup] = Cache(
            "mount look-ups",
            "What catalogs behind mounts answered, shared by callers at once, errors of missing objects included",
            max_entries=MAX_RESULTS,
            seconds=max_age,
            clock=clock,
            invalidated_by="a change by this process: of a format, that table's; below a mount, any",
        )

    def get(self, key: Hashable, look_up: Callable[[], T]) -> T:
        """Return the result of a look-up, one that is under way or fresh if there is one. Raises what it raises."""
        with self._lock:
            found = self._lookups.get(key)
            if found is not None and (not found.future.done() or self._is_fresh(found)):
                is_own = False
            else:
                is_own = True
                found = _Lookup(Future(), self._clock())
                self._lookups.put(key, found, FOREVER)
        if not is_own:
            return cast("T", found.future.result())
        try:
            result = look_up()
        except BaseException as error:
            found.future.set_exception(error)
            if not isinstance(error, NamespaceNotFoundError | TableNotFoundError):
                self._remove(key, found)
            raise
        found.future.set_result(result)
        return result

    def peek(self, key: Hashable) -> Any:
        """Return a fresh result, without any waiting; None if there is none."""
        found = self._lookups.get(key)
        if found is None or not found.future.done() or not self._is_fresh(found) or found.future.exception():
            return None
        return found.future.result()

    def remember(self, key: Hashable, result: object) -> None:
        """Note a result that is known without a look-up."""
        known = _Lookup(Future(), self._clock())
        known.future.set_result(result)
        self._lookups.put(key, known)

    def forget(self, key: Hashable) -> None:
        """Forget the result of a key."""
        self._lookups.pop(key)

    def clear(self) -> None:
        """Forget all results, also those of look-ups under way, for later callers: something was changed."""
        with self._lock:
            self._lookups.clear()

    def _is_fresh(self, lookup: _Lookup) -> bool:
        return self._clock() - lookup.began_at < self._max_age

    def _remove(self, key: Hashable, lookup: _Lookup) -> None:
        with self._lock:
            if self._lookups.get(key) is lookup:
                self._lookups.pop(key)


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
        self._known = LookupCache(seconds, monotonic)

    def are_lance(self, tables: Sequence[Id]) -> list[bool]:
        """Return for each table whether it is Lance's; of those that are gone by now, False. Raises as loading does."""
        known = {table: is_lance for table in tables if (is_lance := self._known.peek(table)) is not None}
        unknown = [table for table in tables if table not in known]
        known.update(zip(unknown, run_together(self._find_format, unknown, self._threads), strict=True))
        return [known[table] for table in tables]

    def add(self, table: Id) -> None:
        """Note that a table is Lance's."""
        self._known.remember(table, True)

    def forget(self, table: Id) -> None:
        """Forget a table that is dropped or renamed."""
        self._known.forget(table)

    def _find_format(self, table: Id) -> bool:
        return self._known.get(table, lambda: self._is_lance(table))

    def _is_lance(self, table: Id) -> bool:
        try:
            self._load(table)
        except TableNotFoundError:
            return False
        return True
