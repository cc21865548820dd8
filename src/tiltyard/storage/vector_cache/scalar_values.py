"""Find the rows of a filter by values in memory: those of a column of a fragment, each value once and in order.

A comparison selects a span of the distinct values, and a code for each row tells its value: of one byte where these are
few, else of four. Of many values, the rows are kept in their order besides: a span of a few rows is read off there.
Filters have SQL's logic of three values, as Lance evaluates it: NaN equals itself and is above (negative NaN below) all
numbers, and zero has no sign.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.storage.vector_cache.fragments import Array

if TYPE_CHECKING:
    import lance

    from tiltyard.storage.vector_cache.fragments import Fragment

_EXTENSION = b"ARROW:extension:name"
"""In the metadata of a field whose values may be compared in another way than those of its type."""
_MAX_CODED_VALUES = 255
"""Distinct values up to which a row has a code of one byte; one more code is that of null."""
_FEW = 32
"""Part of the rows up to which those of a span are read off their order."""
Value: TypeAlias = int | str
"""A value as columns are compared: numbers, times and booleans as integers (`sortable_floats`)."""
Truth: TypeAlias = tuple[Array, Array | None]
"""Masks of the rows of a fragment for which a filter is true, and for which it is unknown; None for no such rows."""


class UnreadableValuesError(Exception):
    """The values of a fragment are not those that its metadata counts."""


@dataclass(frozen=True, slots=True)
class ScalarColumn:
    """A column of scalars: Lance's permanent id of it, and its name and type in one version."""

    id: int
    name: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class OneOf:
    """Whether a column's value is one of some."""

    column: ScalarColumn
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class InRange:
    """Whether a column's value is between two; None where the range has no end. `excludes_…`: the end is outside."""

    column: ScalarColumn
    first: Value | None = None
    last: Value | None = None
    excludes_first: bool = False
    excludes_last: bool = False


@dataclass(frozen=True, slots=True)
class IsNull:
    """Whether a column has no value."""

    column: ScalarColumn


@dataclass(frozen=True, slots=True)
class Not:
    """Whether a filter is false."""

    term: ScalarFilter


@dataclass(frozen=True, slots=True)
class Joined:
    """Whether all filters are true, or any."""

    terms: tuple[ScalarFilter, ...]
    is_all: bool


ScalarFilter: TypeAlias = OneOf | InRange | IsNull | Not | Joined


def columns_of(selected: ScalarFilter) -> Iterator[ScalarColumn]:
    """Yield the columns that a filter reads, each as often as it is named."""
    match selected:
        case Not():
            yield from columns_of(selected.term)
        case Joined():
            for term in selected.terms:
                yield from columns_of(term)
        case _:
            yield selected.column


