"""Take rows by their addresses from the cached columns of a version, and find and count those with given integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOOKUPS_BEFORE_SORT = 32
"""Look-ups in a version that Lance answers before a column is sorted: together they take as long as that."""
_MAX_SORTED_ROWS = 200_000
"""Rows up to which a column is sorted, which takes 20 ms."""
_MAX_FOUND_ROWS = 10_000
"""Rows up to which a look-up returns their addresses: to order more of them takes Lance no longer."""
_FEW_ROWS = 16
"""Rows up to which each is taken by itself: ten rows of four fragments in a sixth of the time."""
_OFFSET_MASK = 0xFFFF_FFFF
_TAKE = pc.get_function("take")
"""To look it up takes and releases the interpreter's lock twice."""
_TAKE_OPTIONS = pc.TakeOptions()
"""As those of `RecordBatch.take`, which makes them anew each time."""


@dataclass(frozen=True, slots=True)
class IntegerRange:
    """The integers from `first` to `last`, both of them included; None where the range has no end."""

    first: int | None
    last: int | None


Integers = tuple[int, ...] | IntegerRange
"""Integers that select rows, in any order: each of some, or a range of them."""


@dataclass(frozen=True, slots=True)
class _SortedColumn:
    """The integers of a column in ascending order, and the addresses of their rows."""

    values: np.ndarray[Any, Any]
    addresses: np.ndarray[Any, Any]

    def spans(self, integers: Integers) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
        """Return where the rows with these integers begin and end; None if the column cannot have one of them."""
        bounds, kind = np.iinfo(self.values.dtype), self.values.dtype
        if isinstance(integers, IntegerRange):
            first = bounds.min if integers.first is None else integers.first
            last = bounds.max if integers.last is None else integers.last
            if not (bounds.min <= first <= bounds.max and bounds.min <= last <= bounds.max):
                return None
            begin = self.values.searchsorted(np.array([first], kind), "left")
            return begin, np.maximum(begin, self.values.searchsorted(np.array([last], kind), "right"))
        if not bounds.min <= min(integers) <= max(integers) <= bounds.max:
            return None
        keys = np.array(sorted(set(integers)), kind)
        return self.values.searchsorted(keys, "left"), self.values.searchsorted(keys, "right")

    def count(self, integers: Integers) -> int | None:
        """Return how many rows have one of these integers; None if the column cannot have one of them."""
        spans = self.spans(integers)
        return None if spans is None else int((spans[1] - spans[0]).sum())

    def find(self, integers: Integers) -> pa.UInt64Array | None:
        """Return the addresses of the rows with one of these integers, ascending; None as in `count`, or for many."""
        spans = self.spans(integers)
        if spans is None or (count := int((spans[1] - spans[0]).sum())) > _MAX_FOUND_ROWS:
            return None
        begins, ends = spans
        if len(begins) == 1:
            found = self.addresses[begins[0] : ends[0]]
            return pa.array(found if isinstance(integers, tuple) else np.sort(found))
        lengths = ends - begins
        positions = np.repeat(ends - lengths.cumsum(), lengths) + np.arange(count)
        return pa.array(np.sort(self.addresses[positions]))


