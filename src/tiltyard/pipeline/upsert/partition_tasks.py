"""Tasks of a partitioned look-up: keys are written by a hash of theirs, and each partition is looked up by itself.

    keys of the source, with their positions → sorted files ┐
                                                            ├→ pairs of a partition → deleted rows by fragment
    keys of the table, with their addresses  → sorted files ┘

It is a hash join whose partitions are rows of files in a folder below the table's: what a task has written can be
checkpointed, and no process holds more than the keys of a partition, or those that one task reads.
"""

from __future__ import annotations

import base64
import uuid
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from lance.file import LanceFileReader

from tiltyard.change_feed.table_history import split_by_fragment
from tiltyard.pipeline.indexes.model_files import write_columns
from tiltyard.pipeline.upsert.tasks import (
    BATCH_ROWS,
    MatchedFragment,
    SourceKeys,
    check_no_nulls,
    check_unique,
    delete_rows,
    find_positions,
    hash_buckets,
)
from tiltyard.runtime.pool import run_together

if TYPE_CHECKING:
    import lance
    from numpy.typing import NDArray

    from tiltyard.pipeline.table_location import TableLocation

MAX_PARTITIONS = 1 << 16
"""Partitions of a look-up: their numbers have two bytes."""
_READS_AT_ONCE = 16
"""Ranges of files that a task reads at once: most are small, and wait for a round trip."""
_ROWS_AT_ONCE = 1 << 20
"""Rows that are read at once, of many ranges."""
_ADDRESS, _POSITION = "row", "position"
_FRAGMENT_SHIFT = np.uint64(32)
_NOWHERE = np.iinfo(np.int64).max

Range = tuple[str, int, int]
"""Rows of a file below the table's folder: its path, the first row, and how many."""


@dataclass(frozen=True, slots=True)
class SortedFile:
    """A file whose rows are sorted by a number from 0 on, below the table's folder.

    `counts` are how many rows have each number, as uint32, compressed.
    """

    path: str
    counts: bytes

    @classmethod
    def write(
        cls, location: TableLocation, folder: str, columns: dict[str, Any], numbers: NDArray[Any], bound: int
    ) -> SortedFile:
        """Write columns sorted by these `numbers`, all below `bound`, durably. Raises OSError."""
        order = np.argsort(numbers, kind="stable")
        path = f"{folder}/{uuid.uuid4().hex}.lance"
        if len(order):
            write_columns(location, path, {name: column.take(pa.array(order)) for name, column in columns.items()})
        counts = np.bincount(numbers, minlength=bound).astype("<u4")
        return cls(path if len(order) else "", zlib.compress(counts.tobytes(), 1))

    def to_json(self) -> list[Any]:
        """Return what a checkpoint has of it."""
        return [self.path, base64.b64encode(self.counts).decode()]

    @classmethod
    def from_json(cls, saved: Sequence[Any]) -> SortedFile:
        """Return the file of a checkpoint."""
        return cls(saved[0], base64.b64decode(saved[1]))

    def paths(self) -> list[str]:
        """Return the file, if it has rows."""
        return [self.path] if self.path else []

    def all(self) -> Ranges:
        """Return all of its rows."""
        return Ranges((self.path,), np.zeros(1, np.uint32), self.sizes().sum(keepdims=True).astype(np.uint32))

    def sizes(self) -> NDArray[np.int64]:
        """Return how many rows have each number."""
        return np.frombuffer(zlib.decompress(self.counts), "<u4").astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Ranges:
    """Neighbouring rows of each of several files, which the ranges of other numbers share: the first, and how many."""

    files: tuple[str, ...]
    firsts: NDArray[np.uint32]
    counts: NDArray[np.uint32]

    @property
    def rows(self) -> int:
        """Return how many rows they are."""
        return int(self.counts.sum(dtype=np.int64))

    def portions(self, rows: int) -> Iterator[list[Range]]:
        """Yield the ranges that are not empty, as many at once as have about so many rows."""
        portion: list[Range] = []
        portion_rows = 0
        for place in np.flatnonzero(self.counts).tolist():
            portion.append((self.files[place], int(self.firsts[place]), int(self.counts[place])))
            portion_rows += portion[-1][2]
            if portion_rows >= rows:
                yield portion
                portion, portion_rows = [], 0
        if portion:
            yield portion


