"""Keys of fragments that no index covers yet, in memory, so that looking up a few keys need not read all of these.

The keys of a fragment are all that its files have: those of deleted rows, too. So a key that is not here is in none of
the fragments, and one that is here may be in one, which a query decides.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    Key = tuple[Hashable, ...]


MOST_KEYS = 200_000
"""Keys of one table, and of all tables of a process: some tens of megabytes."""
_MOST_STALE = 256
"""Fragments of a table that are remembered although they are indexed, compacted or deleted by now."""


@dataclass(slots=True)
class _TableKeys:
    files: set[str] = field(default_factory=set)
    keys: set[Key] = field(default_factory=set)


class RecentKeys:
    """Keys by table and, in one, by file. `scope` names a declaration of a key. Thread-safe."""

    def __init__(self) -> None:
        self._tables: OrderedDict[str, _TableKeys] = OrderedDict()
        self._lock = threading.Lock()

    def missing(self, scope: str, files: Sequence[str]) -> list[str]:
        """Return the files whose keys are not here; those of files that are not named any more are dropped in time."""
        with self._lock:
            table = self._tables.get(scope)
            if table is None:
                return list(files)
            if len(table.files) > len(files) + _MOST_STALE:
                del self._tables[scope]
                return list(files)
            self._tables.move_to_end(scope)
            return [file for file in files if file not in table.files]

    def add(self, scope: str, files: Iterable[str], keys: Iterable[Key]) -> None:
        """Add the keys of files, all of them; the least recently used tables are dropped where there are too many."""
        with self._lock:
            table = self._tables.setdefault(scope, _TableKeys())
            table.files.update(files)
            table.keys.update(keys)
            total = sum(len(other.keys) for other in self._tables.values())
            while total > MOST_KEYS and self._tables:
                total -= len(self._tables.popitem(last=False)[1].keys)

    def may_have(self, scope: str, files: Iterable[str], keys: Iterable[Key]) -> bool:
        """Return whether one of the keys may be in one of the files; True for files whose keys are not here."""
        with self._lock:
            table = self._tables.get(scope)
            return table is None or not table.files.issuperset(files) or not table.keys.isdisjoint(keys)
