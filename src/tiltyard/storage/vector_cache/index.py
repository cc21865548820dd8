"""A graph of vectors in memory (HNSW of FAISS), and the search of those rows of it that a version has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from tiltyard.storage.vector_cache.fragments import Array, Block

_LINKS = 16
_EF_CONSTRUCTION = 80
_EF_SEARCH = 128
"""Candidates of a search: on 300,000 overlapping vectors of 256 floats, 0.98 of the ten nearest are found."""
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

    def add(self, addresses: Array, vectors: Array) -> None:
        """Add rows, in the calling thread alone."""
        with self._lock.write():
            self._faiss.omp_set_num_threads(1)
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
    """Rows that a search may return: a bitmap of positions in the index, their number, masks of the other blocks."""

    bitmap: Array
    rows: int
    masks: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class VersionRows:
    """The rows of one version: those in the index, and those of fragments that are not in it yet, by their vectors."""

    index: MemoryIndex
    indexed: dict[int, Block]
    others: tuple[Block, ...]
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
        masks = tuple(block.select(offsets[numbers == block.fragment.number])[0] for block in self.others)
        return Allowed(np.packbits(positions, bitorder="little"), rows, masks)

    def search(self, query: Array, count: int, allowed: Allowed, ef: int) -> tuple[Array, Array]:
        """Return addresses and distances of the nearest rows, nearest first."""
        parts = [self.index.search(query, count, allowed.bitmap, allowed.rows, ef)] if allowed.rows else []
        parts += [self._distances(block, mask, query) for block, mask in zip(self.others, allowed.masks, strict=True)]
        if not parts:
            return np.zeros(0, np.uint64), np.zeros(0, np.float32)
        addresses, distances = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(distances, kind="stable")[:count]
        return addresses[order], distances[order].astype(np.float32)

    def _distances(self, block: Block, mask: Array, query: Array) -> tuple[Array, Array]:
        assert block.vectors is not None
        vectors, offsets = block.vectors[mask], block.offsets[mask]
        if self.index.metric == "l2":
            differences = vectors - query
            distances = np.einsum("ij,ij->i", differences, differences)
        else:
            distances = 1 - vectors @ query
        return offsets.astype(np.uint64) + np.uint64(block.fragment.number << 32), distances


class _ReadWriteLock:
    """Many readers or one writer; a waiting writer goes before new readers."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._readers = 0
        self._is_writing = False
        self._waiting_writers = 0

    @contextmanager
    def read(self) -> Iterator[None]:
        with self._condition:
            self._condition.wait_for(lambda: not self._is_writing and not self._waiting_writers)
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
                self._condition.wait_for(lambda: not self._is_writing and not self._readers)
                self._is_writing = True
            finally:
                self._waiting_writers -= 1
        try:
            yield
        finally:
            with self._condition:
                self._is_writing = False
                self._condition.notify_all()
