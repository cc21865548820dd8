"""A graph of vectors in memory (HNSW of FAISS), and the search of those rows of it that a version has."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from tiltyard.storage.vector_cache.fragments import Array, Block

_LINKS = 16
_EF_CONSTRUCTION = 80
_EF_EXTENSION = 40
"""Candidates for the links of a row that is added while searches wait: half as long, and 0.99 of the nearest found."""
_EF_SEARCH = 96
"""Candidates of a search: of 300,000 overlapping vectors of 256 floats, all of the ten nearest are found, by 48 too."""
_MAX_EF = 4096
_SLOTS = 2 * _LINKS + 2
"""Links of a node, those of upper layers on average."""
_EXACT_SHARE = 0.05
_EXACT_ROWS = 4096
"""Up to this many allowed rows, or this share of all, distances to all allowed rows are computed."""


def bytes_of_row(dimension: int) -> int:
    """Return the bytes of a row: vector, links, level, offset of the links, address, place in a fragment, bitmaps."""
    return 4 * dimension + 4 * _SLOTS + 4 + 8 + 8 + 4 + 4


class MemoryIndex:
    """Vectors of a column with room for a fixed number of rows. Safe to use from several threads.

    Searches run at once; rows are added while no search runs, a few at a time.
    """

    def __init__(self, dimension: int, metric: str, capacity: int) -> None:
        import faiss  # noqa: PLC0415  # an extra, and loaded by the first index

        self._faiss = faiss
        self.metric = metric
        self.capacity = capacity
        self.dimension = dimension
        kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
        self._graph = cast("Any", faiss.IndexHNSWFlat(dimension, _LINKS, kind))
        self._graph.hnsw.efConstruction = _EF_CONSTRUCTION
        self._storage = cast("Any", faiss.downcast_index(self._graph.storage))
        for vector, size in ((self._storage.codes, 4 * dimension), (self._graph.hnsw.neighbors, _SLOTS)):
            vector.resize(capacity * size)  # keeps what it has allocated, so that rows never move
            vector.resize(0)
        self.addresses: Array = np.zeros(capacity, dtype=np.uint64)
        self._lock = _ReadWriteLock()

    @property
    def rows(self) -> int:
        return int(self._graph.ntotal)

    @property
    def size(self) -> int:
        """Bytes, the room for further rows included."""
        return self.capacity * bytes_of_row(self.dimension)

    def add(self, addresses: Array, vectors: Array, *, is_searched: bool = False) -> None:
        """Add rows, in the calling thread alone; sooner, and with fewer candidates, if searches wait for it."""
        with self._lock.write():
            self._faiss.omp_set_num_threads(1)
            self._graph.hnsw.efConstruction = _EF_EXTENSION if is_searched else _EF_CONSTRUCTION
            start = self.rows
            self.addresses[start : start + len(addresses)] = addresses
            self._graph.add(np.ascontiguousarray(vectors))

    def search(self, query: Array, count: int, allowed: Array, allowed_rows: int, ef: int) -> tuple[Array, Array]:
        """Return addresses and distances of the nearest among the rows in the bitmap `allowed`, nearest first."""
        faiss, share = self._faiss, allowed_rows / max(1, self.rows)
        selector = faiss.IDSelectorBitmap(allowed)
        points = query.reshape(1, -1)
        with self._lock.read():
            positions: Array = np.full(0, -1)
            if allowed_rows > max(_EXACT_ROWS, 4 * count) and share > _EXACT_SHARE:
                width = min(_MAX_EF, int(max(_EF_SEARCH, ef, 2 * count) * (1 if share > 0.9 else 2)))
                parameters = faiss.SearchParametersHNSW(efSearch=width, sel=selector)
                distances, positions = (found[0] for found in self._graph.search(points, count, params=parameters))
            if len(positions) == 0 or positions[-1] < 0:  # few rows, or the graph reached too few of them
                parameters = faiss.SearchParameters(sel=selector)
                distances, positions = (found[0] for found in self._storage.search(points, count, params=parameters))
        reached = positions >= 0
        distances, positions = distances[reached], positions[reached]
        return self.addresses[positions], distances if self.metric == "l2" else 1 - distances


@dataclass(frozen=True, slots=True)
class Allowed:
    """Rows that a search may return: a bitmap of positions in the index, their number, and a mask of the other rows."""

    bitmap: Array
    rows: int
    others: Array


@dataclass(frozen=True, slots=True)
class OtherRows:
    """Rows of a version that are not in the index yet: their addresses and vectors, in arrays of equal length."""

    addresses: Array
    vectors: Array

    def __len__(self) -> int:
        return len(self.addresses)

    @classmethod
    def of(cls, blocks: Sequence[tuple[Block, Array]], dimension: int) -> OtherRows:
        """Return the rows that masks select of blocks."""
        addresses, vectors = [np.zeros(0, np.uint64)], [np.zeros((0, dimension), np.float32)]
        for block, mask in blocks:
            assert block.vectors is not None
            addresses.append(block.offsets[mask].astype(np.uint64) + np.uint64(block.fragment.number << 32))
            vectors.append(block.vectors[mask])
        return cls(np.concatenate(addresses), np.concatenate(vectors))

    def nearest(self, query: Array, count: int, mask: Array, metric: str) -> tuple[Array, Array]:
        """Return addresses and distances of the nearest among the rows that a mask selects, nearest first."""
        import faiss  # noqa: PLC0415  # an extra; an index was loaded before

        every = bool(mask.all())
        addresses, vectors = (self.addresses, self.vectors) if every else (self.addresses[mask], self.vectors[mask])
        kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
        distances, places = faiss.knn(query.reshape(1, -1), vectors, min(count, len(vectors)), kind)
        return addresses[places[0]], distances[0] if metric == "l2" else 1 - distances[0]


@dataclass(frozen=True, slots=True)
class VersionRows:
    """The rows of one version: those in the index, and those of fragments that are not in it yet."""

    index: MemoryIndex
    indexed: dict[int, Block]
    others: OtherRows
    live: Allowed
    filters: dict[str, Allowed] = field(default_factory=dict)

    def allow(self, addresses: Array) -> Allowed:
        """Return what a filter allows, by the addresses of its rows in this version."""
        numbers, offsets = addresses >> np.uint64(32), (addresses & np.uint64(0xFFFF_FFFF)).astype(np.uint32)
        positions = np.zeros(self.index.capacity, dtype=bool)
        rows = 0
        for number, block in self.indexed.items():
            mask, count = block.select(offsets[numbers == number])
            positions[block.start : block.start + len(mask)] = mask
            rows += count
        others = np.isin(self.others.addresses, addresses)
        return Allowed(np.packbits(positions, bitorder="little"), rows, others)

    def search(self, query: Array, count: int, allowed: Allowed, ef: int) -> tuple[Array, Array]:
        """Return addresses and distances of the nearest rows, nearest first."""
        found = self.others.nearest(query, count, allowed.others, self.index.metric) if len(self.others) else None
        if found is None or not allowed.rows:
            addresses, distances = found or self.index.search(query, count, allowed.bitmap, allowed.rows, ef)
        else:
            indexed = self.index.search(query, count, allowed.bitmap, allowed.rows, ef)
            addresses, distances = (np.concatenate(column) for column in zip(indexed, found, strict=True))
        order = np.argsort(distances, kind="stable")[:count]
        return addresses[order], distances[order].astype(np.float32)


class _ReadWriteLock:
    """Many readers or one writer. A waiting writer goes before new readers, and after it the readers that waited."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers = 0
        self._waiting_readers = 0
        self._admitted_readers = 0
        """Readers that waited for the last writer: the next writer waits for them."""
        self._is_writing = False
        self._waiting_writers = 0

    @contextmanager
    def read(self) -> Iterator[None]:
        with self._condition:
            self._waiting_readers += 1
            try:
                self._condition.wait_for(self._may_read)
            finally:
                self._waiting_readers -= 1
                self._admitted_readers = max(0, self._admitted_readers - 1)
            self._readers += 1
        try:
            yield
        finally:
            with self._condition:
                self._readers -= 1
                self._condition.notify_all()

    @contextmanager
    def write(self) -> Iterator[None]:
        with self._condition:
            self._waiting_writers += 1
            try:
                self._condition.wait_for(self._may_write)
                self._is_writing = True
            finally:
                self._waiting_writers -= 1
        try:
            yield
        finally:
            with self._condition:
                self._is_writing = False
                self._admitted_readers = self._waiting_readers
                self._condition.notify_all()

    def _may_read(self) -> bool:
        return not self._is_writing and (self._admitted_readers > 0 or not self._waiting_writers)

    def _may_write(self) -> bool:
        return not self._is_writing and not self._readers and not self._admitted_readers
