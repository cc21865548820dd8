"""Parse CSV: find where records end (quoted values may hold line breaks), their line numbers, and their values."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.sources.file_options import CsvOptions
from tiltyard.pipeline.sources.text_blocks import RejectedRow
from tiltyard.pipeline.sources.text_types import infer_type, parse_text

MAX_RECORD_BYTES = 64 << 20
"""Maximum bytes of a record: a longer one has a quote that is never closed."""

_SEARCH_BYTES = 64 << 10
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'
_COLUMN = re.compile(r"^In CSV column #(\d+): ")
_ROW = re.compile(r"Row #\d+: ")
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

Parser = Callable[[bytes], pa.Table]


TAB = r"\t"
"""How a tab is written where it cannot be typed."""


@dataclass(frozen=True, slots=True)
class CsvDialect:
    """How CSV is written: the delimiter, and the unquoted texts that mean null besides the empty one.

    The character behind an `escape` ("": none) is text, also outside of quotes.
    """

    delimiter: str = ","
    nulls: tuple[str, ...] = ()
    escape: str = ""

    @classmethod
    def of(cls, options: CsvOptions, path: str) -> CsvDialect:
        """Return the dialect of a file: by its name (.tsv) where no option names the delimiter. Raises RefusedError."""
        by_name = "\t" if path.lower().removesuffix(".gz").endswith(".tsv") else ","
        delimiter = options.get("delimiter") or by_name
        if delimiter == TAB:
            delimiter = "\t"
        if len(delimiter) != 1 or not delimiter.isascii():
            raise RefusedError(f"--delimiter is one character of ASCII, or {TAB} for a tab, not {delimiter!r}.")
        escape = options.get("escape") or ""
        if escape and (len(escape) != 1 or not escape.isascii() or escape in ('"', delimiter, "\n", "\r")):
            raise RefusedError(
                f"--escape is one character of ASCII, not {escape!r}: neither a quote nor the delimiter."
            )
        return cls(delimiter, tuple(options.get("null_value") or ()), escape)

    def parse_options(self, columns: int, **options: Any) -> pyarrow.csv.ParseOptions:
        """Return how Arrow parses records of so many columns."""
        return pyarrow.csv.ParseOptions(
            delimiter=self.delimiter, escape_char=self.escape or False, ignore_empty_lines=columns > 1, **options
        )


class TextState(IntEnum):
    """Where lines begin or end: at a record, within quotes, or in a value that an escaped line break goes on."""

    RECORD = 0
    QUOTED = 1
    UNQUOTED = 2


@dataclass(frozen=True, slots=True)
class RecordBlock:
    """Whole records: `ends` are the offsets after each record, `line` is the line number of the first record.

    `is_open` says whether the last record ends within quotes, or with an escape.
    """

    data: bytes
    ends: np.ndarray
    line: int
    is_open: bool = False

    @property
    def last_line(self) -> int:
        """Return the number of the last record's first line."""
        return self.line + count_line_breaks(self.data[: int(self.ends[-2])] if len(self.ends) > 1 else b"")


def split_records(data: bytes, dialect: CsvDialect, begins: TextState = TextState.RECORD) -> tuple[np.ndarray, bool]:
    """Return the offsets after all line breaks that end a record, and whether the text ends within quotes."""
    escaped = _escaped(data, dialect)
    breaks = _line_break_ends(data)
    if len(escaped):
        breaks = breaks[~np.isin(breaks - 1, escaped)]
    runs, states = _quote_states(data, dialect, begins, escaped)
    if not len(runs):
        is_open = begins is TextState.QUOTED
        return (breaks[:0] if is_open else breaks), is_open
    return breaks[~states[np.searchsorted(runs, breaks)]], bool(states[-1])


def scan_lines(data: bytes, dialect: CsvDialect, begins: TextState) -> tuple[int | None, TextState]:
    """Return the offset where the first record of some lines begins, None without one, and how they end."""
    escaped = _escaped(data, dialect)
    _, states = _quote_states(data, dialect, begins, escaped)
    ends = TextState.UNQUOTED if len(data) - 1 in escaped else TextState.RECORD
    ends = TextState.QUOTED if states[-1] else ends
    if begins is TextState.RECORD:
        return 0, ends
    for size in (_SEARCH_BYTES, len(data)):
        records, _ = split_records(data[:size], dialect, begins)
        if len(records):
            return (int(records[0]) if records[0] < len(data) else None), ends
    return None, ends


def _escaped(data: bytes, dialect: CsvDialect) -> np.ndarray:
    """Return the offsets of the characters behind an escape, but those that are one themselves."""
    if not dialect.escape or dialect.escape.encode() not in data:
        return np.empty(0, np.int64)
    escapes = np.flatnonzero(np.frombuffer(data, np.uint8) == ord(dialect.escape))
    firsts = np.flatnonzero(np.diff(escapes, prepend=-2) != 1)
    lengths = np.diff(firsts, append=len(escapes))
    is_odd = lengths % 2 == 1
    escaped: np.ndarray = escapes[firsts[is_odd]] + lengths[is_odd]
    return escaped


