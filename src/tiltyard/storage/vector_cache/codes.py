"""Read the partitions that a filtered search needs, or codes of the rows alone that its filter allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tiltyard.storage.vector_cache.allowed_rows import CodeLists

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.storage.vector_cache.allowed_rows import Allowed
    from tiltyard.storage.vector_cache.fragments import Array

MAX_WHOLE_BYTES = 4 << 20
"""Bytes of codes up to which a search compares those of all rows that its filter allows: 0.25 ms."""
MIN_COMPARED_BYTES = 2 << 20
"""Bytes of codes that a search compares at least where a filter allows more."""
_MAX_PACKED_SHARE = 0.75
"""Share of all rows up to which codes of those that a filter allows are kept: of more, a search skips few."""
_BLOCK_ROWS = 32
"""Rows whose codes FAISS compares at once, and so keeps together."""
_CHUNK_ROWS = 4096
_SAMPLED_ROWS = 4096
_LEVELS = 16
_DEVIATIONS = 2.5
"""Standard deviations to either side of the mean between which levels lie."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a search reads: the numbers of each query's lists, -1 for none, and which rows of these.

    `is_packed` where these have codes of the allowed rows alone.
    """

    lists: Any
    numbers: Array
    parameters: Any
    is_packed: bool

    def find(self, points: Array, queries: list[int], count: int) -> list[tuple[Array, Array]]:
        """Return estimated distances and positions of the up to `count` nearest of each of some queries, nearest first.

        `points` are those of the queries, `queries` their numbers.
        """
        import faiss  # noqa: PLC0415  # an index has loaded it before

        numbers = self.numbers[queries]
        unused = np.zeros(numbers.shape, np.float32)
        distances, positions = np.empty((len(points), count), np.float32), np.empty((len(points), count), np.int64)
        pointers = [cast("Any", faiss).swig_ptr(array) for array in (points, numbers, unused, distances, positions)]
        with_places = False
        self.lists.search_preassigned_c(len(points), pointers[0], count, *pointers[1:], with_places, self.parameters)
        ends = (positions >= 0).sum(axis=1)  # fewer where fewer rows are read
        return [(distances[query, :end], positions[query, :end]) for query, end in enumerate(ends)]


class Codes:
    """Codes of 4 bits for each number of a vector: the nearest of 16 levels, evenly spaced for each dimension.

    Levels are those of the rows that a filter allows: where these are alike in a dimension, they are told apart there.
    """

    def __init__(self, sample: Array) -> None:
        """Choose the levels by a sample of the vectors."""
        mean, deviation = sample.mean(axis=0), _DEVIATIONS * sample.std(axis=0)
        self._first = np.maximum(mean - deviation, sample.min(axis=0))
        last = np.minimum(mean + deviation, sample.max(axis=0))
        self._step = np.where(last > self._first, (last - self._first) / (_LEVELS - 1), 1).astype(np.float32)

    def encode(self, vectors: Array) -> Array:
        """Return the codes of vectors, two of them in a byte."""
        levels = np.rint((vectors - self._first) / self._step).clip(0, _LEVELS - 1).astype(np.uint8)
        if levels.shape[1] % 2:
            levels = np.pad(levels, ((0, 0), (0, 1)))
        codes: Array = levels[:, ::2] | levels[:, 1::2] << 4
        return codes

    def make_lists(self, coarse: Any, number: int) -> Any:
        """Return empty lists of such codes; `coarse` has the centroids of partitions."""
        import faiss  # noqa: PLC0415  # an index has loaded it before

        lists = cast("Any", faiss).IndexIVFPQFastScan(coarse, coarse.d, number, coarse.d, 4)
        levels = self._first[:, np.newaxis] + self._step[:, np.newaxis] * np.arange(_LEVELS, dtype=np.float32)
        cast("Any", faiss).copy_array_to_vector(levels.astype(np.float32).ravel(), lists.pq.centroids)
        lists.is_trained = True
        return lists


def code_bytes(dimension: int) -> int:
    """Return the bytes of a vector's codes."""
    return -(-dimension // 2)


class PartitionReader:
    """What filtered searches read of partitions. Rows are added by one thread, while no other one searches."""

    def __init__(self, partitions: Any, vectors: Array, capacity: int) -> None:
        """`partitions` have rows whose `vectors`, with room for `capacity` rows, never move."""
        import faiss  # noqa: PLC0415  # loaded by the first index

        self._faiss: Any = faiss
        self._partitions, self._coarse = partitions, partitions.quantizer
        self._vectors = vectors
        self._centroids: Array = self._coarse.reconstruct_n(0, partitions.nlist)
        self._halves = np.einsum("ij,ij->i", self._centroids, self._centroids) / 2
        self._partition_of: Array = np.zeros(capacity, np.uint32)
        for number in range(partitions.nlist):
            if size := partitions.invlists.list_size(number):
                ids = faiss.rev_swig_ptr(partitions.invlists.get_ids(number), size)
                self._partition_of[ids] = number

    @property
    def compared_rows(self) -> int:
        """Rows that a filtered search compares by their codes at least, or all that its filter allows."""
        return MIN_COMPARED_BYTES // code_bytes(self._vectors.shape[1])

    def add(self, start: int, vectors: Array) -> None:
        """Find the partitions of rows that are added, whose positions begin at `start`."""
        self._partition_of[start : start + len(vectors)] = self._coarse.assign(vectors, 1)[:, 0]

    def read(self, points: Array, allowed: Allowed, rows: int, probes: int) -> Reading:
        """Return what queries read: partitions by their distance until these have so many rows that are allowed.

        `probes` is the least number of partitions; all that have allowed rows are read where these are `rows` or fewer.
        """
        packed = allowed.packed
        if packed is not None and packed.is_whole:
            numbers = np.zeros((len(points), 1), np.int64)
        else:
            numbers = self._choose_partitions(points, self._counts(allowed), rows, probes)
        selector = None if packed is not None else self._faiss.IDSelectorBitmap(allowed.find_bitmap())
        parameters = self._faiss.IVFSearchParameters(nprobe=numbers.shape[1], sel=selector)
        lists = self._partitions if packed is None else packed.lists
        return Reading(lists, numbers, parameters, packed is not None)

    def _choose_partitions(self, points: Array, counts: Array, rows: int, probes: int) -> Array:
        """Return the numbers of partitions of each query, -1 for none, with the shape (queries, partitions)."""
        if counts.sum() <= rows:
            return np.tile(np.flatnonzero(counts), (len(points), 1))
        order = np.argsort(self._halves - points @ self._centroids.T, axis=1)
        found = counts[order].cumsum(axis=1)
        read = np.maximum((found < rows).sum(axis=1) + 1, probes)
        order = order[:, : int(read.max())]
        is_read = (np.arange(order.shape[1]) < read[:, np.newaxis]) & (counts[order] > 0)
        return np.where(is_read, order, -1)

    def _counts(self, allowed: Allowed) -> Array:
        """Return how many of the allowed rows each partition has."""
        if allowed.counts is None:
            numbers = self._partition_of[allowed.find_positions()]
            allowed.counts = np.bincount(numbers, minlength=len(self._centroids))
        return allowed.counts

    def is_worth_packing(self, allowed: Allowed, rows: int) -> bool:
        """Return whether searches among the allowed ones of so many rows gain by codes of these alone."""
        return allowed.rows <= _MAX_PACKED_SHARE * rows

    def pack(self, allowed: Allowed, check: Callable[[], None]) -> CodeLists:
        """Return codes of the allowed rows alone. Others may search and add rows meanwhile; `check` may end it."""
        positions = allowed.find_positions()
        is_whole = len(positions) * code_bytes(self._vectors.shape[1]) <= MAX_WHOLE_BYTES
        number = 1 if is_whole else self._partitions.nlist
        list_of = np.zeros(len(positions), np.uint32) if is_whole else self._partition_of[positions]
        order = np.argsort(list_of, kind="stable")
        positions, counts = np.ascontiguousarray(positions[order]), np.bincount(list_of, minlength=number)
        codes = Codes(self._vectors[positions[:: -(-len(positions) // _SAMPLED_ROWS)]])
        lists = codes.make_lists(self._coarse, number)
        packer, pointer = lists.get_CodePacker(), self._faiss.swig_ptr
        nbytes = first = 0
        for number, rows in enumerate(counts.tolist()):
            if rows:
                check()
                ids = positions[first : first + rows]
                packed = self._pack_list(ids, codes, packer)
                lists.invlists.add_entries(number, rows, pointer(ids), pointer(packed))
                nbytes, first = nbytes + ids.nbytes + packed.nbytes, first + rows
        lists.ntotal = len(positions)
        return CodeLists(lists, nbytes, is_whole)

    def _pack_list(self, positions: Array, codes: Codes, packer: Any) -> Array:
        """Return the codes of rows in the order in which FAISS compares them, in blocks."""
        blocks, width = -(-len(positions) // _BLOCK_ROWS), packer.block_size // _BLOCK_ROWS
        in_order = np.zeros((blocks * _BLOCK_ROWS, packer.code_size), np.uint8)
        for first in range(0, len(positions), _CHUNK_ROWS):
            chunk = codes.encode(self._vectors[positions[first : first + _CHUNK_ROWS]])
            in_order[first : first + len(chunk)] = chunk
        packed, pointer = np.zeros((blocks * _BLOCK_ROWS, width), np.uint8), self._faiss.swig_ptr
        for first in range(0, len(in_order), _BLOCK_ROWS):
            packer.pack_all(pointer(in_order[first:]), pointer(packed[first:]))
        return packed
