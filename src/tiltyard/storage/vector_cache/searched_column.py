"""One vector column that is searched: its index in memory, and the rows of each version, by what fragments hold."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from tiltyard.storage.caches.recent_uses import RecentUses
from tiltyard.storage.vector_cache.allowed_rows import Allowed
from tiltyard.storage.vector_cache.fragments import Array, Block, Fragment, live_offsets, read_fragments, read_vectors
from tiltyard.storage.vector_cache.scalar_columns import ScalarColumns
from tiltyard.storage.vector_cache.searchable_rows import OtherRows, SearchableRows

if TYPE_CHECKING:
    import lance

    from tiltyard.storage.caches.column_cache import BranchKey
    from tiltyard.storage.vector_cache.index import MemoryIndex

SEARCHES = 3
"""Searches within a minute for which an index is built."""
SPARE_ROWS = 2048
"""Rows for which an index has room besides an eighth of its own; that many may be outside of a small one, too."""
MAX_OTHER_ROWS = 20_000
"""Rows outside of an index up to which each search computes their distances, if they are no more than an eighth."""
COPIES = 2
"""Copies of rows outside of an index: by fragment, and those of the latest version together."""


@dataclass(frozen=True, slots=True)
class VectorKey:
    """The vectors of a branch of a table with a distance type, `l2` or `cosine`."""

    table: BranchKey
    column: str
    dimension: int
    metric: str


class IndexOutdatedError(Exception):
    """A version shares too little with the index."""


@dataclass(slots=True)
class SearchedColumn:
    """What is known of one column. `blocks` are the rows of `index`; `others` were read for the latest version."""

    key: VectorKey
    searches: RecentUses = field(default_factory=lambda: RecentUses(SEARCHES))
    searched_at: float = field(default_factory=monotonic)
    state: str = "too few searches yet"
    retry_at: float = 0.0
    building_bytes: int = 0
    """What the build that runs takes."""
    is_working: bool = False
    is_loading: bool = False
    """Whether the values of columns are read."""
    is_dropped: bool = False
    index: MemoryIndex | None = None
    blocks: dict[tuple[int, str], Block] = field(default_factory=dict)
    others: dict[tuple[int, str], Block] = field(default_factory=dict)
    masks: dict[tuple[int, str], tuple[str, Array]] = field(default_factory=dict)
    columns: ScalarColumns = field(default_factory=lambda: ScalarColumns(SEARCHES))
    versions: weakref.WeakKeyDictionary[lance.LanceDataset, SearchableRows] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def reserved(self) -> int:
        """Bytes in memory, with those of all rows that may be outside of the index before it is built anew."""
        if self.index is None:
            return self.size
        others = COPIES * 4 * self.key.dimension * max_other_rows(self.index.capacity)
        return max(self.size, self.index.size + others + self.columns.size)

    @property
    def size(self) -> int:
        """Bytes in memory."""
        others = sum(block.vectors.nbytes for block in list(self.others.values()) if block.vectors is not None)
        masks = sum(mask.nbytes for _, mask in list(self.masks.values()))
        index = 0 if self.index is None else self.index.size
        return self.building_bytes + COPIES * others + masks + index + self.columns.size

    def drop_index(self, state: str) -> None:
        """Forget all rows."""
        self.index, self.state = None, state
        self.blocks, self.others, self.masks = {}, {}, {}
        self.columns.forget_values()
        self.versions.clear()

    def rows_of(self, dataset: lance.LanceDataset, index: MemoryIndex) -> SearchableRows:
        """Return the rows of a version; read once. Raises IndexOutdatedError, UnsupportedVectorsError."""
        rows = self.versions.get(dataset)
        if rows is None or rows.index is not index:
            rows = self.versions[dataset] = self._read_rows(dataset, index)
        return rows

    def _read_rows(self, dataset: lance.LanceDataset, index: MemoryIndex) -> SearchableRows:
        fragments = read_fragments(dataset)
        keys = {fragment.key for fragment in fragments}
        self.others = {key: block for key, block in self.others.items() if key in keys}
        self.masks = {key: mask for key, mask in self.masks.items() if key in keys}
        positions: Array = np.zeros(index.capacity, dtype=bool)
        indexed: dict[int, tuple[Block, Array]] = {}
        others: list[tuple[Block, Array]] = []
        remaining = max_other_rows(index.capacity)
        for fragment in fragments:
            block, mask = self._block_and_mask(dataset, fragment, remaining)
            if block.vectors is None:
                positions[block.start : block.start + len(mask)] = mask
                indexed[fragment.number] = block, mask
            else:
                others.append((block, mask))
                remaining -= fragment.physical_rows
        count = int(positions.sum())
        if 2 * count < index.rows:
            raise IndexOutdatedError
        rows = OtherRows.of(others, self.key.dimension)
        live = Allowed.of(positions, np.ones(len(rows), dtype=bool))
        return SearchableRows(index, fragments, indexed, rows, live)

    def _block_and_mask(self, dataset: lance.LanceDataset, fragment: Fragment, max_rows: int) -> tuple[Block, Array]:
        """Return the block of a fragment, and which of its rows a version has; at most `max_rows` rows are read."""
        known = self.blocks.get(fragment.key) or self.others.get(fragment.key)
        if known is not None:
            deletions, mask = self.masks.get(fragment.key, ("", None))
            if mask is None or deletions != fragment.deletions or len(mask) != len(known.offsets):
                mask = known.mask_of(live_offsets(dataset, fragment))
            if mask is not None:
                self.masks[fragment.key] = fragment.deletions, mask
                return known, mask
        # The fragment is not in memory, or a row of it is back that was deleted when it was read.
        if fragment.physical_rows > max_rows:
            raise IndexOutdatedError
        parts = list(read_vectors(dataset, fragment, self.key.column, normalize=self.key.metric == "cosine"))
        none = np.zeros(0, dtype=np.uint32)
        block = Block(
            fragment,
            np.concatenate([none, *(offsets for offsets, _, _ in parts)]),
            np.concatenate([none, *(nulls for _, _, nulls in parts)]),
            vectors=np.concatenate(
                [np.zeros((0, self.key.dimension), dtype=np.float32), *(vectors for _, vectors, _ in parts)]
            ),
        )
        self.others[fragment.key] = block
        self.masks.pop(fragment.key, None)
        self.blocks.pop(fragment.key, None)
        return block, np.ones(len(block.offsets), dtype=bool)


def max_other_rows(capacity: int) -> int:
    """Return how many rows may be outside of an index with room for so many."""
    return min(MAX_OTHER_ROWS, capacity // 8 + SPARE_ROWS)


def room_for(rows: int) -> int:
    """Return for how many rows an index of so many has room."""
    return rows + rows // 8 + SPARE_ROWS
