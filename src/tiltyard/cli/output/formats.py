"""Print rows: as a table for people, or as JSON, JSON lines, CSV, Arrow or Parquet for programs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import IO, TYPE_CHECKING, Any, Literal, Self

import click

from tiltyard.cli.output.cells import format_cell, pad_text, printable, text_width
from tiltyard.cli.session.failures import CommandError, ExitStatus

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

Record = Mapping[str, Any]
MAX_TABLE_ROWS = 10_000
"""Rows that a table for people may have: its columns are as wide as its widest cell."""
MIN_COLUMN, COLUMN_GAP = 16, 2
"""Characters that a column on a terminal is not narrowed below, and that stand between two."""


class OutputFormat(StrEnum):
    """The formats of what a command prints."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


_BINARY = (OutputFormat.ARROW, OutputFormat.PARQUET)


def format_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --format; the command gets `form`."""
    return _add_format(command, tuple(OutputFormat), "How to print it.")


def outcome_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --format to a command that changes something (`print_outcome`); it gets `form`."""
    forms = (OutputFormat.TABLE, OutputFormat.JSON, OutputFormat.JSONL)
    return _add_format(command, forms, "How to print what was done; table is a sentence.")


def _add_format(command: Callable[..., Any], forms: Sequence[OutputFormat], text: str) -> Callable[..., Any]:
    return click.option(
        "--format",
        "form",
        type=click.Choice([each.value for each in forms]),
        default=OutputFormat.TABLE.value,
        show_default=True,
        callback=lambda ctx, param, value: OutputFormat(value),
        help=text,
    )(command)


def console() -> Console:
    """Return rich's console on standard output: with colours on a terminal alone, as wide as needed anywhere else."""
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    return Console(
        file=sys.stdout,
        force_terminal=is_terminal,
        no_color=None if is_terminal else True,
        color_system="auto" if is_terminal else None,
        width=None if is_terminal else 1_000_000,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=not is_terminal,
    )


def print_records(
    records: Iterable[Record], columns: Sequence[str], form: OutputFormat, *, numbers: Sequence[str] = ()
) -> None:
    """Print records with these columns; `numbers` are columns to align right."""
    match form:
        case OutputFormat.TABLE:
            _print_table(columns, (list(_texts(record, columns)) for record in records), numbers)
        case OutputFormat.ARROW | OutputFormat.PARQUET:
            import pyarrow as pa

            rows = [{name: record.get(name) for name in columns} for record in records]
            table = (
                pa.Table.from_pylist(rows) if rows else pa.table({name: pa.array([], pa.string()) for name in columns})
            )
            print_rows(table.to_reader(), form)
        case OutputFormat.CSV:
            _print_csv(columns, ([record.get(name) for name in columns] for record in records))
        case _:
            _print_json(({name: record.get(name) for name in columns} for record in records), form)


def print_record(record: Record, form: OutputFormat) -> None:
    """Print one record: a line for each field in a table, an object in JSON."""
    if form is OutputFormat.JSON:
        _write(_encode(record) + b"\n")
    elif form is OutputFormat.TABLE:
        rows = [{"field": name, "value": value} for name, value in record.items()]
        _print_table((), ([row["field"], format_cell(row["value"])] for row in rows), ())
    else:
        print_records([record], list(record), form)


def print_outcome(sentence: str, record: Record, form: OutputFormat) -> None:
    """Print what a command has done: a sentence for people, a record for programs."""
    if form is OutputFormat.TABLE:
        click.echo(sentence)
    else:
        print_record(record, form)


def print_rows(rows: pa.RecordBatchReader, form: OutputFormat) -> None:
    """Print rows as they come; a table for people is laid out once all are there. Raises CommandError."""
    match form:
        case OutputFormat.TABLE:
            _print_table(rows.schema.names, _row_texts(rows), _number_columns(rows.schema))
        case OutputFormat.JSON | OutputFormat.JSONL:
            _print_json((record for batch in rows for record in batch_records(batch)), form)
        case _:
            if form in _BINARY and sys.stdout.isatty():
                raise CommandError(
                    f"{form.value} is not for a terminal: redirect it, or use tiltyard export.", ExitStatus.USAGE
                )
            write_rows(rows, form, sys.stdout.buffer)


