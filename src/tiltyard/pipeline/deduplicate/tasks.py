"""Tasks of a deduplication: read signatures, pair rows that share a band's hash, compare pairs, write the column.

A row is its address: the number of its fragment, in the upper half, and its place in it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from lance.file import LanceFileWriter
from lance.fragment import DataFile

from tiltyard.change_feed.table_history import get_fragment
from tiltyard.change_feed.version_rows import VersionRows, take_addresses
from tiltyard.pipeline.datasource.spark_types import cast_for_spark
from tiltyard.pipeline.deduplicate.signatures import Comparison, split_signatures
from tiltyard.pipeline.private_variables import set_task_variables
from tiltyard.pipeline.table_location import TableLocation, scan_fragments

if TYPE_CHECKING:
    import lance
    from numpy.typing import NDArray

MAX_NEIGHBOURS = 32
"""With so many values before it a value is compared in a bucket: all of them, in a bucket of up to 33 values."""
MAX_PAIRS_AT_ONCE = 4096
"""Pairs whose values are in memory at once."""
SCAN_ROWS = 1 << 16
"""Signatures that are read at once, of which equal ones become one."""

BUCKETS = "bucket bigint, first bigint, second bigint, row bigint"
PAIRS = "low bigint, high bigint"
CONTENTS = "first bigint, second bigint, row bigint"

_PAIRS = pa.schema([("low", pa.int64()), ("high", pa.int64())])

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class ComparedRows:
    """The version of a table whose rows are compared: `on` by their `signature`, as `comparison` says."""

    location: TableLocation
    version: int
    on: str
    signature: str
    comparison: Comparison

    def open(self) -> lance.LanceDataset:
        """Open it."""
        return self.location.open(self.version)


@dataclass(frozen=True, slots=True)
class GroupOrder:
    """Which row of a group comes first: by columns, each with whether the largest does, and then by the key."""

    key: str
    by: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class ReadRows:
    """A function for Spark: its input is numbers of parts, which are fragments, its output their rows."""

    table: ComparedRows
    parts: tuple[tuple[int, ...], ...]
    variables: Mapping[str, str]

    def __call__(self, batches: Batches) -> Batches:
        """Yield what `select` makes of the rows of the parts."""
        set_task_variables(self.variables)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.select(self._scan(self.parts[number]))

    def _scan(self, fragments: Sequence[int], columns: Sequence[str] = ()) -> Batches:
        names = [*columns, self.table.signature]
        options: dict[str, Any] = {"columns": names, "with_row_address": True, "batch_size": SCAN_ROWS}
        for batch in scan_fragments(self.table.open(), fragments, **options):
            yield batch.filter(batch.column(self.table.signature).is_valid())

    def select(self, batches: Batches) -> Batches:
        """Yield CONTENTS: equal values have equal contents."""
        for batch in batches:
            contents, _ = self._split(batch)
            columns = [contents[:, 0], contents[:, 1], _addresses(batch)]
            yield pa.record_batch([pa.array(column) for column in columns], ["first", "second", "row"])

    def _split(self, batch: pa.RecordBatch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return split_signatures(batch.column(self.table.signature), self.table.comparison.bands)


@dataclass(frozen=True, slots=True)
class ReadBuckets(ReadRows):
    """The same, whose output are BUCKETS: a row of it for each band; of equal values that are read together, of one."""

    def select(self, batches: Batches) -> Batches:
        """Yield BUCKETS."""
        for batch in batches:
            contents, bands = self._split(batch)
            rows = _addresses(batch)
            order = np.lexsort((rows, contents[:, 1], contents[:, 0]))
            chosen = order[_differs(contents[order, 0], contents[order, 1])]
            first, second, row = contents[chosen, 0], contents[chosen, 1], rows[chosen]
            for band in range(bands.shape[1]):
                columns = [pa.array(column) for column in (bands[chosen, band], first, second, row)]
                yield pa.record_batch(columns, ["bucket", "first", "second", "row"])


@dataclass(frozen=True, slots=True)
class ReadOrder(ReadRows):
    """The same, whose output are CONTENTS and the columns that say which row comes first, as `shape` has them."""

    columns: tuple[str, ...] = ()
    shape: pa.Schema | None = None

    def _scan(self, fragments: Sequence[int], columns: Sequence[str] = ()) -> Batches:
        yield from ReadRows._scan(self, fragments, [*dict.fromkeys(self.columns)])

    def select(self, batches: Batches) -> Batches:
        """Yield the rows; `shape` has first those columns, under other names, and then CONTENTS."""
        assert self.shape is not None
        for batch in batches:
            contents, _ = self._split(batch)
            own = [batch.column(name) for name in self.columns]
            columns = [*own, *(pa.array(column) for column in (contents[:, 0], contents[:, 1], _addresses(batch)))]
            yield from cast_for_spark([pa.record_batch(columns, self.shape.names)], self.shape)


def pair_bucket(batches: Batches) -> Batches:
    """Yield PAIRS of rows that are in one bucket, of all buckets of a partition; of equal values, of their first row.

    In a bucket of more than MAX_NEIGHBOURS + 1 values, each is paired with that many that follow, in the order of their
    contents, which is as good as any: pairs are in proportion to rows, and what is alike is still connected.
    """
    parts = [np.stack([column.to_numpy() for column in batch.columns], axis=1) for batch in batches if batch.num_rows]
    if not parts:
        return
    rows = np.concatenate(parts)
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    is_new = _differs(rows[:, 0])
    rows = rows[~(is_new & np.append(is_new[1:], True))]  # without those that are alone in their bucket
    rows = rows[np.lexsort((rows[:, 3], rows[:, 2], rows[:, 1], rows[:, 0]))]
    rows = rows[_differs(rows[:, 0], rows[:, 1], rows[:, 2])]
    buckets, addresses = rows[:, 0], rows[:, 3]
    lefts = np.arange(len(rows))
    for distance in range(1, MAX_NEIGHBOURS + 1):
        lefts = lefts[lefts + distance < len(rows)]
        lefts = lefts[buckets[lefts] == buckets[lefts + distance]]
        if not len(lefts):
            return
        pairs = np.sort(np.stack([addresses[lefts], addresses[lefts + distance]]), axis=0)
        yield pa.record_batch([pa.array(pairs[0]), pa.array(pairs[1])], schema=_PAIRS)


@dataclass(frozen=True, slots=True)
class ComparePairs:
    """A function for Spark: its input are PAIRS, its output those whose values are alike."""

    table: ComparedRows
    variables: Mapping[str, str]

    def __call__(self, batches: Batches) -> Batches:
        """Yield the pairs within the threshold."""
        set_task_variables(self.variables)
        version = VersionRows(self.table.open(), None, ())
        for batch in batches:
            for start in range(0, batch.num_rows, MAX_PAIRS_AT_ONCE):
                pairs = batch.slice(start, MAX_PAIRS_AT_ONCE)
                both = np.concatenate([column.to_numpy() for column in pairs.columns])
                rows, places = np.unique(both, return_inverse=True)
                left, right = places[: pairs.num_rows], places[pairs.num_rows :]
                values = take_addresses(version, [self.table.on], rows).column(0).combine_chunks()
                is_alike = self.table.comparison.are_alike(values, left, right)
                yield pairs.filter(pa.array(is_alike))


@dataclass(frozen=True, slots=True)
class WrittenValues:
    """What became of a fragment: its new file, None where no row's value has changed; its firsts and its duplicates."""

    fragment_id: int
    file: DataFile | None
    groups: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class WriteValues:
    """Write the column `field` of fragments, from partitions of `fragment, place, is_first, key`.

    A row without a place says that the fragment is there; one that is first of its group has no value.
    """

    location: TableLocation
    version: int
    field: pa.Field

    def __call__(self, _: int, batches: Batches) -> list[WrittenValues]:
        """Return what was written. Nothing is committed."""
        rows = pa.Table.from_batches(batches) if (batches := [*batches]) else None  # type: ignore[assignment]
        if rows is None:
            return []
        dataset = self.location.open(self.version)
        fragments = rows["fragment"].to_numpy()
        written = []
        for fragment in np.unique(fragments).tolist():
            of_fragment = rows.filter(pa.array(fragments == fragment))
            written.append(self._write(dataset, fragment, of_fragment.filter(of_fragment["place"].is_valid())))
        if files := [f"data/{values.file.path}" for values in written if values.file is not None]:
            self.location.make_durable(files)
        return written

    def _write(self, dataset: lance.LanceDataset, fragment: int, rows: pa.Table) -> WrittenValues:
        is_first = rows["is_first"].to_numpy()
        duplicates = rows.filter(pa.array(~is_first))
        counts = int(is_first.sum()), duplicates.num_rows
        options: dict[str, Any] = {"columns": [self.field.name], "with_row_id": True, "include_deleted_rows": True}
        old = dataset.scanner(fragments=[get_fragment(dataset, fragment)], **options).to_table().combine_chunks()
        places = np.full(old.num_rows, -1, np.int64)
        places[duplicates["place"].to_numpy()] = np.arange(duplicates.num_rows)
        keys = duplicates["key"].combine_chunks().cast(self.field.type)
        values = keys.take(pa.array(places, mask=places < 0))
        is_live = old["_rowid"].combine_chunks().is_valid()
        if old.column(0).combine_chunks().filter(is_live).equals(values.filter(is_live)):
            return WrittenValues(fragment, None, *counts)
        name = f"{uuid.uuid4().hex}.lance"
        schema = pa.schema([pa.field(self.field.name, self.field.type)])
        storage = {"storage_options": dict(self.location.options) or None, **self.location.refresh_arguments}
        path = f"{self.location.data_folder(None)}/{name}"
        with LanceFileWriter(path, schema, version=dataset.data_storage_version, **storage) as writer:
            writer.write_batch(pa.record_batch([values], schema))
        return WrittenValues(fragment, DataFile.create(dataset, name), *counts)


def _addresses(batch: pa.RecordBatch) -> NDArray[np.int64]:
    return np.asarray(batch.column("_rowaddr").to_numpy(), np.uint64).view(np.int64)


def _differs(*columns: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return where a row differs in a column from the one before it; the first one does."""
    differs = np.ones(len(columns[0]), bool)
    differs[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return differs
