"""Which rows of a table have a key of the source: the tasks of an upsert. Which of them go: those of a delete.

The keys of the source are read from the fragments that were written for it, a few million at a time, and looked up in
a hash table over Arrow memory: rows of the table pass by it with their key columns only. Nothing is shuffled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.pipeline.changes import fragment
from tiltyard.pipeline.fragments import read_data_files
from tiltyard.pipeline.refusing import RefusedError

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

    from tiltyard.pipeline.places import Place

BATCH_ROWS = 65_536
KEYS_AT_ONCE = 4_000_000
"""How many keys of the source a task holds in memory."""

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
    """A fragment without the rows that matched; `left` is None if all of them did."""

    fragment: int
    rows: int
    left: FragmentMetadata | None


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
    hits = np.zeros(table.num_rows, bool)
    for chunk in keys.chunks():
        hits |= found(table.select(list(keys.on)), chunk)
    addresses = np.sort(table.column("_rowaddr").to_numpy()[hits])
    if not len(addresses):
        return []
    numbers, first = np.unique(addresses >> _FRAGMENT_SHIFT, return_index=True)
    offsets = np.split(addresses & _OFFSET_BITS, first[1:])
    return [_deleted(dataset, int(number), rows) for number, rows in zip(numbers, offsets, strict=True)]


def share_keys(ours: Sequence[pa.Table], theirs: Keys) -> bool:
    """Whether any key of theirs is one of ours, which are in memory."""
    return any(bool(found(rows, chunk).any()) for rows in theirs.chunks() for chunk in ours)


def found(rows: pa.Table, keys: pa.Table) -> Any:
    """For each row, whether its values are among the keys: a numpy array of bool. Nulls are equal to nothing."""
    if rows.num_columns == 1:
        column, among = rows.column(0), keys.column(0).combine_chunks()
        hit = pc.is_in(column, value_set=among, skip_nulls=True)
        return hit.combine_chunks().to_numpy(zero_copy_only=False) if rows.num_rows else np.zeros(0, bool)
    numbered = rows.append_column("__row", pa.array(np.arange(rows.num_rows)))
    matched = numbered.join(keys, keys=keys.column_names, join_type="left semi").column("__row").to_numpy()
    hits = np.zeros(rows.num_rows, bool)
    hits[matched] = True
    return hits


def _deleted(dataset: lance.LanceDataset, number: int, offsets: Any) -> Matched:
    return Matched(number, len(offsets), fragment(dataset, number).delete_rows(offsets.tolist()))


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