class CachedRows:
    """Columns of one version of a table, all its rows, by row address."""

    def __init__(
        self, schema: pa.Schema, fragments: Mapping[int, pa.RecordBatch], by_id: bool, has_deletions: bool
    ) -> None:
        """`by_id`: row ids are addresses in this table. `has_deletions`: some of the rows are deleted."""
        self.fields = {column.name: column for column in schema}
        self.address = "_rowid" if by_id else "_rowaddr"
        self._fragments = fragments
        self._only_fragment = fragments.get(0) if len(fragments) == 1 else None
        self._has_deletions = has_deletions
        self._lengths = {number: batch.num_rows for number, batch in fragments.items()}
        self.has_row_at_each_id = by_id and not has_deletions
        """Whether row ids are the addresses of rows, and none of these is deleted."""
        self._sorted: dict[str, _SortedColumn | None] = {}
        self._lookups = 0
        self.response_schemas: dict[tuple[str, ...], pa.Schema] = {}
        """Schemas of responses with these columns, by their names."""

    def find(self, name: str, integers: Integers, *, is_counted: bool = True) -> pa.UInt64Array | None:
        """Return the addresses of the rows with an integer in a column, ascending; None where Lance has to find them.

        That is so for the first look-ups that are counted, until they have cost as much as it takes to sort the column.
        """
        column = self._sorted_column(name, is_counted=is_counted)
        return None if column is None else column.find(integers)

    def find_ids(self, ids: tuple[int, ...]) -> pa.UInt64Array | None:
        """Return the addresses of the rows with these row ids, ascending; None where Lance has to find them."""
        if not self.has_row_at_each_id or min(ids) < 0:
            return None
        lengths = self._lengths
        return pa.array([at for at in sorted(set(ids)) if at & _OFFSET_MASK < lengths.get(at >> 32, 0)], pa.uint64())

    def count(self, name: str, integers: Integers) -> int | None:
        """Return how many rows have an integer in a column; None where Lance has to count them, as in `find`."""
        column = self._sorted_column(name)
        return None if column is None else column.count(integers)

    def is_in_order(self, name: str) -> bool:
        """Return whether a column is sorted already."""
        return self._sorted.get(name) is not None

    def _sorted_column(self, name: str, *, is_counted: bool = True) -> _SortedColumn | None:
        """Return a column in order, once there were enough look-ups; None for what `_sort` cannot order."""
        if name not in self._sorted:
            if self._lookups < _LOOKUPS_BEFORE_SORT:
                self._lookups += is_counted
                return None
            self._sorted[name] = self._sort(name)
        return self._sorted[name]

    def _sort(self, name: str) -> _SortedColumn | None:
        """Return a column in order; None for nulls and deleted rows, other types, and too many rows."""
        arrays = {number: batch.column(name) for number, batch in self._fragments.items()}
        if self._has_deletions or not pa.types.is_integer(self.fields[name].type):
            return None
        if sum(map(len, arrays.values())) > _MAX_SORTED_ROWS or any(array.null_count for array in arrays.values()):
            return None
        numbers = sorted(arrays)
        values = np.concatenate([arrays[number].to_numpy() for number in numbers])
        addresses = np.concatenate([(number << 32) + np.arange(len(arrays[number])) for number in numbers])
        order = np.argsort(values, kind="stable")
        return _SortedColumn(values[order], addresses[order].astype(np.uint64))

    def take(self, addresses: pa.UInt64Array) -> list[pa.Array]:
        """Return the columns at these rows, in their order. Raises KeyError, pa.ArrowIndexError for unknown rows."""
        if self._only_fragment is not None:
            taken: pa.RecordBatch = _TAKE.call([self._only_fragment, addresses], _TAKE_OPTIONS)
            return list(taken.columns)
        if len(addresses) <= _FEW_ROWS:
            return self._take_few(addresses.to_pylist())
        positions = addresses.to_numpy()
        numbers, offsets = positions >> 32, positions & _OFFSET_MASK
        present = np.unique(numbers).tolist()
        if len(present) == 1:
            return list(self._fragments[present[0]].take(pa.array(offsets)).columns)
        if not present:
            return list(next(iter(self._fragments.values())).slice(0, 0).columns)
        order = np.argsort(numbers, kind="stable")
        rows = np.split(offsets[order], np.flatnonzero(np.diff(numbers[order])) + 1)
        parts = [self._fragments[number].take(pa.array(taken)) for number, taken in zip(present, rows, strict=True)]
        return list(pa.concat_batches(parts).take(pa.array(np.argsort(order, kind="stable"))).columns)

    def _take_few(self, addresses: list[int]) -> list[pa.Array]:
        if not addresses:
            return list(next(iter(self._fragments.values())).slice(0, 0).columns)
        rows = pa.concat_batches([self._fragments[at >> 32].slice(at & _OFFSET_MASK, 1) for at in addresses])
        if len(rows) < len(addresses):
            raise pa.ArrowIndexError("No fragment has some of these rows.")
        return list(rows.columns)