def ranges_by_number(files: Sequence[SortedFile]) -> list[Ranges]:
    """Return for each number its ranges of all files; nothing for no files."""
    if not files:
        return []
    sizes = np.stack([file.sizes() for file in files])
    firsts = (sizes.cumsum(axis=1) - sizes).T.astype(np.uint32)
    paths = tuple(file.path for file in files)
    return [Ranges(paths, *each) for each in zip(firsts, sizes.T.astype(np.uint32), strict=True)]


@dataclass(frozen=True, slots=True)
class PartitionSource:
    """A task: write keys of some files of the source by partition, with their positions, which begin with `first`.

    Raises RefusedError for a key that is null.
    """

    keys: SourceKeys
    first: int
    folder: str
    partitions: int

    def __call__(self) -> SortedFile:
        """Return what it has written."""
        keys = self.keys.load().table
        check_no_nulls(keys)
        columns = {**_by_place(keys), _POSITION: pa.array(np.arange(self.first, self.first + keys.num_rows))}
        numbers = hash_buckets(keys, self.partitions).astype(np.uint16)
        return SortedFile.write(self.keys.location, self.folder, columns, numbers, self.partitions)


@dataclass(frozen=True, slots=True)
class PartitionRows:
    """A task: write the keys of some fragments by partition, each with its row's address; null equals no key."""

    location: TableLocation
    on: tuple[str, ...]
    version: int
    fragments: tuple[int, ...]
    folder: str
    partitions: int

    def __call__(self) -> SortedFile:
        """Return what it has written."""
        options: dict[str, Any] = {"columns": list(self.on), "with_row_address": True, "batch_size": BATCH_ROWS}
        batches = [batch.drop_null() for batch in self.location.scan(self.version, self.fragments, **options)]
        if not batches:
            return SortedFile.write(self.location, self.folder, {}, np.empty(0, np.uint16), self.partitions)
        rows = pa.Table.from_batches(batches)
        keys = rows.select(list(self.on))
        columns = {**_by_place(keys), _ADDRESS: rows.column("_rowaddr").combine_chunks()}
        numbers = hash_buckets(keys, self.partitions).astype(np.uint16)
        return SortedFile.write(self.location, self.folder, columns, numbers, self.partitions)


