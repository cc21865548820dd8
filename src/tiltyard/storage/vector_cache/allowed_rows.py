"""The rows of an index that a version has or a filter allows, with the codes of those alone if searched often."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tiltyard.storage.vector_cache.fragments import Array

_FEW = 20
"""Part of all positions up to which those of the rows are kept; they take less than a bitmap then."""


@dataclass(frozen=True, slots=True)
class CodeLists:
    """Codes of the rows that a filter allows, in FAISS's lists: one of all rows, or one of each partition."""

    lists: Any
    nbytes: int
    is_whole: bool


@dataclass(slots=True, eq=False, weakref_slot=True)
class Allowed:
    """Rows that a search may return: their number in the index, and which they are there, and which of the other rows.

    Of few rows there are the positions, ascending; of more, a bitmap of all positions in the index.
    """

    rows: int
    others: Array
    capacity: int
    _positions: Array | None
    _bitmap: Array | None
    counts: Array | None = None
    """How many of them each partition has, once a search has needed it."""
    packed: CodeLists | None = None
    """The codes of these rows alone, once they were searched often."""
    is_packing: bool = False
    searches: int = 0
    searched_at: float = field(default_factory=monotonic)

    @classmethod
    def of(cls, mask: Array, others: Array) -> Allowed:
        """Return the rows of masks, of all positions in the index and of the other rows."""
        rows, capacity = int(np.count_nonzero(mask)), len(mask)
        if rows <= capacity // _FEW:
            return cls(rows, others, capacity, np.flatnonzero(mask).astype(np.uint32), None)
        return cls(rows, others, capacity, None, np.packbits(mask, bitorder="little"))

    def find_positions(self) -> Array:
        """Return the positions, as FAISS takes them."""
        if self._bitmap is None:
            assert self._positions is not None
            return self._positions.astype(np.int64)
        return np.flatnonzero(np.unpackbits(self._bitmap, bitorder="little"))

    def find_bitmap(self) -> Array:
        """Return a bit for each position in the index, the first of a byte in its lowest bit."""
        if self._bitmap is not None:
            return self._bitmap
        mask = np.zeros(self.capacity, dtype=bool)
        mask[self._positions] = True
        return np.packbits(mask, bitorder="little")

    def count_searches(self, number: int) -> None:
        """Count searches of these rows."""
        self.searches += number
        self.searched_at = monotonic()

    def forget_packed(self) -> None:
        """Drop the codes of these rows, until they are searched often again."""
        self.packed, self.is_packing, self.searches = None, False, 0