@dataclass(frozen=True, slots=True)
class ScalarPage:
    """The values of a column of one fragment, deleted rows included.

    `values` are distinct and ascend. `codes` has the place of each row's value, or their number for null. Of many
    values, `order` has the rows by their values, and those of a value begin at its place in `starts`.
    """

    values: Array | pa.Array
    codes: Array
    order: Array
    starts: Array
    nulls: Array | None

    @classmethod
    def of(cls, values: pa.Array) -> ScalarPage:
        """Return the page of a column of scalars."""
        encoded = comparable(values).dictionary_encode()
        ascending = pc.sort_indices(encoded.dictionary)
        distinct = encoded.dictionary.take(ascending)
        count = len(distinct)
        places = np.empty(count + 1, np.int64)
        places[ascending.to_numpy()] = np.arange(count)
        places[count] = count
        codes = places[encoded.indices.fill_null(count).to_numpy(zero_copy_only=False)]
        nulls = codes == count if values.null_count else None
        kept = distinct if pa.types.is_string(distinct.type) else distinct.to_numpy(zero_copy_only=False)
        none = np.zeros(0, np.uint32)
        if count <= _MAX_CODED_VALUES:
            return cls(kept, codes.astype(np.uint8), none, none, nulls)
        order = np.argsort(codes, kind="stable").astype(np.uint32)
        starts = np.concatenate([[0], np.bincount(codes, minlength=count + 1)[:count].cumsum()]).astype(np.uint32)
        return cls(kept, codes.astype(np.uint32), order, starts, nulls)

    @property
    def nbytes(self) -> int:
        parts = (self.values, self.codes, self.order, self.starts, self.nulls)
        return sum(part.nbytes for part in parts if part is not None)

    def one_of(self, values: tuple[Value, ...]) -> Array:
        """Return which rows have one of some values."""
        spans = [(self._place(value), self._place(value, is_after=True)) for value in values]
        return self._rows([span for span in spans if span[0] < span[1]])

    def in_range(self, selected: InRange) -> Array:
        """Return which rows have a value of a range."""
        begin, end = 0, len(self.values)
        if selected.first is not None:
            begin = self._place(selected.first, is_after=selected.excludes_first)
        if selected.last is not None:
            end = self._place(selected.last, is_after=not selected.excludes_last)
        return self._rows([(begin, end)] if begin < end else [])

    def _place(self, value: Value, *, is_after: bool = False) -> int:
        """Return how many of the distinct values are before a value, itself included if it `is_after`."""
        values = self.values
        if isinstance(values, np.ndarray):
            return int(values.searchsorted(value, "right" if is_after else "left"))
        bisect = bisect_right if is_after else bisect_left
        return bisect(range(len(values)), value, key=lambda place: values[place].as_py())

    def _rows(self, spans: list[tuple[int, int]]) -> Array:
        """Return which rows have a value of spans of the distinct ones."""
        if not len(self.order) and len(spans) > 1:
            wanted = np.zeros(_MAX_CODED_VALUES + 1, dtype=bool)
            for begin, end in spans:
                wanted[begin:end] = True
            return wanted.take(self.codes)
        if len(spans) == 1 and (not len(self.order) or self._count(*spans[0]) > len(self.codes) // _FEW):
            ((begin, end),) = spans
            least = self.codes.dtype.type(begin)
            found: Array = self.codes - least < end - begin  # those below `begin` wrap, and are large
            return found
        mask = np.zeros(len(self.codes), dtype=bool)
        for begin, end in spans:
            mask[self.order[self.starts[begin] : self.starts[end]]] = True
        return mask

    def _count(self, begin: int, end: int) -> int:
        """Return how many rows have a value of a span, of many values."""
        return int(self.starts[end]) - int(self.starts[begin])


def evaluate(selected: ScalarFilter, pages: Mapping[int, ScalarPage]) -> Truth:
    """Return for which rows of a fragment a filter is true, and for which unknown; `pages` by the ids of columns."""
    match selected:
        case OneOf():
            page = pages[selected.column.id]
            return page.one_of(selected.values), page.nulls
        case InRange():
            page = pages[selected.column.id]
            return page.in_range(selected), page.nulls
        case IsNull():
            page = pages[selected.column.id]
            return np.zeros(len(page.codes), dtype=bool) if page.nulls is None else page.nulls, None
        case Not():
            true, unknown = evaluate(selected.term, pages)
            return ~true if unknown is None else ~(true | unknown), unknown
    true, unknown = evaluate(selected.terms[0], pages)
    for term in selected.terms[1:]:
        true, unknown = _join((true, unknown), evaluate(term, pages), is_all=selected.is_all)
    return true, unknown


def _join(one: Truth, other: Truth, *, is_all: bool) -> Truth:
    """Return the truth of both, or of either."""
    true: Array = one[0] & other[0] if is_all else one[0] | other[0]
    if one[1] is None and other[1] is None:
        return true, None
    if is_all:
        possible = (one[0] if one[1] is None else one[0] | one[1]) & (
            other[0] if other[1] is None else other[0] | other[1]
        )
        return true, possible & ~true
    unknown = other[1] if one[1] is None else one[1] if other[1] is None else one[1] | other[1]
    return true, None if unknown is None else unknown & ~true


def scalar_columns(dataset: lance.LanceDataset) -> Mapping[int, ScalarColumn]:
    """Return the columns of a version that are compared here, by their ids."""
    ids = {field.name(): field.id() for field in dataset.lance_schema.fields()}
    columns = (
        ScalarColumn(ids[field.name], field.name, field.type)
        for field in dataset.schema
        if _is_scalar(field.type) and field.name in ids and _EXTENSION not in (field.metadata or {})
    )
    return {column.id: column for column in columns}


def _is_scalar(type_: pa.DataType) -> bool:
    """Return whether values of a type are compared here: integers of up to 63 bits, floats, booleans, texts, times."""
    types = pa.types
    return (
        (types.is_integer(type_) and type_ != pa.uint64())
        or types.is_float32(type_)
        or types.is_float64(type_)
        or types.is_boolean(type_)
        or types.is_string(type_)
        or types.is_date32(type_)
        or (types.is_timestamp(type_) and type_.tz is None)
    )


def comparable(values: pa.Array) -> pa.Array:
    """Return values as they are compared: texts as they are, all others as integers of 64 bits."""
    type_ = values.type
    if pa.types.is_string(type_):
        return values
    if pa.types.is_floating(type_):
        nulls = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
        floats = values.fill_null(0.0).to_numpy(zero_copy_only=False).astype(np.float64)
        return pa.array(sortable_floats(floats), pa.int64(), mask=nulls)
    if pa.types.is_date32(type_):
        values = values.view(pa.int32())
    elif pa.types.is_timestamp(type_):
        return values.view(pa.int64())
    return values.cast(pa.int64())


def sortable_floats(numbers: Array) -> Array:
    """Return integers that are in the order of floats of 64 bits, NaN included; zero has no sign."""
    bits = (numbers + 0.0).view(np.int64)  # -0.0 + 0.0 is 0.0
    ordered: Array = bits ^ ((bits >> 63) & np.int64(0x7FFF_FFFF_FFFF_FFFF))
    return ordered


def read_page(
    dataset: lance.LanceDataset, fragment: Fragment, column: ScalarColumn, check: Callable[[int], None]
) -> ScalarPage:
    """Read the values of a column of a fragment. `check` is called with the bytes that were read, batch by batch.

    Raises UnreadableValuesError, Lance's errors, and what `check` raises.
    """
    source = dataset.get_fragment(fragment.number)
    assert source is not None
    with_deleted = {"include_deleted_rows": True, "with_row_id": True} if fragment.deletions else {}
    scanner = source.scanner(columns=[column.name], **with_deleted)  # type: ignore[arg-type]  # of several types
    parts, size = [pa.array([], column.type)], 0
    for batch in scanner.to_reader():
        parts.append(batch.column(column.name))
        size += parts[-1].nbytes
        check(size)
    values = pa.chunked_array(parts).combine_chunks()
    if len(values) != fragment.physical_rows:
        raise UnreadableValuesError(f"Fragment {fragment.number} has {len(values)} of {fragment.physical_rows} rows.")
    if isinstance(values, pa.ChunkedArray):
        raise UnreadableValuesError(f"The texts of fragment {fragment.number} have more than 2 GiB.")
    return ScalarPage.of(values)
