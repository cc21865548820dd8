"""Tasks of an upsert: find the rows of a table whose key is in the source, and check that the source's keys are unique.

The source's keys are read from the fragments that were written for it, a few million at a time, into a hash table over
Arrow memory; the table is scanned against it, key columns only. Nothing is shuffled: that is what `partition_tasks` do
with more keys.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.change_feed.table_history import get_fragment, split_by_fragment
from tiltyard.change_feed.version_rows import VersionRows, take_addresses
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.writing.fragments import FragmentTarget, read_data_files, write_batches

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

    from tiltyard.pipeline.table_location import TableLocation

BATCH_ROWS = 65_536
COMPLETED_BATCH_ROWS = 8_192
"""Rows that are completed at once, whatever their columns hold."""
MAX_KEYS_IN_MEMORY = 4_000_000
"""How many keys of the source a task holds in memory."""

MAX_KEY_RANGE = 1 << 23
"""Whole numbers from the least to the greatest of which are so many are found by their values, in 32 MiB."""
_RANGE_PER_ROW = 8
"""And no more than so many for each number that is looked for, or is a key."""
_MISSING = -1


@dataclass(frozen=True, slots=True)
class SourceKeys:
    """The key columns `on` of fragments that are written but not committed: their data files, and their rows."""

    location: TableLocation
    on: tuple[str, ...]
    files: tuple[str, ...]
    rows: int

    @classmethod
    def of(cls, location: TableLocation, on: Sequence[str], fragments: Sequence[FragmentMetadata]) -> SourceKeys:
        """Describe the keys of newly written fragments, each of which has one data file."""
        files = tuple(fragment.files[0].path for fragment in fragments)
        return cls(location, tuple(on), files, sum(fragment.physical_rows for fragment in fragments))

    def load(self) -> KeysInMemory:
        """Return the keys in the memory of this process."""
        return KeysInMemory(self.location, self.on, pa.concat_tables(self.chunks()))

    def chunks(self, size: int = MAX_KEYS_IN_MEMORY) -> Iterator[pa.Table]:
        """Yield all keys, in tables of about `size` rows."""
        batches: list[pa.RecordBatch] = []
        for batch in self._read_batches():
            batches.append(batch)
            if sum(read.num_rows for read in batches) >= size:
                yield pa.Table.from_batches(batches)
                batches = []
        if batches:
            yield pa.Table.from_batches(batches)

    def _read_batches(self) -> Iterator[pa.RecordBatch]:
        on = list(self.on)
        batches = read_data_files(self.location, [f"data/{file}" for file in self.files], on, BATCH_ROWS)
        return (batch.select(on) for batch in batches)  # in the order of `on`: a file has another


@dataclass(frozen=True, slots=True)
class KeysInMemory:
    """Keys that this process holds: `table` has the columns `on`, of the table's types."""

    location: TableLocation
    on: tuple[str, ...]
    table: pa.Table

    @property
    def rows(self) -> int:
        """Return the number of keys."""
        return int(self.table.num_rows)

    def chunks(self, size: int = MAX_KEYS_IN_MEMORY) -> Iterator[pa.Table]:
        """Yield all keys, in tables of up to `size` rows."""
        for first in range(0, self.table.num_rows, size):
            yield self.table.slice(first, size)


Keys = SourceKeys | KeysInMemory


@dataclass(frozen=True, slots=True)
class MatchFragments:
    """A task: find the keys in some fragments of the table at a version, and delete the rows that have one."""

    keys: Keys
    version: int
    fragments: tuple[int, ...]

    def __call__(self) -> list[MatchedFragment]:
        """Return the fragments in which a row has one of the keys."""
        dataset = self.keys.location.open(self.version)
        return match_fragments(dataset, self.fragments, self.keys)


@dataclass(frozen=True, slots=True)
class MatchedFragment:
    """A fragment without its `rows` rows that matched; `remaining` is None if all of them did.

    `keys` are the positions of the source's keys that are in it, as `pack_positions` encodes them; of none where the
    keys are counted by partition.
    """

    fragment_id: int
    rows: int
    remaining: FragmentMetadata | None
    keys: bytes


@dataclass(frozen=True, slots=True)
class CheckKeys:
    """A task: check that no key is null, and of one of `buckets` hash buckets that each key is there once."""

    keys: Keys
    bucket: int
    buckets: int

    def __call__(self) -> list[MatchedFragment]:
        """Return no fragment, as the type of a matching task's result. Raises RefusedError."""
        chunks: list[pa.Table] = []
        for chunk in self.keys.chunks():
            check_no_nulls(chunk)
            if self.buckets > 1:
                chunk = chunk.filter(pa.array(hash_buckets(chunk, self.buckets) == self.bucket))  # noqa: PLW2901  # of this bucket
            chunks.append(chunk)
        if chunks:
            check_unique(pa.concat_tables(chunks))
        return []


