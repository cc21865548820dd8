"""The rows of a file for an import: found, checked against the table, and read as the table has its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tiltyard.cli.output.cells import format_cell
from tiltyard.cli.session.failures import CommandError, ExitStatus
from tiltyard.cli.session.ids import suggest
from tiltyard.model.refusals import RefusedError
from tiltyard.model.schemas.column_names import check_new_columns
from tiltyard.model.schemas.type_names import parse_type
from tiltyard.pipeline.sources.casts import ColumnSelection
from tiltyard.pipeline.sources.discovery import SourceOptions, find_source, group_pieces
from tiltyard.pipeline.sources.file_options import FileOptions
from tiltyard.pipeline.sources.file_rows import RowMapping, rows_of_new_table, rows_of_table
from tiltyard.pipeline.sources.filesystem import absolute_path
from tiltyard.pipeline.sources.text_blocks import RejectedRow

if TYPE_CHECKING:
    from tiltyard.pipeline.sources.readers import Piece

PART_BYTES = 128 << 20
"""Bytes of a file that are sent as one part: what an import that was cut sends again, and what a fragment holds."""
_SHOWN_ROW = 120


@dataclass(frozen=True, slots=True)
class ImportSource:
    """The source of an import, and how its rows become those of the table.

    `path` is absolute, or a URI; `casts` and `nulls` are the options that name columns of the table.
    """

    path: str
    casts: Mapping[str, str]
    nulls: Sequence[str]
    rows: RowMapping

    @property
    def schema(self) -> pa.Schema:
        """The schema of what is sent."""
        return self.rows.schema

    @property
    def size(self) -> int:
        """The size of the files in bytes."""
        return self.rows.source.size

    @property
    def key(self) -> str:
        """A key of how rows are read and what they become."""
        return f"{self.rows.source.reader.key} {self.schema.to_string()}"

    def origins(self) -> list[dict[str, str]]:
        """Return what each column that is sent is made from, as CompleteMultipartWrite has it."""
        return [
            {"column": name, "source_column": name, "how": "transformed" if name in self.casts else "direct"}
            for name in self.schema.names
            if name not in self.nulls
        ]

    def parts(self) -> list[tuple[Piece, ...]]:
        """Return the pieces of the source in parts, in the order of their rows."""
        return group_pieces(self.rows.source.pieces, 1, PART_BYTES)

    def read(self, part: Sequence[Piece], on_piece: Callable[[int], None]) -> pa.RecordBatchReader:
        """Return a reader of a part's rows; `on_piece` is called with the bytes of each piece that was read.

        The reader raises CommandError for a row that does not fit, with the number of its line.
        """
        return pa.RecordBatchReader.from_batches(self.schema, self._batches(part, on_piece))

    def _batches(self, part: Sequence[Piece], on_piece: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
        try:
            for piece in part:
                for rows in self.rows.read(piece):
                    if isinstance(rows, RejectedRow):
                        raise _rejected(piece.path, rows)
                    yield rows
                on_piece(piece.size)
        except RefusedError as error:
            raise CommandError(str(error)) from error


def open_source(
    path: str,
    table: pa.Schema | None,
    *,
    files: FileOptions,
    casts: Mapping[str, str],
    nulls: Sequence[str],
) -> ImportSource:
    """Find a file's rows, and how they become those of `table`, the columns of one that exists.

    Raises CommandError for a file that is not there or none of its format, for columns that do not match those of the
    table, TableSchemaValidationError for names that no column can have.
    """
    try:
        types = {name: parse_type(text) for name, text in casts.items()}
        options = SourceOptions(absolute_path(path), files, types, is_whole=True)
    except RefusedError as error:
        raise CommandError(str(error), ExitStatus.USAGE) from error
    try:
        source = find_source(options)
    except (RefusedError, OSError) as error:
        raise CommandError(str(error), ExitStatus.LOCAL_FILE) from error
    try:
        selection = ColumnSelection(types=types)
        if table is not None:
            _check_columns(source.reader.schema.names, table, nulls)
            return ImportSource(options.path, casts, nulls, rows_of_table(source, table, selection, nulls))
        rows = rows_of_new_table(source, selection)
    except RefusedError as error:
        raise CommandError(str(error)) from error
    check_new_columns(rows.schema)
    return ImportSource(options.path, casts, nulls, rows)


def _check_columns(names: Sequence[str], table: pa.Schema, nulls: Sequence[str]) -> None:
    """Raise CommandError where the columns of a file are not those of the table."""
    for name in names:
        if name not in table.names:
            near = suggest(name, table.names)
            hint = f" Did you mean {near[0]}?" if near else f" It has {', '.join(table.names)}."
            raise CommandError(f"The file has a column '{name}', which the table has not.{hint}")
    for name in nulls:
        if name not in table.names:
            raise CommandError(f"--null names '{name}', which is no column of the table.")
    for name in table.names:
        if name not in names and name not in nulls:
            raise CommandError(f"The file has no column '{name}' of the table: --null {name} makes it null.")


def _rejected(path: str, rejected: RejectedRow) -> CommandError:
    """Return the error of a row that does not fit."""
    where = "" if rejected.line else f"the row {format_cell(rejected.row, _SHOWN_ROW)}: "
    return CommandError(
        f"{path}, {where}{rejected.reason.rstrip('.')}. Nothing was imported; "
        "`tiltyard job ingest --rejects FOLDER` sets such rows aside."
    )
