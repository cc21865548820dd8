"""Hashes of keys of fragments that no index covers yet, in memory, so that a few keys are looked up without these.

The hashes of a fragment are those of all keys that its files have: of deleted rows, too. So a key whose hash is not
here is in none of the fragments, and one whose hash is here may be in one, which a query decides.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tiltyard.runtime.cache import CountedCache

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    Hashes = NDArray[np.uint64]


MAX_KEYS = 2_000_000
"""Keys of one table, and of all tables of a process: 16 MB."""
_MAX_STALE = 256
"""Fragments of a table that are remembered although they are indexed, compacted or deleted by now."""
_HASH_BYTES = 8
_RUN_RATIO = 4
"""A sorted run has more than so many times as many hashes as the next one, so few runs are searched."""


@dataclass(slots=True)
class _TableKeys:
    """Files, and the hashes of their keys in sorted runs, the largest first."""

    files: set[str] = field(default_factory=set)
    runs: list[Hashes] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(run.size for run in self.runs)

    def add(self, hashes: Hashes) -> None:
        merged = [hashes]
        while self.runs and self.runs[-1].size <= _RUN_RATIO * sum(run.size for run in merged):
            merged.append(self.runs.pop())
        if hashes.size:
            self.runs.append(np.sort(np.concatenate(merged)))

    def has_any(self, hashes: Hashes) -> bool:
        for run in self.runs:
            positions = np.minimum(np.searchsorted(run, hashes), run.size - 1)
            if (run[positions] == hashes).any():
                return True
        return False


class RecentKeys(CountedCache):
    """Hashes of keys by table and, in one, by file. `scope` names a declaration of a key. Thread-safe."""

    def __init__(self) -> None:
        self._tables: OrderedDict[str, _TableKeys] = OrderedDict()
        self._lock = threading.Lock()
        super().__init__(
            "recent keys",
            "Hashes of the keys of files that no index covers yet",
            max_bytes=MAX_KEYS * _HASH_BYTES,
            invalidated_by="files that are the table's no more",
        )

    @property
    def size(self) -> int:
        with self._lock:
            return sum(table.size for table in self._tables.values()) * _HASH_BYTES

    def missing(self, scope: str, files: Sequence[str]) -> list[str]:
        """Return the files whose keys are not here; those of files that are not named any more are dropped in time."""
        with self._lock:
            table = self._tables.get(scope)
            if table is None:
                return list(files)
            if len(table.files) > len(files) + _MAX_STALE:
                del self._tables[scope]
                return list(files)
            self._tables.move_to_end(scope)
            return [file for file in files if file not in table.files]

    def add(self, scope: str, files: Iterable[str], hashes: Hashes) -> None:
        """Add the keys of files, all of them; the least recently used tables are dropped where there are too many."""
        with self._lock:
            table = self._tables.setdefault(scope, _TableKeys())
            table.files.update(files)
            table.add(hashes)
            total = sum(other.size for other in self._tables.values())
            while total > MAX_KEYS and self._tables:
                total -= self._tables.popitem(last=False)[1].size

    def may_have(self, scope: str, files: Iterable[str], hashes: Hashes) -> bool:
        """Return whether one of the keys may be in one of the files; True for files whose keys are not here."""
        with self._lock:
            table = self._tables.get(scope)
            return table is None or not table.files.issuperset(files) or table.has_any(hashes)

    def close(self) -> None:
        with self._lock:
            self._tables.clear()