def _quote_states(
    data: bytes, dialect: CsvDialect, begins: TextState, escaped: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the offsets of runs of quotes that may open or close a value, and whether the text is within quotes.

    The second is first how the text begins, then how it goes on behind each run. Only runs of an odd number count: an
    even one is an empty value, or quotes within one. A run where a value begins opens one or closes one; any other
    closes what is open, and is part of the text where nothing is. Those that are `escaped` are text.
    """
    is_open = begins is TextState.QUOTED
    if _QUOTE not in data:
        return np.empty(0, np.int64), np.array([is_open])
    buffer = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(buffer == _QUOTE)
    if len(escaped):
        quotes = quotes[~np.isin(quotes, escaped)]
    firsts = np.flatnonzero(np.diff(quotes, prepend=-2) != 1)
    runs = quotes[firsts[np.diff(firsts, append=len(quotes)) % 2 == 1]]
    begins_value = np.zeros(256, bool)
    begins_value[list(dialect.delimiter.encode() + b"\n\r")] = True
    before = np.maximum(runs, 1) - 1
    toggles = begins_value[buffer[before]] | ((runs == 0) & (begins is not TextState.UNQUOTED))
    if len(escaped):
        toggles &= ~np.isin(before, escaped)
    count = np.cumsum(toggles)
    count_at_close = np.maximum.accumulate(np.where(toggles, -int(is_open), count))
    return runs, np.append(is_open, (count - count_at_close) % 2 == 1)


def read_record_blocks(chunks: Iterable[bytes], dialect: CsvDialect, line: int = 1) -> Iterator[RecordBlock]:
    """Split text, whose first byte begins a record, into blocks of whole records.

    The last block holds the remainder, which may end within quotes. Raises RefusedError for a record that does not end.
    """
    remainder = b""
    for chunk in chunks:
        data = remainder + chunk if remainder else chunk
        ends, _ = split_records(data, dialect)
        cut = int(ends[-1]) if len(ends) else 0
        if cut:
            yield RecordBlock(data[:cut], ends, line)
            line += count_line_breaks(data[:cut])
        remainder = data[cut:]
        if len(remainder) > MAX_RECORD_BYTES:
            size = f"{MAX_RECORD_BYTES >> 20} MiB"
            raise RefusedError(f"line {line}: a quote is opened here and not closed within {size}.")
    if remainder:
        ends, is_open = split_records(remainder, dialect)
        is_open = is_open or len(remainder) in _escaped(remainder, dialect)
        yield RecordBlock(remainder, np.append(ends, len(remainder)), line, is_open)


def parse_records(block: RecordBlock, parser: Parser) -> Iterator[pa.Table | RejectedRow]:
    """Yield the rows of a block in order, and the records that do not parse, with the number of their first line."""
    yield from _parse_range(block, parser, 0, len(block.ends))


def _parse_range(block: RecordBlock, parser: Parser, first: int, last: int) -> Iterator[pa.Table | RejectedRow]:
    begin = int(block.ends[first - 1]) if first else 0
    data = block.data[begin : int(block.ends[last - 1])]
    try:
        if block.is_open and last == len(block.ends):
            # as Arrow reports invalid records
            raise pa.ArrowInvalid("a quote is opened and not closed, or an escape is the end of the text")
        yield parser(data)
    except pa.ArrowInvalid as error:
        if last - first == 1:
            line = block.line + count_line_breaks(block.data[:begin])
            yield RejectedRow(data.decode(errors="replace").rstrip("\r\n"), _ROW.sub("", str(error)), line)
            return
        middle = (first + last) // 2
        yield from _parse_range(block, parser, first, middle)
        yield from _parse_range(block, parser, middle, last)


def read_header(head: bytes, dialect: CsvDialect, path: str) -> tuple[tuple[str, ...], int]:
    """Return the column names of a file's first record, and the offset after it.

    Raises RefusedError for names that are invalid.
    """
    if head.startswith(_UTF_16):
        raise RefusedError(f"{path} is UTF-16: write it as UTF-8.")
    begin = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
    while head[begin : begin + 1] in (b"\n", b"\r"):
        begin += 1
    ends, _ = split_records(head[begin:], dialect)
    end = begin + (int(ends[0]) if len(ends) else len(head) - begin)
    try:
        text = head[begin:end].decode()
    except UnicodeDecodeError as error:
        raise RefusedError(
            f"{path}, line 1: the names of its columns are not UTF-8: write the file as UTF-8."
        ) from error
    reader = csv.reader([text.rstrip("\r\n")], delimiter=dialect.delimiter, escapechar=dialect.escape or None)
    try:
        names = next(reader, [])
    except csv.Error as error:  # line breaks of both kinds
        raise RefusedError(f"{path}, line 1: the names of its columns cannot be read: {error}.") from error
    if not names:
        raise RefusedError(f"{path} has no line with the names of its columns: write one as its first line.")
    positions: dict[str, int] = {}
    for position, name in enumerate(names):
        if (first := positions.setdefault(name, position) + 1) <= position:
            raise RefusedError(
                f"{path}, line 1: the columns {first} and {position + 1} are both called '{name}': give one of them "
                "another name in the file."
            )
        if not name:
            raise RefusedError(f"{path}, line 1: column {position + 1} has no name: give it one in the file.")
    return tuple(names), end


def infer_csv_schema(data: bytes, names: Sequence[str], dialect: CsvDialect) -> pa.Schema:
    """Infer the types of columns from whole records without the header; null for columns without a value."""
    parse_options = dialect.parse_options(len(names), invalid_row_handler=lambda row: "skip")
    types = dict.fromkeys(names, pa.binary())
    if not data:
        return pa.schema([(name, pa.null()) for name in names])
    if not data.isascii():  # rows that are not UTF-8 are rejected when they are read, and Arrow skips none of them
        data = data.decode(errors="replace").encode()
    table = pyarrow.csv.read_csv(
        pa.BufferReader(data), _read_options(data, names), parse_options, _convert_options(types, dialect)
    )
    return pa.schema(
        [
            (name, infer_type(column.combine_chunks().cast(pa.string()), clocks=True))
            for name, column in zip(names, table.columns, strict=True)
        ]
    )


def make_csv_parser(
    names: Sequence[str], schema: pa.Schema, dialect: CsvDialect, inferred: Collection[str] = ()
) -> Parser:
    """Make a parser of records with these columns; it returns those columns that the schema has.

    Columns in `inferred` are rejected where their type does not give back the text as written. The parser raises
    pa.ArrowInvalid.
    """
    fields = {field.name: field for field in schema if field.name in names}
    text_columns = {name for name, field in fields.items() if _is_parsed_from_text(field.type, name in inferred)}
    types = {name: pa.string() if name in text_columns else field.type for name, field in fields.items()}
    parse_options = dialect.parse_options(len(names))
    convert_options = _convert_options(types, dialect)

    def parse(data: bytes) -> pa.Table:
        try:
            table = pyarrow.csv.read_csv(
                pa.BufferReader(data), _read_options(data, names), parse_options, convert_options
            )
        except pa.ArrowInvalid as error:
            raise _name_column(error, list(types)) from error
        columns = [
            _parse_column(column, fields[name], exact=name in inferred) if name in text_columns else column
            for name, column in zip(table.column_names, table.columns, strict=True)
        ]
        return pa.table(columns, names=table.column_names)

    return parse


def _is_parsed_from_text(dtype: pa.DataType, inferred: bool) -> bool:
    """Return whether a column is read as text, then parsed.

    Arrow's own reader takes `007`, `0x10` and `1e999` as numbers.
    """
    has_time_zone = pa.types.is_timestamp(dtype) and dtype.tz is not None
    return pa.types.is_floating(dtype) or (inferred and (pa.types.is_integer(dtype) or has_time_zone))


def _parse_column(column: pa.ChunkedArray, field: pa.Field, *, exact: bool) -> pa.ChunkedArray:
    try:
        return pa.chunked_array([parse_text(chunk, field.type, exact=exact) for chunk in column.chunks], field.type)
    except pa.ArrowInvalid as error:
        hint = f" (the type {field.type} was guessed: --cast {field.name}=string takes any)" if exact else ""
        raise pa.ArrowInvalid(f"column '{field.name}': {error}{hint}") from error


def _name_column(error: pa.ArrowInvalid, names: Sequence[str]) -> pa.ArrowInvalid:
    """Return the error with the column's name instead of its number."""
    text = str(error)
    match = _COLUMN.match(text)
    return pa.ArrowInvalid(f"column '{names[int(match[1])]}': {text[match.end() :]}") if match else error


def _read_options(data: bytes, names: Sequence[str]) -> pyarrow.csv.ReadOptions:
    """Read all bytes as one block: Arrow would split blocks at any line break, also within quotes."""
    return pyarrow.csv.ReadOptions(column_names=list(names), use_threads=False, block_size=len(data) + 1)


def _convert_options(types: dict[str, pa.DataType], dialect: CsvDialect) -> pyarrow.csv.ConvertOptions:
    return pyarrow.csv.ConvertOptions(
        column_types=types,
        include_columns=list(types),
        null_values=["", *dialect.nulls],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )


def _line_break_ends(data: bytes) -> np.ndarray:
    """Return the offsets after line breaks: of \\n, or of \\r where there is no \\n."""
    byte = _NEWLINE if _NEWLINE in data else _RETURN
    return np.flatnonzero(np.frombuffer(data, np.uint8) == byte) + 1


def count_line_breaks(data: bytes) -> int:
    """Count the line breaks of a text."""
    return data.count(b"\n") or data.count(b"\r")
