"""Find the rows that a version removed and added again: by stable row ids, and by a key.

Without both, Lance does not say which new row is which old one: an update is a deletion and an insertion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from lance.fragment import RowIdSequence

from tiltyard.change_feed.version_rows import VersionRows, take_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tiltyard.change_feed.version_rows import FragmentOffsets

    Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowList:
    """Rows of a version, one by one: the fragment of each, and its offset there, deleted rows counted."""

    version: VersionRows
    fragments: Integers
    offsets: Integers

    @classmethod
    def of(cls, version: VersionRows, rows: Sequence[FragmentOffsets]) -> RowList:
        """List the rows of some fragments."""
        parts = [(number, version.live_offsets(number) if offsets is None else offsets) for number, offsets in rows]
        fragments = [np.full(len(offsets), number, np.int64) for number, offsets in parts]
        return cls(version, _join(fragments), _join([offsets.astype(np.int64) for _, offsets in parts]))

    def __len__(self) -> int:
        return len(self.offsets)

    def take(self, chosen: Integers) -> RowList:
        """Return some of the rows."""
        return RowList(self.version, self.fragments[chosen], self.offsets[chosen])

    def by_fragment(self) -> list[FragmentOffsets]:
        """Return the rows by fragment, sorted."""
        return [
            (int(number), np.sort(self.offsets[self.fragments == number]).astype(np.uint32))
            for number in np.unique(self.fragments)
        ]

    def row_ids(self) -> Integers:
        """Return the stable row ids."""
        ids = np.empty(len(self), np.int64)
        for number in np.unique(self.fragments):
            meta = self.version.fragments[int(number)].metadata.row_id_meta
            assert meta is not None
            sequence = RowIdSequence.from_inline_metadata(meta).to_pyarrow().to_numpy()
            chosen = self.fragments == number
            ids[chosen] = sequence[self.offsets[chosen]]
        return ids

    def keys(self, columns: Sequence[str]) -> pa.Table | None:
        """Read the key of each row, with its number in this list; None in a version that lacks a column."""
        if any(name not in self.version.dataset.schema.names for name in columns):
            return None
        parts = []
        for number in np.unique(self.fragments):
            chosen = np.flatnonzero(self.fragments == number)
            positions = self.version.positions(int(number), self.offsets[chosen].astype(np.uint32))
            values = take_rows(self.version.dataset, int(number), columns, positions)
            parts.append(values.append_column("", pa.array(chosen)))
        return pa.concat_tables(parts)


def match_rows(removed: RowList, added: RowList, keys: Sequence[str]) -> tuple[Integers, Integers]:
    """Return the places in both lists of rows that are the same row, by id, then of the others by key."""
    pairs = _match_ids(removed, added)
    if not keys:
        return pairs
    rest = [np.setdiff1d(np.arange(len(rows)), matched) for rows, matched in zip((removed, added), pairs, strict=True)]
    by_key = _match_keys(removed.take(rest[0]), added.take(rest[1]), keys)
    return _join([pairs[0], rest[0][by_key[0]]]), _join([pairs[1], rest[1][by_key[1]]])


def _match_ids(removed: RowList, added: RowList) -> tuple[Integers, Integers]:
    if not (removed.version.dataset.has_stable_row_ids and added.version.dataset.has_stable_row_ids):
        return _join([]), _join([])
    _, left, right = np.intersect1d(removed.row_ids(), added.row_ids(), assume_unique=True, return_indices=True)
    return left.astype(np.int64), right.astype(np.int64)


def _match_keys(removed: RowList, added: RowList, columns: Sequence[str]) -> tuple[Integers, Integers]:
    """Return as `match_rows`. A key that is null, or there more than once, matches nothing."""
    sides = [rows.keys(columns) if len(rows) else None for rows in (removed, added)]
    left, right = sides
    if left is None or right is None or left.schema.types[:-1] != right.schema.types[:-1]:
        return _join([]), _join([])
    names = [f"key {number}" for number in range(len(columns))]
    both = left.rename_columns([*names, "left"]).join(right.rename_columns([*names, "right"]), names, join_type="inner")
    pairs = both["left"].to_numpy(), both["right"].to_numpy()
    is_single = np.ones(len(both), bool)
    for places in pairs:
        values, counts = np.unique(places, return_counts=True)
        is_single &= ~np.isin(places, values[counts > 1])
    return pairs[0][is_single], pairs[1][is_single]


def _join(parts: Sequence[Integers]) -> Integers:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
