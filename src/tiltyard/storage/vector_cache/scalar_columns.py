"""Keep the values of columns that filters name often, beside the vectors of a table, to find a filter's rows in memory.

Data files never change: a version that appends or deletes rows costs no more than the values of its new fragments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

from tiltyard.storage.caches.recent_uses import RecentUses

if TYPE_CHECKING:
    import pyarrow as pa

    from tiltyard.storage.vector_cache.fragments import Fragment
    from tiltyard.storage.vector_cache.scalar_values import ScalarColumn, ScalarPage

_MAX_COLUMNS = 64
"""Columns of a table whose filters are counted."""
_READING_BYTES_OF_ROW = 48
_READING_COPIES = 3

_Pages = Mapping[tuple[int, str], "ScalarPage"]


class NoRoomError(Exception):
    """The values of a column do not fit; the message says where."""


def reading_bytes(rows: int, size: int) -> int:
    """Return what it takes for a moment to put the values of so many rows in order, of which `size` bytes were read."""
    return _READING_BYTES_OF_ROW * rows + _READING_COPIES * size


@dataclass(slots=True)
class KeptColumn:
    """A column that filters named: its values by fragment, or why they are not there. `pages` are never changed."""

    column: ScalarColumn
    uses: RecentUses
    used_at: float = field(default_factory=monotonic)
    pages: _Pages = field(default_factory=dict)
    state: str = "too few filters named it yet"
    retry_at: float = 0.0
    reading_bytes: int = 0
    """What the values take that are being read."""
    reading: Lock = field(default_factory=Lock)
    """Held by those who read values: one reads what all of them lack."""

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self.reading_bytes + sum(page.nbytes for page in self.pages.values())

    def missing(self, fragments: Iterable[Fragment]) -> list[Fragment]:
        """Return the fragments whose values are not in memory."""
        pages = self.pages
        return [fragment for fragment in fragments if fragment.key not in pages]

    def forget_values(self, state: str, retry_at: float = 0.0) -> None:
        """Drop the values, and read none until `retry_at`."""
        self.pages, self.state, self.retry_at = {}, state, retry_at


class ScalarColumns:
    """The columns of one table that filters named, the one named last at the end. Use it with a lock."""

    def __init__(self, uses: int) -> None:
        """`uses` within a minute are often."""
        self._uses = uses
        self._kept: dict[tuple[int, pa.DataType], KeptColumn] = {}

    @property
    def kept(self) -> Collection[KeptColumn]:
        return list(self._kept.values())

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return sum(kept.size for kept in self.kept)

    def get(self, column: ScalarColumn, *, is_counted: bool) -> KeptColumn:
        """Return what is kept of a column; where that is counted as a use, it is the one used last."""
        key = column.id, column.type
        kept = self._kept.get(key)
        if kept is None:
            kept = KeptColumn(column, RecentUses(self._uses))
        if is_counted:
            self._kept.pop(key, None)
            self._kept[key] = kept
            kept.used_at = monotonic()
            if len(self._kept) > _MAX_COLUMNS:
                del self._kept[next(iter(self._kept))]
        return kept

    def forget_values(self) -> None:
        """Drop the values of all columns."""
        for kept in self.kept:
            kept.forget_values("they are read again")

    def forget_unused(self, before: float) -> int:
        """Drop the values of columns that were used last before a time, by `monotonic`; return their bytes."""
        unused = {key: kept for key, kept in self._kept.items() if kept.used_at < before}
        for key in unused:
            del self._kept[key]
        return sum(kept.size for kept in unused.values())
