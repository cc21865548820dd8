"""Take rows by their ids or offsets: `_rowid IN (…)`, `_rowoffset IN (…)`, as lancedb's permutations ask for batches.

Lance's scanner finds such rows without reading others, too, but takes two to three times as long for a few hundred. Any
version can be read this way: a training run names the one that it began with.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from tiltyard.model.columns.blob_columns import has_blobs, is_stored_as_read
from tiltyard.storage.pylance_internals import take_rows
from tiltyard.tables.query.integer_filters import ROW_ID, ROW_OFFSET, is_plain_column
from tiltyard.tables.query.plan import column_names
from tiltyard.tables.query.routes.route import Cost, Refused, SearchOffer
from tiltyard.tables.query.scanners import make_scanner

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import lance

    from tiltyard.tables.query.response import Reader
    from tiltyard.tables.query.routes.route import Query

_NO_SUCH_ROW = "Invalid user input"
"""In Lance's error (14.0) about an id that is no row's address. It raises none where row ids are stable."""
_OTHER_FILTER = Refused("its filter does not select rows by their ids or offsets, alone")
_FEWER_ROWS = Refused("its limit is below the number of rows that it names, or it names some below 0")
_COMPUTED = Refused("the columns of the response are not whole columns of the table, or hold blobs")


@dataclass(slots=True)
class RowTake(SearchOffer):
    """Rows by ids or offsets, ascending; `columns` has what each column of the response is of the table."""

    name: ClassVar[str] = "row_take"
    cost = Cost.TABLE
    query: Query
    by: str
    rows: Sequence[int]
    columns: dict[str, str]

    @classmethod
    def ask(cls, query: Query) -> RowTake | Refused:
        """Return the rows that a filter names, or why they are not taken."""
        selected = query.selected
        if selected is None or (named := selected.rows) is None:
            return _OTHER_FILTER
        rows, search = sorted(set(named)), query.search
        if rows[0] < 0 or (search.max_rows is not None and search.max_rows < len(rows)):
            return _FEWER_ROWS
        if (columns := _whole_columns(query, selected.column)) is None:
            return _COMPUTED
        if selected.column == ROW_OFFSET:
            rows = [row for row in rows if row < search.snapshot.count_rows()]
        return cls(query, selected.column, rows, columns)

    def describe(self) -> str:
        return f"Lance takes the rows by '{self.by}'"

    def readers(self) -> Iterator[Reader]:
        tables = self._tables()
        first = next(tables)
        batches = (batch for table in chain((first,), tables) for batch in table.to_batches())
        yield pa.RecordBatchReader.from_batches(first.schema, batches)

    def _tables(self) -> Iterator[pa.Table]:
        """Yield the rows, as many at once as a batch of a scan may have; a table without rows where there are none."""
        count = max(1, len(self.rows))
        size = self.query.search.options.get("batch_size", count)
        for first in range(0, count, size):
            yield self._take(self.rows[first : first + size])

    def _take(self, rows: Sequence[int]) -> pa.Table:
        dataset = self.query.search.dataset
        stored = list(dict.fromkeys(source for source in self.columns.values() if source != ROW_OFFSET)) or [ROW_ID]
        try:
            if self.by == ROW_OFFSET:
                taken = dataset.take(list(rows), columns=stored)
                taken = taken.append_column(pa.field(ROW_OFFSET, pa.uint64()), pa.array(rows, pa.uint64()))
            else:
                taken = take_rows(dataset, rows, stored)
        except OSError as error:
            if _NO_SUCH_ROW not in str(error):
                raise
            return self._scan(rows)  # which passes over ids that no row has
        schema = dataset.schema.metadata
        return (
            taken.select(list(self.columns.values())).rename_columns(list(self.columns)).replace_schema_metadata(schema)
        )

    def _scan(self, rows: Sequence[int]) -> pa.Table:
        options = {"columns": self.columns, "filter": f"{self.by} IN ({', '.join(map(str, rows))})"}
        return make_scanner(self.query.search.dataset, options).to_table()


def _whole_columns(query: Query, by: str) -> dict[str, str] | None:
    """Return the columns of a response by their names, None where one is computed, or may be read in two forms."""
    snapshot, columns = query.search.snapshot, query.search.options.get("columns")
    if columns is None:
        columns = column_names(snapshot)
    named = dict(columns) if isinstance(columns, dict) else dict(zip(columns, columns, strict=True))
    if query.has_row_ids:
        named |= {ROW_ID: named.pop(ROW_ID, ROW_ID)}
    stored = [source for source in named.values() if source not in (ROW_ID, by)]
    if len(named) < len(columns) or not snapshot.fact(_takeable_columns).issuperset(stored):
        return None
    is_plain = not isinstance(columns, dict) or all(map(is_plain_column, named.values()))
    return named if is_plain else None


def _takeable_columns(dataset: lance.LanceDataset) -> frozenset[str]:
    """Return the columns whose values have one form: not those of blobs, and of extension types."""
    return frozenset(field.name for field in dataset.schema if is_stored_as_read(field) and not has_blobs([field]))