@dataclass(frozen=True, slots=True)
class KeptColumns:
    """Columns of a table that a source lacks, and that its rows keep; `target` says how such rows are written."""

    names: tuple[str, ...]
    target: FragmentTarget


class FoundAddresses(Protocol):
    """Where the rows of a table are that have the keys of a source."""

    def find(self, dataset: lance.LanceDataset, source: SourceKeys) -> Any:
        """Return the address of each key's row, -1 where there is none; of a key that is there twice, the first."""


@dataclass(frozen=True, slots=True)
class ScannedAddresses:
    """They are looked for in `fragments`, in which a row has one of the keys."""

    fragments: tuple[int, ...]

    def find(self, dataset: lance.LanceDataset, source: SourceKeys) -> Any:
        """Return the addresses."""
        keys, on = source.load().table, list(source.on)
        addresses = np.full(keys.num_rows, _MISSING, np.int64)
        parts = [get_fragment(dataset, number) for number in self.fragments]
        options: dict[str, Any] = {"with_row_address": True, "fragments": parts, "batch_size": BATCH_ROWS}
        for batch in dataset.scanner(columns=on, **options).to_batches() if parts else ():
            positions = find_positions(pa.Table.from_batches([batch]).select(on), keys)
            hits = np.flatnonzero(positions != _MISSING)
            found = batch.column("_rowaddr").to_numpy()[hits].astype(np.int64)
            known = addresses[positions[hits]]
            addresses[positions[hits]] = np.where(known == _MISSING, found, np.minimum(known, found))
        return addresses


@dataclass(frozen=True, slots=True)
class CompleteRows:
    """A task: write rows of a source again, with what the table has of them in columns that the source lacks.

    `found` has the addresses of the table's rows, by the place of their key in `source`. A row that is not there keeps
    its nulls.
    """

    source: SourceKeys
    kept: KeptColumns
    version: int
    found: FoundAddresses

    def __call__(self) -> list[str]:
        """Return the fragments, as JSON."""
        dataset = self.source.location.open(self.version)
        return write_batches(self.kept.target, self._complete(dataset, self.found.find(dataset, self.source)))

    def _complete(self, dataset: lance.LanceDataset, addresses: Any) -> Iterator[pa.RecordBatch]:
        version, names, first = VersionRows(dataset, None, ()), self.kept.target.schema.names, 0
        files = [f"data/{file}" for file in self.source.files]
        for batch in read_data_files(self.source.location, files, names, COMPLETED_BATCH_ROWS):
            yield self._with_kept(batch.select(names), version, addresses[first : first + batch.num_rows])
            first += batch.num_rows

    def _with_kept(self, batch: pa.RecordBatch, version: VersionRows, addresses: Any) -> pa.RecordBatch:
        order = np.argsort(addresses, kind="stable")
        order = order[addresses[order] != _MISSING]
        if not len(order):
            return batch
        old = take_addresses(version, self.kept.names, addresses[order])
        places = np.full(batch.num_rows, _MISSING, np.int64)
        places[order] = np.arange(len(order))
        places = pa.array(places, mask=places == _MISSING)
        for name in self.kept.names:
            number = batch.schema.get_field_index(name)
            batch = batch.set_column(number, batch.schema.field(number), old[name].combine_chunks().take(places))
        return batch


def match_fragments(dataset: lance.LanceDataset, numbers: Sequence[int], keys: Keys) -> list[MatchedFragment]:
    """Find the rows of these fragments that have one of the keys; return the fragments without them, to commit."""
    parts = [get_fragment(dataset, number) for number in numbers]
    scanner = dataset.scanner(columns=list(keys.on), with_row_address=True, fragments=parts, batch_size=BATCH_ROWS)
    table = scanner.to_table()
    positions = np.full(table.num_rows, _MISSING, np.int64)
    first = 0
    for chunk in keys.chunks():
        in_chunk = find_positions(table.select(list(keys.on)), chunk)
        positions = np.where(in_chunk == _MISSING, positions, in_chunk + first)
        first += chunk.num_rows
    hits = np.flatnonzero(positions != _MISSING)
    if not len(hits):
        return []
    addresses = table.column("_rowaddr").to_numpy()[hits]
    order = np.argsort(addresses, kind="stable")
    addresses, positions = addresses[order], positions[hits][order]
    matched, offsets, starts = split_by_fragment(addresses)
    return [
        delete_rows(dataset, number, rows, in_fragment)
        for number, rows, in_fragment in zip(matched, offsets, np.split(positions, starts[1:]), strict=True)
    ]


def have_common_key(keys: Keys, other: SourceKeys) -> bool:
    """Return whether two have a key in common."""
    return any(
        bool((find_positions(rows, chunk) != _MISSING).any()) for rows in other.chunks() for chunk in keys.chunks()
    )


