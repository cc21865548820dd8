"""Take the columns of a response from memory: Lance finds the rows, and returns their addresses and scores alone.

A response has the same rows and columns either way. The cache serves the most common searches: few rows, of whole
columns, of the latest version, in the order in which Lance finds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from tiltyard.tables.query.integer_filters import ROW_ID
from tiltyard.tables.query.routes.route import Cost, LanceOffer, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from lance.dataset import LanceScanner

    from tiltyard.tables.query.response import Reader
    from tiltyard.tables.query.routes.route import OutputRows, Query


@dataclass(slots=True)
class CachedColumns(LanceOffer):
    """A search by Lance for the addresses of rows, each query vector by itself."""

    name: ClassVar[str] = "cached_columns"
    cost = Cost.TABLE
    query: Query
    output: OutputRows

    @classmethod
    def ask(cls, query: Query) -> CachedColumns | Refused:
        """Return a search whose columns come from memory, or why they do not."""
        output = query.output
        return output if isinstance(output, Refused) else cls(query, output)

    def describe(self) -> str:
        return "Lance finds the rows, and their columns are in memory"

    def readers(self) -> Iterator[Reader]:
        for scanner in self.scanners():
            yield CachedReader(scanner.to_reader(), self.output, self.query)

    def scanners(self) -> Iterator[LanceScanner]:
        return self.query.addresses(self.output).scanners()


class CachedReader:
    """A reader of the rows that Lance finds, with their columns from memory: no more of them than the search returns.

    `on_batch_rows` gets the number of rows of each batch that Lance returns.
    """

    def __init__(
        self, reader: Reader, output: OutputRows, query: Query, on_batch_rows: Callable[[int], None] | None = None
    ) -> None:
        self._reader = reader
        self._rows = rows = output.rows
        self._max_rows = query.search.max_rows or 0
        self._on_batch_rows = on_batch_rows
        names = (*output.names, ROW_ID) if query.has_row_ids else output.names
        schema = rows.response_schemas.get(names)
        if schema is None:  # of one version, it is the same for each search of these columns
            fields = [rows.fields[name] if name in rows.fields else reader.schema.field(name) for name in names]
            schema = rows.response_schemas[names] = pa.schema(fields, reader.schema.metadata)
        self.schema: pa.Schema = schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        remaining, rows, names = self._max_rows, self._rows, self.schema.names
        for found_rows in self._reader:
            if self._on_batch_rows is not None:
                self._on_batch_rows(found_rows.num_rows)
            batch = found_rows.slice(0, remaining) if found_rows.num_rows > remaining else found_rows
            columns = dict(zip(rows.fields, rows.take(batch.column(rows.address)), strict=True))
            selected = [columns[name] if name in columns else batch.column(name) for name in names]
            yield pa.RecordBatch.from_arrays(selected, schema=self.schema)
            if (remaining := remaining - batch.num_rows) <= 0:
                return  # reading on to the end would cost another round trip to Lance's threads