def write_rows(
    rows: pa.RecordBatchReader, form: OutputFormat, file: IO[bytes], on_batch: Callable[[int], None] = lambda rows: None
) -> int:
    """Write rows to a file as they come; return their number. `on_batch` is called with the rows of each batch.

    Arrow is written as a stream, CSV with nested values as JSON and bytes as base64. Raises what reading the rows
    raises, CommandError for a type that the format lacks.
    """
    import pyarrow as pa

    number = 0
    try:
        with _writer(rows.schema, form, file) as writer:
            for batch in rows:
                writer.write_batch(batch)
                number += batch.num_rows
                on_batch(batch.num_rows)
    except pa.ArrowNotImplementedError as error:
        raise CommandError(f"{form.value} cannot hold a column: {error}. Choose others with --columns.") from error
    return number


def _writer(schema: pa.Schema, form: OutputFormat, file: IO[bytes]) -> Any:
    if form is OutputFormat.ARROW:
        import pyarrow as pa

        return pa.ipc.new_stream(file, schema)
    if form is OutputFormat.PARQUET:
        from pyarrow.parquet import ParquetWriter

        return ParquetWriter(file, schema, compression="zstd")
    return _CsvWriter(schema, file) if form is OutputFormat.CSV else _JsonWriter(file)


class _CsvWriter:
    """Writes batches as CSV: nested values as JSON, bytes as base64."""

    def __init__(self, schema: pa.Schema, file: IO[bytes]) -> None:
        import pyarrow as pa
        import pyarrow.csv

        self._textual = [number for number, field in enumerate(schema) if not _is_plain(field.type)]
        for number in self._textual:
            schema = schema.set(number, pa.field(schema.field(number).name, pa.string()))
        self._schema = schema
        file.write(_csv_line(schema.names))  # Arrow would put each name into quotes
        self._writer = pyarrow.csv.CSVWriter(
            file, schema, write_options=pyarrow.csv.WriteOptions(include_header=False, quoting_style="needed")
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch."""
        import pyarrow as pa

        from tiltyard.model.schemas.python_values import python_values

        columns = batch.columns
        for number in self._textual:
            texts = [None if value is None else _csv_text(value) for value in python_values(columns[number])]
            columns[number] = pa.array(texts, pa.string())
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))


class _JsonWriter:
    """Writes batches as lines of JSON."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Write the rows of a batch."""
        self._file.write(b"".join(_encode(row) + b"\n" for row in batch_records(batch)))


def batch_records(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch; a value that Python has no type for (nanoseconds, the year 10,000) is its text."""
    from tiltyard.model.schemas.python_values import python_values

    columns = [python_values(column) for column in batch.columns]
    for values in zip(*columns, strict=True) if columns else ():
        yield dict(zip(batch.schema.names, values, strict=True))


def _is_plain(kind: pa.DataType) -> bool:
    """Return whether Arrow writes a type to CSV as others read it."""
    import pyarrow as pa

    types = pa.types
    return (
        not isinstance(kind, pa.BaseExtensionType)
        and (types.is_primitive(kind) or types.is_string(kind) or types.is_large_string(kind))
        and not types.is_duration(kind)
        and not types.is_float16(kind)
    )


def _csv_text(value: Any) -> str:
    encoded = _encode(value)
    return encoded.decode() if isinstance(value, list | dict) else encoded.decode().strip('"')


def _encode(value: Any) -> bytes:
    """Encode a value as JSON: bytes as base64, times in ISO 8601, decimals as text, what is no number as null."""
    import msgspec

    return msgspec.json.encode(value, enc_hook=str)


def _print_json(records: Iterable[Record], form: OutputFormat) -> None:
    if form is OutputFormat.JSONL:
        for record in records:
            _write(_encode(record) + b"\n")
        return
    separator = b"["
    for record in records:
        _write(separator + b"\n" + _encode(record))
        separator = b","
    _write(b"\n]\n" if separator == b"," else b"[]\n")


def _print_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    _write(_csv_line(columns))
    for row in rows:
        _write(_csv_line([_encode(value).decode() if isinstance(value, list | dict) else value for value in row]))


def _csv_line(values: Iterable[Any]) -> bytes:
    import csv
    import io

    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue().encode()


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[str]) -> None:
    """Print a table: rich's on a terminal, columns aligned by spaces anywhere else. Raises CommandError."""
    shown: list[Sequence[str]] = []
    for row in rows:
        if len(shown) == MAX_TABLE_ROWS:
            raise CommandError(f"There are more than {MAX_TABLE_ROWS} rows: --format jsonl or csv prints any number.")
        shown.append(row)
    right = frozenset(numbers)
    if sys.stdout.isatty():
        _print_rich_table(columns, shown, right)
        return
    lines = [columns, *shown] if columns else shown
    widths = [max(text_width(line[number]) for line in lines) for number in range(len(lines[0]) if lines else 0)]
    for line in lines:
        cells = [
            pad_text(cell, width, is_number=bool(columns) and columns[number] in right)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        _write("  ".join(cells).rstrip().encode() + b"\n")


def _print_rich_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[str]) -> None:
    """Print a table that is no wider than the terminal: columns that find no room there are named below it."""
    from rich.table import Table
    from rich.text import Text

    target = console()
    widths = _fit_columns(columns, rows, target.width)
    omitted, columns = columns[len(widths) :], columns[: len(widths)]
    table = Table(
        box=None, show_header=bool(columns), header_style="bold", pad_edge=False, padding=(0, COLUMN_GAP, 0, 0)
    )
    for name, width in zip(columns, widths, strict=True):
        justify: Literal["left", "right"] = "right" if name in right else "left"
        table.add_column(Text(printable(name)), justify=justify, width=width, no_wrap=True, overflow="ellipsis")
    if not columns:
        table.add_column(style="bold")
        table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in (row[: len(widths)] if columns else row)))
    target.print(table)
    if omitted:
        more = f"{len(omitted)} more column{'s' if len(omitted) > 1 else ''}"
        names = printable(", ".join(omitted))
        target.print(Text(f"… {more}: {names}", style="dim"), overflow="ellipsis", no_wrap=True)


