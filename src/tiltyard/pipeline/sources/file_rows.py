"""The rows of files as those of a table: which of its columns they fill, and the rows that do not fit."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pyarrow as pa

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.sources.casts import (
    ColumnMapping,
    ColumnSelection,
    cast_batch,
    check_time_zones,
    select_columns,
)
from tiltyard.pipeline.sources.discovery import FileSource
from tiltyard.pipeline.sources.inspection import adapt_to_table
from tiltyard.pipeline.sources.readers import Piece
from tiltyard.pipeline.sources.text_blocks import RejectedRow


@dataclass(frozen=True, slots=True)
class RowMapping:
    """How the rows of a source become those of a table: its columns are in `schema`, `columns` make them."""

    source: FileSource
    columns: tuple[ColumnMapping, ...]
    schema: pa.Schema

    def read(self, piece: Piece) -> Iterator[pa.RecordBatch | RejectedRow]:
        """Yield the rows of a piece in order, and those that do not fit. Raises RefusedError for a broken file."""
        for rows in self.source.reader.read(piece):
            if isinstance(rows, RejectedRow):
                yield rows
                continue
            for cast in cast_batch(rows, self.columns):
                if isinstance(cast, RejectedRow):
                    yield cast
                else:
                    yield pa.RecordBatch.from_arrays(cast.columns, schema=self.schema)


def rows_of_new_table(source: FileSource, selection: ColumnSelection) -> RowMapping:
    """Return the rows of a source for a table that is made of them. Raises RefusedError."""
    columns = tuple(select_columns(source.reader.schema, selection))
    return RowMapping(source, columns, pa.schema([column.field for column in columns]))


def rows_of_table(
    source: FileSource, table: pa.Schema, selection: ColumnSelection, missing: Collection[str] = ()
) -> RowMapping:
    """Return the rows of a source for a table that exists: what the source names, and nulls in `missing`.

    Types that were inferred from text are those of the table. Raises RefusedError for times of another kind.
    """
    reader = adapt_to_table(source.reader, table, selection)
    check_time_zones(reader.schema, table)
    names = [name for name in selection.names or reader.schema.names if name in table.names]
    if not names:
        raise RefusedError(f"No column has a name of the table's, which has {', '.join(table.names)}: rename them.")
    fields = [field for field in table if field.name in names or field.name in missing]
    columns = tuple(ColumnMapping(field, field.name if field.name in names else None) for field in fields)
    return RowMapping(FileSource(reader, source.pieces), columns, pa.schema(fields, table.metadata))
