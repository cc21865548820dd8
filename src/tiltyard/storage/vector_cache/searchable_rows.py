"""The rows of one version of a table: those in the index in memory, those outside of it, and those a filter allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np

from tiltyard.storage.vector_cache.allowed_rows import Allowed
from tiltyard.storage.vector_cache.fragments import OFFSET_MASK, Array, Block, Fragment
from tiltyard.storage.vector_cache.index import Effort, MemoryIndex, stay_in_this_thread
from tiltyard.storage.vector_cache.scalar_values import ScalarFilter, ScalarPage, evaluate


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

    def search(self, queries: Array, count: int, mask: Array, metric: str) -> list[tuple[Array, Array]]:
        """Return addresses and distances of the rows nearest to each query, among those that a mask selects."""
        import faiss  # noqa: PLC0415  # an index has loaded it before

        every = bool(mask.all())
        addresses, vectors = (self.addresses, self.vectors) if every else (self.addresses[mask], self.vectors[mask])
        kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
        stay_in_this_thread()
        distances, places = faiss.knn(queries, vectors, min(count, len(vectors)), kind)
        return list(zip(addresses[places], distances if metric == "l2" else 1 - distances, strict=True))


@dataclass(frozen=True, slots=True)
class FilteredRows:
    """What a filter allows, and why Lance found the rows: "" for those found by values in memory."""

    allowed: Allowed
    by_lance: str = ""


@dataclass(frozen=True, slots=True)
class SearchableRows:
    """The rows of one version: those in the index, and those of fragments that are not in it yet."""

    index: MemoryIndex
    fragments: tuple[Fragment, ...]
    indexed: Mapping[int, tuple[Block, Array]]
    """The blocks in the index by the numbers of their fragments, with masks of their rows that the version has."""
    others: OtherRows
    live: Allowed
    filters: dict[str, FilteredRows] = field(default_factory=dict)
    """What the last filters allow, by their texts."""

    def describe(self) -> str:
        """Return since when the index answers, which share of the rows is in it, and how it looks for them."""
        since = datetime.fromtimestamp(self.index.ready_at // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        share = self.live.rows / max(1, self.live.rows + len(self.others))
        return f"since {since}, with {share:.1%} of the rows in it, and {self.index.describe()}"

    def allow(self, addresses: Array) -> Allowed:
        """Return what a filter allows, by the addresses of its rows in this version."""
        numbers, offsets = addresses >> np.uint64(32), (addresses & np.uint64(OFFSET_MASK)).astype(np.uint32)
        positions = np.zeros(self.index.capacity, dtype=bool)
        for number, (block, _) in self.indexed.items():
            mask, _ = block.select(offsets[numbers == number])
            positions[block.start : block.start + len(mask)] = mask
        return Allowed.of(positions, np.isin(self.others.addresses, addresses))

    def select(self, selected: ScalarFilter, pages: Mapping[int, Mapping[tuple[int, str], ScalarPage]]) -> Allowed:
        """Return what a filter allows, by the values of its columns: by their ids, and the keys of all fragments."""
        positions = np.zeros(self.index.capacity, dtype=bool)
        others = np.zeros(len(self.others), dtype=bool)
        numbers, offsets = self.others.addresses >> np.uint64(32), self.others.addresses & np.uint64(OFFSET_MASK)
        for fragment in self.fragments:
            mask, _ = evaluate(selected, {column: kept[fragment.key] for column, kept in pages.items()})
            if fragment.number in self.indexed:
                block, live = self.indexed[fragment.number]
                rows = positions[block.start : block.start + len(live)]
                np.logical_and(mask if len(live) == len(mask) else mask[block.offsets], live, out=rows)
            elif len(others):
                in_fragment = numbers == fragment.number
                others[in_fragment] = mask[offsets[in_fragment]]
        return Allowed.of(positions, others)

    def search(self, queries: Array, count: int, allowed: Allowed, effort: Effort) -> list[tuple[Array, Array]]:
        """Return addresses and distances of the rows nearest to each query, nearest first.

        `queries` has the shape (queries, dimension).
        """
        others = self.others.search(queries, count, allowed.others, self.index.metric) if len(self.others) else None
        if others is not None and not allowed.rows:
            return others
        indexed = self.index.search(queries, count, allowed, effort)
        if others is None:
            return indexed
        return [_merge(*found, count) for found in zip(indexed, others, strict=True)]


def _merge(indexed: tuple[Array, Array], others: tuple[Array, Array], count: int) -> tuple[Array, Array]:
    """Return addresses and distances of the nearest of both."""
    addresses, distances = (np.concatenate(column) for column in zip(indexed, others, strict=True))
    order = np.argsort(distances, kind="stable")[:count]
    return addresses[order], distances[order]
