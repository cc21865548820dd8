"""Share look-ups: those of one key that are under way at once, and their results for as long as they are fresh.

Errors that say that something is not there are results too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from lance_namespace.errors import NamespaceNotFoundError, TableNotFoundError

from tiltyard.runtime.cache import FOREVER, Cache

T = TypeVar("T")

MAX_RESULTS = 10_000


@dataclass(slots=True)
class _Lookup:
    future: Future[Any]
    began_at: float


class LookupCache:
    """The results of the last look-ups of a mount. Thread-safe.

    A result is fresh for `max_age` seconds from when its look-up began: the other catalog may have changed since then.
    """

    def __init__(self, max_age: float) -> None:
        self._max_age = max_age
        self._lock = threading.Lock()
        self._lookups: Cache[Hashable, _Lookup] = Cache(
            "mount look-ups",
            "What catalogs behind mounts answered, shared by callers at once, errors of missing objects included",
            max_entries=MAX_RESULTS,
            seconds=max_age,
            invalidated_by="a change below the mount by this process; the mount's max_age",
        )

    def get(self, key: Hashable, look_up: Callable[[], T]) -> T:
        """Return the result of a look-up, one that is under way or fresh if there is one. Raises what it raises."""
        with self._lock:
            found = self._lookups.get(key)
            if found is not None and (not found.future.done() or self._is_fresh(found)):
                is_own = False
            else:
                is_own = True
                found = _Lookup(Future(), time.monotonic())
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

    def clear(self) -> None:
        """Forget all results, also those of look-ups under way, for later callers: something was changed."""
        with self._lock:
            self._lookups.clear()

    def _is_fresh(self, lookup: _Lookup) -> bool:
        return time.monotonic() - lookup.began_at < self._max_age

    def _remove(self, key: Hashable, lookup: _Lookup) -> None:
        with self._lock:
            if self._lookups.get(key) is lookup:
                self._lookups.pop(key)