def find_positions(rows: pa.Table, keys: pa.Table) -> Any:
    """Return for each row the position of its values among the keys, -1 where they are not there, as numpy's int64.

    Nulls are equal to nothing.
    """
    positions = np.full(rows.num_rows, _MISSING, np.int64)
    if rows.num_columns == 1:
        value_set = keys.column(0).combine_chunks()
        if (near := _find_near_integers(rows.column(0), value_set)) is not None:
            return near
        if rows.num_rows:
            indices = pc.index_in(rows.column(0), value_set=value_set, skip_nulls=True).combine_chunks()
            positions[:] = pc.fill_null(indices, _MISSING).to_numpy()
        return positions
    numbered_rows = rows.append_column("__row", pa.array(np.arange(rows.num_rows)))
    numbered_keys = keys.append_column("__key", pa.array(np.arange(keys.num_rows)))
    matched = numbered_rows.join(numbered_keys, keys=keys.column_names, join_type="inner")
    positions[matched.column("__row").to_numpy()] = matched.column("__key").to_numpy()
    return positions


def _find_near_integers(rows: pa.ChunkedArray, keys: pa.Array) -> Any:
    """Find whole numbers among keys that lie close together, in a tenth of the time; None for all others."""
    is_integer = pa.types.is_integer(rows.type) and rows.type != pa.uint64() and rows.type == keys.type
    if not is_integer or rows.null_count or keys.null_count or not len(rows) or not len(keys):
        return None
    numbers = keys.to_numpy().astype(np.int64)
    lowest, span = numbers.min(), int(numbers.max()) - int(numbers.min())
    if span > min(MAX_KEY_RANGE, _RANGE_PER_ROW * (len(rows) + len(keys))):
        return None
    by_offset = np.full(span + 2, _MISSING, np.int32)  # the last one is for all numbers that lie outside
    by_offset[(numbers - lowest)[::-1]] = np.arange(len(numbers), dtype=np.int32)[::-1]  # of doubles, the first one
    offsets = (rows.to_numpy().astype(np.int64) - lowest).view(np.uint64)  # a number below `lowest` wraps around
    return by_offset[np.minimum(offsets, np.uint64(span + 1))].astype(np.int64)


def pack_positions(positions: Any) -> bytes:
    """Compress positions of keys, each once, to a byte or less for each where many of the keys are there.

    The first byte is the width, in bytes, of the steps from one position to the next that follow, compressed.
    """
    ordered = np.sort(np.asarray(positions, np.int64))
    steps = np.diff(ordered, prepend=0)
    steps = np.concatenate([steps[:1], steps[1:][steps[1:] > 0]]).astype(np.uint64)
    width = np.min_scalar_type(int(steps.max(initial=0))).itemsize
    return bytes([width]) + zlib.compress(steps.astype(f"<u{width}").tobytes(), 1)


def count_keys(packed: Iterable[bytes], keys: int) -> int:
    """Count the distinct positions in any of these, of so many keys in all."""
    bitmap = np.zeros((keys + 7) // 8, np.uint8)
    for part in packed:
        positions = np.cumsum(np.frombuffer(zlib.decompress(part[1:]), f"<u{part[0]}"), dtype=np.uint64)
        byte_numbers, starts = np.unique(positions >> np.uint64(3), return_index=True)
        bits = np.left_shift(np.uint8(1), (positions & np.uint64(7)).astype(np.uint8))
        if len(byte_numbers):
            bitmap[byte_numbers] |= np.bitwise_or.reduceat(bits, starts)
    return int.from_bytes(bitmap.tobytes(), "little").bit_count()


def delete_rows(dataset: lance.LanceDataset, number: int, offsets: Any, positions: Any = ()) -> MatchedFragment:
    """Delete rows of a fragment, by their offsets; nothing is committed. `positions` are those of their keys."""
    remaining = get_fragment(dataset, number).delete_rows(offsets.tolist())
    return MatchedFragment(number, len(offsets), remaining, pack_positions(positions))


def hash_buckets(keys: pa.Table, buckets: int) -> Any:
    """Return the bucket of each key, from a hash that is the same in every process; no key may be null."""
    import pandas as pd  # noqa: PLC0415  # an extra: only many keys are hashed, in tasks of Spark

    return pd.util.hash_pandas_object(keys.to_pandas(), index=False).to_numpy() % np.uint64(buckets)


def check_no_nulls(keys: pa.Table) -> None:
    """Raise RefusedError for a key that is null."""
    for name in keys.column_names:
        if nulls := keys.column(name).null_count:
            raise RefusedError(f"The key '{name}' is null in {nulls} rows of the source: leave those rows out.")


def check_unique(keys: pa.Table) -> None:
    """Raise RefusedError, with an example, for keys that are there more than once."""
    counted = keys.group_by(keys.column_names).aggregate([([], "count_all")])
    if counted.num_rows == keys.num_rows:
        return
    duplicates = counted.filter(pc.greater(counted.column("count_all"), 1))
    example = duplicates.select(keys.column_names).slice(0, 1).to_pylist()[0]
    raise RefusedError(
        f"{keys.num_rows - counted.num_rows} rows of the source have a key that an earlier row has, such as {example}: "
        "a key may be there once."
    )