def _fit_columns(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the widths of the columns that fit into a terminal; at least of one.

    The widest are narrowed first, none below MIN_COLUMN. Columns without names have no widths.
    """
    widths: list[int] = []
    room = width + COLUMN_GAP
    for number, name in enumerate(columns):
        widest = max(map(text_width, [printable(name), *(row[number] for row in rows)]))
        room -= min(widest, MIN_COLUMN) + COLUMN_GAP
        if room < 0 and widths:
            break
        widths.append(widest)
    fitting, most = width - COLUMN_GAP * (len(widths) - 1), max(widths, default=0)
    while most > 1 and sum(min(each, most) for each in widths) > fitting:
        most -= 1
    return [min(each, most) for each in widths]


def _cell_width() -> int | None:
    """Return how many characters a value may have: those of a line on a terminal, any number anywhere else."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _texts(record: Record, columns: Sequence[str]) -> Iterator[str]:
    width = _cell_width()
    for name in columns:
        yield format_cell(record.get(name), width)


def _row_texts(rows: pa.RecordBatchReader) -> Iterator[list[str]]:
    width = _cell_width()
    for batch in rows:
        for record in batch_records(batch):
            yield [format_cell(value, width) for value in record.values()]


def _number_columns(schema: pa.Schema) -> list[str]:
    import pyarrow as pa

    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return [field.name for field in schema if any(is_kind(field.type) for is_kind in kinds)]