@dataclass(frozen=True, slots=True)
class PartitionMatches:
    """What came of a partition: its pairs of a row's address and a key's position, and how many `keys` are in them.

    `by_group` has the pairs by groups of fragments, `by_position` by groups of positions, where these are wanted.
    """

    rows: int
    keys: int
    by_group: SortedFile
    by_position: SortedFile | None

    def to_json(self) -> list[Any]:
        """Return what a checkpoint has of it."""
        return [self.rows, self.keys, self.by_group.to_json(), self.by_position and self.by_position.to_json()]

    @classmethod
    def from_json(cls, saved: Sequence[Any]) -> PartitionMatches:
        """Return what a checkpoint has."""
        rows, keys, by_group, by_position = saved
        return cls(rows, keys, SortedFile.from_json(by_group), by_position and SortedFile.from_json(by_position))

    def paths(self) -> list[str]:
        """Return the files that have rows."""
        return [*self.by_group.paths(), *(self.by_position.paths() if self.by_position else ())]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The groups of numbers: each begins with one of these, and ends before the next; as int64, compressed."""

    firsts: bytes

    @classmethod
    def of(cls, firsts: Sequence[int]) -> Bounds:
        """Return the groups that begin with these numbers, in their order."""
        return cls(zlib.compress(np.asarray(firsts, "<i8").tobytes(), 1))

    def group(self, numbers: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
        """Return the group of each number, and how many groups there are."""
        firsts = np.frombuffer(zlib.decompress(self.firsts), "<i8")
        return np.searchsorted(firsts, numbers.astype(np.int64), side="right") - 1, len(firsts)


@dataclass(frozen=True, slots=True)
class MatchPartition:
    """A task: find the rows of the table whose key is in the source, of one partition.

    `checks_keys` says whether it has to find out that each key of the source is there once: RefusedError otherwise.
    """

    location: TableLocation
    on: tuple[str, ...]
    source: Ranges
    rows: Ranges | None
    folder: str
    fragment_groups: Bounds
    position_groups: Bounds | None
    checks_keys: bool

    def __call__(self) -> PartitionMatches:
        """Return what it has written."""
        names = [str(place) for place in range(len(self.on))]
        source = read_ranges(self.location, self.source, [*names, _POSITION])
        keys = source.select(names).rename_columns(list(self.on))
        if self.checks_keys:
            check_unique(keys)
        addresses, places = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for part in self.rows.portions(_ROWS_AT_ONCE) if self.rows else ():
            rows = _read_portion(self.location, part, [*names, _ADDRESS])
            found = find_positions(rows.select(names).rename_columns(list(self.on)), keys)
            hits = np.flatnonzero(found >= 0)
            addresses.append(rows.column(_ADDRESS).to_numpy()[hits].astype(np.uint64))
            places.append(found[hits])
        row, place = np.concatenate(addresses), np.concatenate(places)
        position = source.column(_POSITION).to_numpy()[place] if len(place) else place
        pairs = {_ADDRESS: pa.array(row), _POSITION: pa.array(position)}
        by_group = self._write(pairs, self.fragment_groups, row >> _FRAGMENT_SHIFT)
        by_position = self._write(pairs, self.position_groups, position) if self.position_groups else None
        return PartitionMatches(len(row), len(np.unique(position)), by_group, by_position)

    def _write(self, pairs: dict[str, Any], groups: Bounds, numbers: NDArray[Any]) -> SortedFile:
        return SortedFile.write(self.location, self.folder, pairs, *groups.group(numbers))


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs that a search has found; those of rows in other fragments than `fragments` have become void, None: none."""

    ranges: Ranges
    fragments: tuple[int, ...] | None = None

    def read(self, location: TableLocation) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Return the addresses and the positions of those that hold. Raises OSError."""
        pairs = read_ranges(location, self.ranges, [_ADDRESS, _POSITION])
        addresses = pairs.column(_ADDRESS).to_numpy().astype(np.uint64)
        positions = pairs.column(_POSITION).to_numpy().astype(np.int64)
        if self.fragments is None:
            return addresses, positions
        holds = np.isin(addresses >> _FRAGMENT_SHIFT, np.array(self.fragments, np.uint64))
        return addresses[holds], positions[holds]


@dataclass(frozen=True, slots=True)
class DeletePairs:
    """A task: delete the rows of the pairs, all of a few fragments, at a version."""

    location: TableLocation
    version: int
    pairs: Pairs

    def __call__(self) -> list[MatchedFragment]:
        """Return the fragments without the rows. It does not say which keys they had."""
        addresses, _ = self.pairs.read(self.location)
        dataset = self.location.open(self.version)
        numbers, offsets, _ = split_by_fragment(np.sort(addresses))
        return [delete_rows(dataset, *each) for each in zip(numbers, offsets, strict=True)]


@dataclass(frozen=True, slots=True)
class CountKeys:
    """A task: count the keys of a partition that are in the table, of what several searches have found."""

    location: TableLocation
    searches: tuple[Pairs, ...]

    def __call__(self) -> int:
        """Return their number."""
        return len(np.unique(np.concatenate([pairs.read(self.location)[1] for pairs in self.searches])))


@dataclass(frozen=True, slots=True)
class PairedAddresses:
    """Where rows of the table are that have the keys of a group: pairs of its positions, which begin with `first`."""

    searches: tuple[Pairs, ...]
    first: int

    def find(self, dataset: lance.LanceDataset, source: SourceKeys) -> NDArray[np.int64]:  # all is found
        """Return the address of each key's row, -1 where there is none; of a key that is there twice, the first."""
        addresses = np.full(source.rows, _NOWHERE, np.int64)
        for search in self.searches:
            found, positions = search.read(source.location)
            np.minimum.at(addresses, positions - self.first, found.astype(np.int64))
        return np.where(addresses == _NOWHERE, -1, addresses)


def read_ranges(location: TableLocation, ranges: Ranges, columns: Sequence[str]) -> pa.Table:
    """Return these rows of files; of none, columns of int64. Raises OSError."""
    portions = [_read_portion(location, part, columns) for part in ranges.portions(_ROWS_AT_ONCE)]
    return pa.concat_tables(portions) if portions else pa.table({name: pa.array([], pa.int64()) for name in columns})


def _read_portion(location: TableLocation, ranges: Sequence[Range], columns: Sequence[str]) -> pa.Table:
    def read(one: Range) -> pa.Table:
        path, first, count = one
        options = dict(location.options) or None
        reader = LanceFileReader(f"{location.uri}/{path}", options, list(columns), **location.refresh_arguments)
        return reader.read_range(first, count, batch_size=count).to_table().select(list(columns))

    return pa.concat_tables(run_together(read, ranges, _READS_AT_ONCE)).combine_chunks()


def _by_place(keys: pa.Table) -> dict[str, Any]:
    """Return the columns by their places: any name of the table's may be that of an address."""
    return {str(place): column.combine_chunks() for place, column in enumerate(keys.columns)}
