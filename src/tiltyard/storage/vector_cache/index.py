"""Vectors in memory by partition (IVF of FAISS): short codes find candidates, and the vectors themselves order them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

import numpy as np

from tiltyard.storage.vector_cache.codes import PartitionReader, code_bytes

if TYPE_CHECKING:
    from tiltyard.storage.vector_cache.allowed_rows import Allowed
    from tiltyard.storage.vector_cache.fragments import Array

_CODE_DIMENSIONS = ((256, 4), (64, 2), (1, 1))
"""Numbers of a vector that one code of 4 bits stands for, by the least dimension: fewer where there are few codes."""
_EXACT_ROWS = 4096
"""Up to this many allowed rows, distances to all of them are computed; an index of no more has no partitions."""
_FEW_ROWS = 1024
"""Up to this many where codes of the allowed rows alone are kept."""
_PACKED_SEARCHES = 3
"""Searches among the same rows from which on codes of these alone are kept."""
_ROWS_PACKED_IN_A_SEARCH = 1024
"""Rows whose codes are made in the time that one search gains by them: a search more for each so many rows."""
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
_PACKED_CANDIDATES = 50
"""Candidates that are compared at least by codes of the allowed rows alone, which are finer."""
_MORE = 4
"""Times the least candidates whose estimates a filtered search asks for, before it asks for all that it may compare."""
_DEVIATIONS = 3.0
"""Standard deviations of a distance from its estimate by which the rows that are not compared have to be too far."""
_MIN_PROBES = 8


def bytes_of_row(dimension: int) -> int:
    """Return the bytes of a row.

    They are those of the vector, the code and number (twice, as their lists grow), the address, the place, bitmaps, the
    partition, and the codes that filters have.
    """
    padded = _padded(dimension)
    return 4 * padded + padded // _code_dimensions(dimension) + 16 + 8 + 4 + 4 + 4 + _packed_bytes_of_row(dimension)


def _packed_bytes_of_row(dimension: int) -> int:
    """Return the bytes that codes of filters' rows may take for each row of the index."""
    return code_bytes(_padded(dimension)) + 8


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
        self._reader: PartitionReader | None = None
        self._packed: WeakSet[Allowed] = WeakSet()
        """The filters' rows whose codes are kept."""
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
            f"{self._effort.candidates} candidates, recall {self.recall:.3f} on its own rows"
        )

    def add(self, addresses: Array, vectors: Array) -> None:
        """Add rows, in the calling thread alone."""
        with self._lock.write():
            stay_in_this_thread()
            start = self.rows
            self.addresses[start : start + len(addresses)] = addresses
            points = self._pad(vectors)
            if self._reader is not None:
                self._reader.add(start, points)
            index = self._vectors if self._refined is None else self._refined
            index.add(points)

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
        rows = self._rows(self.rows)
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
        self._reader = PartitionReader(partitions, self._rows(self.capacity), self.capacity)
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
            few = _EXACT_ROWS if allowed.packed is None else min(_FEW_ROWS, _EXACT_ROWS)
            if self._refined is None or allowed.rows <= max(few, 4 * count):
                distances, positions = self._compare_all(points, count, allowed)
            else:
                probes = max(self._probes(effort), effort.probes)
                if allowed.rows == rows:
                    distances, positions = self._nearest(
                        points, count, probes, self._candidates(self._effort.candidates, count, effort)
                    )
                else:
                    distances, positions = self._nearest_allowed(points, count, allowed, effort)
                missing = positions[:, -1] < 0  # too few rows in the partitions
                if missing.any():
                    distances[missing], positions[missing] = self._compare_all(points[missing], count, allowed)
        allowed.count_searches(len(queries))
        if self.metric == "cosine":
            distances = distances / 2
        ends = (positions >= 0).sum(axis=1)
        return [
            (self.addresses[position[:end]], distance[:end])
            for position, distance, end in zip(positions, distances, ends, strict=True)
        ]

    def should_pack(self, allowed: Allowed) -> bool:
        """Return whether the codes of allowed rows should be kept, since these are searched often."""
        if self._reader is None or allowed.is_packing or allowed.rows <= _FEW_ROWS:
            return False
        is_often = allowed.searches >= _PACKED_SEARCHES + allowed.rows // _ROWS_PACKED_IN_A_SEARCH
        return is_often and self._reader.is_worth_packing(allowed, self.rows)

    def pack(self, allowed: Allowed, check: Callable[[], None]) -> None:
        """Keep the codes of allowed rows alone, in one thread at a time; those searched least recently make room."""
        assert self._reader is not None
        packed = self._reader.pack(allowed, check)
        room = self.capacity * _packed_bytes_of_row(self.dimension) - packed.nbytes
        for other in sorted(self._packed, key=lambda each: each.searched_at, reverse=True):
            if other.packed is not None:
                room -= other.packed.nbytes
                if room < 0:
                    self._packed.discard(other)
                    other.forget_packed()
        self._packed.add(allowed)
        allowed.packed = packed

    def _compare_all(self, points: Array, count: int, allowed: Allowed) -> tuple[Array, Array]:
        parameters = self._faiss.SearchParameters(sel=self._faiss.IDSelectorArray(allowed.find_positions()))
        found: tuple[Array, Array] = self._vectors.search(points, count, params=parameters)
        return found

    def _nearest(self, points: Array, count: int, probes: int, candidates: int) -> tuple[Array, Array]:
        faiss = self._faiss
        parameters = faiss.IndexRefineSearchParameters(
            k_factor=candidates / count,
            base_index_params=faiss.IVFSearchParameters(nprobe=min(probes, self._partitions.nlist)),
        )
        found: tuple[Array, Array] = self._refined.search(points, count, params=parameters)
        return found

    def _nearest_allowed(self, points: Array, count: int, allowed: Allowed, effort: Effort) -> tuple[Array, Array]:
        """Return distances and positions of the nearest of the allowed rows, which are more than `4 * count`.

        A query reads partitions until they have as many allowed rows as a search without a filter compares, or all
        that are allowed if these are few. It compares more candidates while rows beyond them may be nearer: where a
        filter goes with the vectors, the rows that it allows are far from the query, and codes tell them apart less.
        """
        assert self._reader is not None
        rows = max(self._reader.compared_rows, int(self._probes(effort) / self._partitions.nlist * self.rows))
        reading = self._reader.read(points, allowed, rows, effort.probes)
        chosen = _PACKED_CANDIDATES if reading.is_packed else self._effort.candidates
        least = min(allowed.rows, self._candidates(chosen, count, effort))
        most = min(allowed.rows, max(least, _CANDIDATES[-1]))
        distances = np.full((len(points), count), np.inf, np.float32)
        positions = np.full((len(points), count), -1, np.int64)
        left = list(range(len(points)))
        for candidates in (min(_MORE * least, most), most):
            unsettled = []
            for query, (estimates, places) in zip(left, reading.find(points[left], left, candidates), strict=True):
                compared, reach = self._compare(points[query], count, least, estimates, places)
                nearest = compared.argsort()[:count]
                distances[query, : len(nearest)], positions[query, : len(nearest)] = compared[nearest], places[nearest]
                if len(places) == candidates < most and reach > estimates[-1]:
                    unsettled.append(query)
            left = unsettled
            if not left:
                break
        return distances, positions

    def _compare(self, point: Array, count: int, least: int, estimates: Array, positions: Array) -> tuple[Array, float]:
        """Return the distances of a query to candidates, nearest by estimate first, and the reach of the query.

        The first `least` are compared, and then all within reach: those that may be nearer than the last of the `count`
        nearest until then, by the mean and standard deviation of how distances differ from their estimates. Distances
        of the others are infinite.
        """
        distances, pointer = np.full(len(positions), np.inf, np.float32), self._faiss.swig_ptr
        done, wanted, reach = 0, min(least, len(positions)), 0.0
        while wanted > done:
            self._vectors.compute_distance_subset(
                1, pointer(point), wanted - done, pointer(distances[done:wanted]), pointer(positions[done:wanted])
            )
            compared = distances[:wanted]
            errors = compared - estimates[:wanted]
            mean = float(errors.sum()) / wanted
            deviation = max(0.0, float(errors @ errors) / wanted - mean**2) ** 0.5
            last = float(np.partition(compared, count - 1)[count - 1]) if wanted >= count else np.inf
            reach = last - mean + _DEVIATIONS * deviation
            done, wanted = wanted, int(estimates.searchsorted(reach))
        return distances, reach

    def _probes(self, effort: Effort) -> int:
        """Return how many partitions a search without a filter reads, if its request names no least number."""
        return int(self._effort.probes * (self._partitions.nlist / self._effort.probes) ** effort.share)

    def _candidates(self, chosen: int, count: int, effort: Effort) -> int:
        return max(chosen + 4 * (count - _CHECKED_NEIGHBOURS), effort.candidates, 4 * count)

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

    def _rows(self, number: int) -> Array:
        """Return the first vectors, those that are there or the room for more, without a copy: they never move."""
        pointer = self._vectors.get_xb()
        vectors: Array = self._faiss.rev_swig_ptr(pointer, number * self._vectors.d)
        return vectors.reshape(number, self._vectors.d)

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
