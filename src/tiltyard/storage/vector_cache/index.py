"""Vectors in memory by partition (IVF of FAISS): short codes find candidates, and the vectors themselves order them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tiltyard.storage.vector_cache.fragments import Array

_CODE_DIMENSIONS = ((256, 4), (64, 2), (1, 1))
"""Numbers of a vector that one code of 4 bits stands for, by the least dimension: fewer where there are few codes."""
_EXACT_ROWS = 4096
"""Up to this many allowed rows, distances to all of them are computed; an index of no more has no partitions."""
_EXACT_SHARE = 20
"""So are they up to this part of all rows: of fewer, candidates by codes take as long, and may be others."""
_TRAINING_ROWS = 40
"""Rows for each partition from which the partitions are learnt."""
_TRAINING_ROUNDS = 10
_CHUNK_ROWS = 1024
_CHECKED_ROWS = 64
"""Rows whose neighbours are looked for to choose the effort of a search."""
_CHECKED_NEIGHBOURS = 10
RECALL = 0.98
"""Share of those neighbours that a search finds, by the effort that is chosen."""
_CANDIDATES = (100, 150, 200, 300, 400, 600, 800, 1200, 1600, 2400, 3200)
_MIN_PROBES = 8


def bytes_of_row(dimension: int) -> int:
    """Return the bytes of a row: vector, code and number (twice, as their lists grow), address, place, bitmaps."""
    padded = _padded(dimension)
    return 4 * padded + padded // _code_dimensions(dimension) + 16 + 8 + 4 + 4


def training_bytes(rows: int, dimension: int) -> int:
    """Return the bytes that learning the partitions of so many rows takes besides, for a moment."""
    return 2 * 4 * _padded(dimension) * min(rows, _TRAINING_ROWS * _partitions(rows))


@dataclass(frozen=True, slots=True)
class Effort:
    """How widely a search looks: partitions to read, and candidates whose distances are computed, at least.

    `share`, from 0 to 1, is how far it goes from the partitions that the index has chosen towards all of them.
    """

    probes: int = 0
    candidates: int = 0
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class Allowed:
    """Rows that a search may return: their number in the index, and which they are there, and which of the other rows.

    Of few rows there are the `positions`, ascending: a search looks at these alone. Of more, a `bitmap` of all
    positions, which takes less then.
    """

    rows: int
    others: Array
    positions: Array | None
    bitmap: Array | None

    @classmethod
    def of(cls, mask: Array, others: Array) -> Allowed:
        """Return the rows of masks, of all positions in the index and of the other rows."""
        rows = int(np.count_nonzero(mask))
        if rows <= len(mask) // _EXACT_SHARE:
            return cls(rows, others, np.flatnonzero(mask).astype(np.uint32), None)
        return cls(rows, others, None, np.packbits(mask, bitorder="little"))

    def find_positions(self) -> Array:
        """Return the positions, as FAISS takes them."""
        if self.positions is not None:
            return self.positions.astype(np.int64)
        assert self.bitmap is not None
        return np.flatnonzero(np.unpackbits(self.bitmap, bitorder="little"))


class MemoryIndex:
    """Vectors of a column with room for a fixed number of rows. Safe to use from several threads.

    Rows are added, then the partitions are made from them; rows that are added later go into these. Searches run at
    once, and never while rows are added.
    """

    def __init__(self, dimension: int, metric: str, capacity: int) -> None:
        """`metric` is `l2`, or `cosine` for vectors of length 1, whose squared distance is twice that."""
        import faiss  # noqa: PLC0415  # loaded by the first index

        self._faiss: Any = faiss
        self.metric = metric
        self.capacity = capacity
        self.dimension = dimension
        self._vectors = cast("Any", faiss.IndexFlatL2(_padded(dimension)))
        self._vectors.codes.resize(capacity * 4 * _padded(dimension))  # keeps what it has allocated: rows never move
        self._vectors.codes.resize(0)
        self._partitions: Any = None
        self._refined: Any = None
        """Finds candidates by the partitions, and orders them by the vectors; None for a few rows."""
        self._effort = Effort()
        self.recall = 1.0
        """Share of the nearest that searches of its own rows found, once the partitions were made."""
        self.ready_at = 0
        """When its first search could be, in ms since 1970."""
        self.addresses: Array = np.zeros(capacity, dtype=np.uint64)
        self._lock = _ReadWriteLock()

    @property
    def rows(self) -> int:
        return int(self._vectors.ntotal)

    @property
    def size(self) -> int:
        """Bytes, the room for further rows included."""
        return self.capacity * bytes_of_row(self.dimension)

    def describe(self) -> str:
        """Return how a search without a filter looks for rows."""
        if self._refined is None:
            return "compares all rows"
        return (
            f"reads {self._effort.probes} of {self._partitions.nlist} partitions and compares "
            f"{self._candidates(_CHECKED_NEIGHBOURS, Effort())} candidates, recall {self.recall:.3f} on its own rows"
        )

    def add(self, addresses: Array, vectors: Array) -> None:
        """Add rows, in the calling thread alone."""
        with self._lock.write():
            stay_in_this_thread()
            start = self.rows
            self.addresses[start : start + len(addresses)] = addresses
            index = self._vectors if self._refined is None else self._refined
            index.add(self._pad(vectors))

    def make_partitions(self, check: Callable[[], None]) -> None:
        """Divide the rows into partitions, and choose the effort of a search, before the first one.

        It runs in the calling thread alone, and calls `check` between its steps, whose error ends it. Of a million rows
        of 128 numbers the longest step took 1.5 s.
        """
        if self.rows <= _EXACT_ROWS:
            return
        faiss, dimension, number = self._faiss, self._vectors.d, _partitions(self.rows)
        stay_in_this_thread()
        rng = np.random.default_rng(0)
        rows = self._rows()
        sample = rows[np.sort(rng.choice(self.rows, min(self.rows, _TRAINING_ROWS * number), replace=False))]
        centroids = None
        for _ in range(_TRAINING_ROUNDS):
            means = faiss.Kmeans(dimension, number, niter=1, min_points_per_centroid=1)
            means.train(sample, init_centroids=centroids)
            centroids = means.centroids
            check()
        coarse = faiss.IndexFlatL2(dimension)
        coarse.add(centroids)
        partitions = faiss.IndexIVFPQFastScan(
            coarse, dimension, number, dimension // _code_dimensions(self.dimension), 4
        )
        partitions.train(sample)
        del sample
        for start in range(0, self.rows, _CHUNK_ROWS):
            partitions.add(rows[start : start + _CHUNK_ROWS])
            check()
        self._partitions = partitions
        self._refined = faiss.IndexRefine(partitions, self._vectors)
        self._choose_effort(rows[rng.choice(self.rows, _CHECKED_ROWS, replace=False)], check)

    def search(self, queries: Array, count: int, allowed: Allowed, effort: Effort) -> list[tuple[Array, Array]]:
        """Return addresses and distances of the rows nearest to each query, nearest first, in the calling thread alone.

        `queries` has the shape (queries, dimension).
        """
        points = self._pad(queries)
        stay_in_this_thread()
        with self._lock.read():
            rows = self.rows  # those that are being added to it are not allowed to any version yet
            if self._refined is None or allowed.bitmap is None or allowed.rows <= max(_EXACT_ROWS, 4 * count):
                distances, positions = self._compare_all(points, count, allowed)
            else:
                # The fewer rows of a partition a filter leaves, the farther apart are those that it leaves.
                rarity = rows / allowed.rows
                chosen = self._effort.probes * (self._partitions.nlist / self._effort.probes) ** effort.share
                probes = int(max(chosen, effort.probes) * rarity**0.75)
                candidates = min(rows, int(self._candidates(count, effort) * rarity**0.85))
                selector = None if allowed.rows == rows else self._faiss.IDSelectorBitmap(allowed.bitmap)
                distances, positions = self._nearest(points, count, probes, candidates, selector)
                missing = positions[:, -1] < 0  # too few rows in the partitions
                if missing.any():
                    distances[missing], positions[missing] = self._compare_all(points[missing], count, allowed)
        if self.metric == "cosine":
            distances = distances / 2
        ends = (positions >= 0).sum(axis=1)
        return [
            (self.addresses[position[:end]], distance[:end])
            for position, distance, end in zip(positions, distances, ends, strict=True)
        ]

    def _compare_all(self, points: Array, count: int, allowed: Allowed) -> tuple[Array, Array]:
        parameters = self._faiss.SearchParameters(sel=self._faiss.IDSelectorArray(allowed.find_positions()))
        found: tuple[Array, Array] = self._vectors.search(points, count, params=parameters)
        return found

    def _nearest(
        self, points: Array, count: int, probes: int, candidates: int, selector: Any = None
    ) -> tuple[Array, Array]:
        faiss = self._faiss
        parameters = faiss.IndexRefineSearchParameters(
            k_factor=candidates / count,
            base_index_params=faiss.IVFSearchParameters(nprobe=min(probes, self._partitions.nlist), sel=selector),
        )
        found: tuple[Array, Array] = self._refined.search(points, count, params=parameters)
        return found

    def _candidates(self, count: int, effort: Effort) -> int:
        return max(self._effort.candidates + 4 * (count - _CHECKED_NEIGHBOURS), effort.candidates, 4 * count)

    def _choose_effort(self, points: Array, check: Callable[[], None]) -> None:
        """Choose the least effort by which rows find their neighbours: first the candidates, then the partitions."""
        nearest = _CHECKED_NEIGHBOURS + 1  # a row is its own nearest
        expected = [set(found.tolist()) for found in self._vectors.search(points, nearest)[1]]

        def recall(probes: int, candidates: int) -> float:
            check()
            found = self._nearest(points, nearest, probes, candidates)[1]
            shared = sum(len(rows & set(ids.tolist())) - 1 for rows, ids in zip(expected, found, strict=True))
            return float(shared / (_CHECKED_NEIGHBOURS * len(points)))

        every = self._partitions.nlist
        candidates = next((few for few in _CANDIDATES if recall(every, few) >= (1 + RECALL) / 2), _CANDIDATES[-1])
        probes = _MIN_PROBES
        while (found := recall(probes, candidates)) < RECALL and probes < every:
            probes += max(1, probes // 4)
        self._effort, self.recall = Effort(min(probes, every), candidates), found

    def _rows(self) -> Array:
        """Return the vectors that are there, without a copy: they never move."""
        pointer = self._vectors.get_xb()
        vectors: Array = self._faiss.rev_swig_ptr(pointer, self.rows * self._vectors.d)
        return vectors.reshape(self.rows, self._vectors.d)

    def _pad(self, vectors: Array) -> Array:
        """Return vectors with zeros at their end, so that each code stands for equally many numbers."""
        missing = self._vectors.d - vectors.shape[1]
        return np.ascontiguousarray(np.pad(vectors, ((0, 0), (0, missing))) if missing else vectors)


def _code_dimensions(dimension: int) -> int:
    return next(number for least, number in _CODE_DIMENSIONS if dimension >= least)


def _padded(dimension: int) -> int:
    return -(-dimension // _code_dimensions(dimension)) * _code_dimensions(dimension)


def _partitions(rows: int) -> int:
    return max(1, int(rows**0.5))


def stay_in_this_thread() -> None:
    """Let FAISS compute what the calling thread asks for in that thread alone."""
    if not getattr(_thread, "is_alone", False):  # the call gives the interpreter to another thread
        import faiss  # noqa: PLC0415  # loaded by the first index

        faiss.omp_set_num_threads(1)
        _thread.is_alone = True


_thread = threading.local()


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
