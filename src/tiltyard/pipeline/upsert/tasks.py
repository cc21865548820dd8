"""Which rows of a table have a key of the source: the tasks of an upsert. Which of them go: those of a delete.

The keys of the source are read from the fragments that were written for it, a few million at a time, and looked up in
a hash table over Arrow memory: rows of the table pass by it with their key columns only. Nothing is shuffled.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.version_diff import fragment
from tiltyard.pipeline.writing.fragments import read_data_files

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

    from tiltyard.pipeline.table_location import Place

BATCH_ROWS = 65_536
KEYS_AT_ONCE = 4_000_000
"""How many keys of the source a task holds in memory."""

_NOT_THERE = -1
_FRAGMENT_SHIFT = np.uint64(32)
_OFFSET_BITS = np.uint64(0xFFFF_FFFF)


@dataclass(frozen=True, slots=True)
class Keys:
    """The key columns of fragments that are written but not committed: data files below `place`, with their rows."""

    place: Place
    on: tuple[str, ...]
    files: tuple[str, ...]
    rows: int

    @classmethod
    def of(cls, place: Place, on: Sequence[str], written: Sequence[FragmentMetadata]) -> Keys:
        """The keys of fresh fragments, each of which has one data file."""
        files = tuple(one.files[0].path for one in written)
        return cls(place, tuple(on), files, sum(one.physical_rows for one in written))

    def chunks(self, size: int = KEYS_AT_ONCE) -> Iterator[pa.Table]:
        """All keys, in tables of about `size` rows."""
        held: list[pa.RecordBatch] = []
        for batch in self._batches():
            held.append(batch)
            if sum(one.num_rows for one in held) >= size:
                yield pa.Table.from_batches(held)
                held = []
        if held:
            yield pa.Table.from_batches(held)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        on = list(self.on)
        batches = read_data_files(self.place, [f"data/{file}" for file in self.files], on, BATCH_ROWS)
        return (batch.select(on) for batch in batches)  # in our order: a file has its own


@dataclass(frozen=True, slots=True)
class Match:
    """Find the keys in some fragments of the table at a version, and delete those rows."""

    keys: Keys
    version: int
    branch: str | None
    fragments: tuple[int, ...]

    def __call__(self) -> list[Matched]:
        """One answer for each fragment in which a row had one of the keys."""
        dataset = self.keys.place.open(self.version, self.branch)
        return match(dataset, self.fragments, self.keys)


@dataclass(frozen=True, slots=True)
class Matched:
    """A fragment without the rows that matched; `left` is None if all of them did.

    `keys` are the positions of the source's keys that were found here, as `pack_positions` makes them.
    """

    fragment: int
    rows: int
    left: FragmentMetadata | None
    keys: bytes = b""


@dataclass(frozen=True, slots=True)
class CheckKeys:
    """Check the keys of one of `buckets`: none may be there twice, or be null."""

    keys: Keys
    bucket: int
    buckets: int

    def __call__(self) -> list[Matched]:
        """Nothing. Raises RefusedError."""
        held: list[pa.Table] = []
        for chunk in self.keys.chunks():
            _refuse_nulls(chunk)
            mine = chunk if self.buckets == 1 else chunk.filter(pa.array(_bucket(chunk, self.buckets) == self.bucket))
            held.append(mine)
        if held:
            _refuse_twins(pa.concat_tables(held))
        return []


@dataclass(frozen=True, slots=True)
class Search:
    """A task: the rows of some fragments for which a condition holds."""

    place: Place
    version: int
    fragments: tuple[int, ...]
    where: str

    def __call__(self) -> list[Matched]:
        """One answer for each fragment that has such rows."""
        dataset = self.place.open(self.version)
        found = []
        for number in self.fragments:
            part = fragment(dataset, number)
            left = part.delete(self.where)
            rows = part.count_rows() - (left.num_rows if left else 0)
            if rows:
                found.append(Matched(number, rows, left))
        return found


def match(dataset: lance.LanceDataset, fragments: Sequence[int], keys: Keys) -> list[Matched]:
    """The rows of these fragments that have one of the keys, deleted from what a later commit shall name."""
    wanted = [fragment(dataset, number) for number in fragments]
    scanner = dataset.scanner(columns=list(keys.on), with_row_address=True, fragments=wanted, batch_size=BATCH_ROWS)
    table = scanner.to_table()
    positions = np.full(table.num_rows, _NOT_THERE, np.int64)
    first = 0
    for chunk in keys.chunks():
        here = find_positions(table.select(list(keys.on)), chunk)
        positions = np.where(here == _NOT_THERE, positions, here + first)
        first += chunk.num_rows
    hits = np.flatnonzero(positions != _NOT_THERE)
    if not len(hits):
        return []
    addresses = table.column("_rowaddr").to_numpy()[hits]
    order = np.argsort(addresses, kind="stable")
    addresses, positions = addresses[order], positions[hits][order]
    numbers, starts = np.unique(addresses >> _FRAGMENT_SHIFT, return_index=True)
    parts = zip(numbers, np.split(addresses & _OFFSET_BITS, starts[1:]), np.split(positions, starts[1:]), strict=True)
    return [_deleted(dataset, int(number), offsets, found) for number, offsets, found in parts]


def share_keys(ours: Sequence[pa.Table], theirs: Keys) -> bool:
    """Whether any key of theirs is one of ours, which are in memory."""
    return any(bool((find_positions(rows, chunk) != _NOT_THERE).any()) for rows in theirs.chunks() for chunk in ours)


def find_positions(rows: pa.Table, keys: pa.Table) -> Any:
    """Return for each row the position of its values among the keys, -1 where they are not there, as numpy's int64.

    Nulls are equal to nothing.
    """
    positions = np.full(rows.num_rows, _NOT_THERE, np.int64)
    if rows.num_columns == 1:
        if rows.num_rows:
            among = keys.column(0).combine_chunks()
            here = pc.index_in(rows.column(0), value_set=among, skip_nulls=True).combine_chunks()
            positions[:] = pc.fill_null(here, _NOT_THERE).to_numpy()
        return positions
    numbered = rows.append_column("__row", pa.array(np.arange(rows.num_rows)))
    known = keys.append_column("__key", pa.array(np.arange(keys.num_rows)))
    matched = numbered.join(known, keys=keys.column_names, join_type="inner")
    positions[matched.column("__row").to_numpy()] = matched.column("__key").to_numpy()
    return positions


def pack_positions(positions: Any) -> bytes:
    """Compress positions of keys, each once: a byte or less for one, where many of the keys are there.

    The first byte tells how many bytes a step from one position to the next takes, before it is compressed.
    """
    ordered = np.sort(np.asarray(positions, np.int64))
    steps = np.diff(ordered, prepend=0)
    steps = np.concatenate([steps[:1], steps[1:][steps[1:] > 0]]).astype(np.uint64)
    width = np.min_scalar_type(int(steps.max(initial=0))).itemsize
    return bytes([width]) + zlib.compress(steps.astype(f"<u{width}").tobytes(), 1)


def count_keys(packed: Iterable[bytes], keys: int) -> int:
    """Count the keys, of so many, whose positions are in any of these: one that was found twice counts once."""
    seen = np.zeros((keys + 7) // 8, np.uint8)
    for part in packed:
        positions = np.cumsum(np.frombuffer(zlib.decompress(part[1:]), f"<u{part[0]}"), dtype=np.uint64)
        at, starts = np.unique(positions >> np.uint64(3), return_index=True)
        bits = np.left_shift(np.uint8(1), (positions & np.uint64(7)).astype(np.uint8))
        if len(at):
            seen[at] |= np.bitwise_or.reduceat(bits, starts)
    return int.from_bytes(seen.tobytes(), "little").bit_count()


def _deleted(dataset: lance.LanceDataset, number: int, offsets: Any, positions: Any) -> Matched:
    left = fragment(dataset, number).delete_rows(offsets.tolist())
    return Matched(number, len(offsets), left, pack_positions(positions))


def _bucket(keys: pa.Table, buckets: int) -> Any:
    return pd.util.hash_pandas_object(keys.to_pandas(), index=False).to_numpy() % np.uint64(buckets)


def _refuse_nulls(keys: pa.Table) -> None:
    for name in keys.column_names:
        if nulls := keys.column(name).null_count:
            raise RefusedError(f"The key '{name}' is null in {nulls} rows of the source: leave those rows out.")


def _refuse_twins(keys: pa.Table) -> None:
    counted = keys.group_by(keys.column_names).aggregate([([], "count_all")])
    if counted.num_rows == keys.num_rows:
        return
    twins = counted.filter(pc.greater(counted.column("count_all"), 1))
    example = twins.select(keys.column_names).slice(0, 1).to_pylist()[0]
    raise RefusedError(
        f"{keys.num_rows - counted.num_rows} rows of the source have a key that an earlier row has, such as {example}: "
        "a key may be there once."
    )
