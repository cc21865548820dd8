"""Find rows in memory by integers: in a column that is in order there, or by row ids; Lance is not asked.

So are lists and ranges of integers, and so are rows counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from tiltyard.tables.query.integer_filters import ROW_ID, parse_integer_filter
from tiltyard.tables.query.routes.point_lookup import lookup_columns
from tiltyard.tables.query.routes.route import BatchReader, Cost, CountOffer, Purpose, Refused, SearchOffer

if TYPE_CHECKING:
    from collections.abc import Iterator

    import lance

    from tiltyard.storage.caches.cached_rows import CachedRows
    from tiltyard.storage.caches.version_cache import CachedVersion
    from tiltyard.tables.query.integer_filters import IntegerFilter
    from tiltyard.tables.query.response import Reader
    from tiltyard.tables.query.routes.route import Caches, CountQuery, OutputRows, Query

_OTHER_FILTER = Refused("its filter does not select rows by integers of one column, alone")
_NO_INDEX = Refused("its column has no BTREE or BITMAP that covers all rows")
_NOT_IN_ORDER = Refused(
    "its column is not in order in memory: that takes some look-ups in this version, up to 200,000 rows, and integers"
    " without nulls and deleted rows"
)
_NO_ADDRESSES = Refused("row ids are no addresses in this table, or rows were deleted")
_NOT_STORED = Refused("the response has columns that are not stored")


@dataclass(slots=True)
class RowsInMemory(SearchOffer):
    """The rows at some addresses, ascending, which integers select."""

    name: ClassVar[str] = "rows_in_memory"
    cost = Cost.MEMORY
    query: Query
    output: OutputRows
    addresses: pa.UInt64Array

    @classmethod
    def ask(cls, query: Query) -> RowsInMemory | Refused:
        """Return the rows of a look-up, or why they are not found in memory."""
        if (selected := query.selected) is None:
            return _OTHER_FILTER
        if isinstance(output := query.output, Refused):
            return output
        rows = output.rows
        if (query.has_row_ids and rows.address != ROW_ID) or not rows.fields.keys() >= set(output.names):
            return _NOT_STORED
        if selected.row_ids is not None:
            addresses = rows.find_ids(selected.row_ids)
            return _NO_ADDRESSES if addresses is None else cls(query, output, addresses)
        assert not isinstance(query.caches, Refused)  # or there would be no output
        column = _indexed_column(query.search.snapshot, selected, query.caches, query.purpose)
        if isinstance(column, Refused):
            return column
        addresses = column.find(selected.column, selected.integers, is_counted=query.purpose is not Purpose.EXPLAIN)
        return _NOT_IN_ORDER if addresses is None else cls(query, output, addresses)

    def describe(self) -> str:
        return "rows are found by integers in memory, and their columns are there"

    def readers(self) -> Iterator[Reader]:
        rows, search = self.output.rows, self.query.search
        addresses = self.addresses.slice(0, search.max_rows)
        columns, fields = rows.take(addresses), [rows.fields[name] for name in self.output.names]
        if self.query.has_row_ids:
            columns, fields = [*columns, addresses], [*fields, pa.field(ROW_ID, pa.uint64())]
        schema = pa.schema(fields, search.snapshot.fact(_schema_metadata))
        yield BatchReader(schema, (pa.RecordBatch.from_arrays(columns, schema=schema),))


def ask_count_in_memory(query: CountQuery) -> CountOffer | Refused:
    """Return the count of rows by integers, or why they are not counted in memory."""
    selected = None if query.predicate is None else parse_integer_filter(query.predicate)
    if selected is None:
        return _OTHER_FILTER
    if isinstance(query.caches, Refused):
        return query.caches
    column = _indexed_column(query.snapshot, selected, query.caches, query.purpose, is_count=True)
    if isinstance(column, Refused):
        return column
    number = column.count(selected.column, selected.integers)
    return _NOT_IN_ORDER if number is None else CountOffer(RowsInMemory.name, lambda: number)


def _indexed_column(
    snapshot: CachedVersion, selected: IntegerFilter, caches: Caches, purpose: Purpose, *, is_count: bool = False
) -> CachedRows | Refused:
    """Return the column in memory by whose integers rows are selected, if its index covers all rows.

    On the event loop one that is in order there already, but for a look-up of one integer, which Lance's index answers
    there until then.
    """
    if selected.column not in snapshot.fact(lookup_columns).columns:
        return _NO_INDEX
    names = (selected.column,)
    may_sort = purpose is not Purpose.LOOP or (not is_count and selected.is_one)
    if may_sort:
        is_counted = purpose is not Purpose.EXPLAIN
        rows = caches.rows(snapshot.dataset, names, is_counted=is_counted)
    else:
        rows = caches.columns.known(caches.key, snapshot.dataset, names)
    if rows is None or not (may_sort or rows.is_in_order(selected.column)):
        return _NOT_IN_ORDER
    return rows


def _schema_metadata(dataset: lance.LanceDataset) -> dict[bytes, bytes] | None:
    metadata: dict[bytes, bytes] | None = dataset.schema.metadata
    return metadata
