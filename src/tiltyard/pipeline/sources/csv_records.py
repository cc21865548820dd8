"""Records of CSV: where each ends (a quoted value may hold line breaks), on which line of the file, and its values."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.csv

from tiltyard.pipeline.sources.exact_text import parse_text
from tiltyard.pipeline.sources.text_blocks import Bad
from tiltyard.pipeline.sources.type_inference import guess_type
from tiltyard.pipeline.task_errors import RefusedError

LONGEST_RECORD = 64 << 20
"""Bytes of one record at most: what is longer is a quote that nobody closed."""

_NEWLINE, _RETURN, _QUOTE = b'\n\r"'
_COLUMN = re.compile(r"^In CSV column #(\d+): ")
_ROW = re.compile(r"Row #\d+: ")
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)

Parse = Callable[[bytes], pa.Table]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How CSV is written: what parts its values, and which unquoted texts are null besides the empty one."""

    delimiter: str = ","
    nulls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """Whole records: `ends` are the offsets behind each of them, `line` is the number of the first one's line.

    `is_open` is whether the last one ends within quotes.
    """

    data: bytes
    ends: np.ndarray
    line: int
    is_open: bool = False

    @property
    def last_line(self) -> int:
        """The number of the last record's first line."""
        return self.line + count_breaks(self.data[: int(self.ends[-2])] if len(self.ends) > 1 else b"")


def split_records(data: bytes, delimiter: str) -> tuple[np.ndarray, bool]:
    """Find the offsets behind all line breaks that end a record, and whether the text ends within quotes."""
    breaks = _breaks(data)
    if _QUOTE not in data:
        return breaks, False
    quotes = np.flatnonzero(np.frombuffer(data, np.uint8) == _QUOTE)
    if _are_plain(data, quotes, delimiter):
        return breaks[np.searchsorted(quotes, breaks) % 2 == 0], len(quotes) % 2 == 1
    return _split_slowly(data, breaks, delimiter)


def read_blocks(chunks: Iterable[bytes], delimiter: str, line: int = 1) -> Iterator[Block]:
    """Cut text, of which the first byte begins a record, into blocks of whole records.

    The last block has what remains, which may end within quotes. Raises RefusedError for a record that does not end.
    """
    rest = b""
    for chunk in chunks:
        data = rest + chunk if rest else chunk
        ends, _ = split_records(data, delimiter)
        cut = int(ends[-1]) if len(ends) else 0
        if cut:
            yield Block(data[:cut], ends, line)
            line += count_breaks(data[:cut])
        rest = data[cut:]
        if len(rest) > LONGEST_RECORD:
            raise RefusedError(f"line {line}: a quote is opened here and not closed within {LONGEST_RECORD >> 20} MiB.")
    if rest:
        ends, is_open = split_records(rest, delimiter)
        yield Block(rest, np.append(ends, len(rest)), line, is_open)


def parse_block(block: Block, how: Parse) -> Iterator[pa.Table | Bad]:
    """The rows of a block in their order, and the records that are none, each with the number of its first line."""
    yield from _parse(block, how, 0, len(block.ends))


def _parse(block: Block, how: Parse, first: int, last: int) -> Iterator[pa.Table | Bad]:
    begin = int(block.ends[first - 1]) if first else 0
    data = block.data[begin : int(block.ends[last - 1])]
    try:
        if block.is_open and last == len(block.ends):
            raise pa.ArrowInvalid("a quote is opened and not closed")  # as of what Arrow finds
        yield how(data)
    except pa.ArrowInvalid as error:
        if last - first == 1:
            line = block.line + count_breaks(block.data[:begin])
            yield Bad(data.decode(errors="replace").rstrip("\r\n"), _ROW.sub("", str(error)), line)
            return
        middle = (first + last) // 2
        yield from _parse(block, how, first, middle)
        yield from _parse(block, how, middle, last)


def read_header(head: bytes, delimiter: str, path: str) -> tuple[tuple[str, ...], int]:
    """The names in a file's first record, and the offset behind it. Raises RefusedError for what cannot be names."""
    if head.startswith(_UTF_16):
        raise RefusedError(f"{path} is UTF-16: write it as UTF-8.")
    begin = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
    while head[begin : begin + 1] in (b"\n", b"\r"):
        begin += 1
    ends, _ = split_records(head[begin:], delimiter)
    end = begin + (int(ends[0]) if len(ends) else len(head) - begin)
    try:
        text = head[begin:end].decode()
    except UnicodeDecodeError as error:
        raise RefusedError(
            f"{path}, line 1: the names of its columns are not UTF-8: write the file as UTF-8."
        ) from error
    names = next(csv.reader([text.rstrip("\r\n")], delimiter=delimiter), [])
    if not names:
        raise RefusedError(f"{path} has no line with the names of its columns: write one as its first line.")
    seen: dict[str, int] = {}
    for at, name in enumerate(names):
        if (first := seen.setdefault(name, at) + 1) <= at:
            raise RefusedError(
                f"{path}, line 1: the columns {first} and {at + 1} are both called '{name}': give one of them another "
                "name in the file."
            )
        if not name:
            raise RefusedError(f"{path}, line 1: column {at + 1} has no name: give it one in the file.")
    return tuple(names), end


def guess_columns(data: bytes, names: Sequence[str], dialect: Dialect) -> pa.Schema:
    """Guess the types of columns from whole records without the header; null for those without a value."""
    parsing = pyarrow.csv.ParseOptions(
        delimiter=dialect.delimiter, invalid_row_handler=lambda row: "skip", ignore_empty_lines=len(names) > 1
    )
    types = dict.fromkeys(names, pa.binary())
    if not data:
        return pa.schema([(name, pa.null()) for name in names])
    table = pyarrow.csv.read_csv(pa.BufferReader(data), _reading(data, names), parsing, _converting(types, dialect))
    return pa.schema(
        [(name, _guess(column.combine_chunks())) for name, column in zip(names, table.columns, strict=True)]
    )


def _guess(values: pa.Array) -> pa.DataType:
    try:
        return guess_type(values.cast(pa.string()), clocks=True)
    except pa.ArrowInvalid:  # not UTF-8: such a row is told when it is read
        return pa.string()


def csv_parser(names: Sequence[str], schema: pa.Schema, dialect: Dialect, guessed: Collection[str] = ()) -> Parse:
    """Make a parser of records that have these values: columns of the schema that are among the names.

    Types that were guessed are taken only for what they give back as it is written. The parser raises pa.ArrowInvalid.
    """
    fields = {field.name: field for field in schema if field.name in names}
    checked = {name for name, field in fields.items() if _is_checked(field.type, name in guessed)}
    types = {name: pa.string() if name in checked else field.type for name, field in fields.items()}
    parsing = pyarrow.csv.ParseOptions(delimiter=dialect.delimiter, ignore_empty_lines=len(names) > 1)
    converting = _converting(types, dialect)

    def parse(data: bytes) -> pa.Table:
        try:
            table = pyarrow.csv.read_csv(pa.BufferReader(data), _reading(data, names), parsing, converting)
        except pa.ArrowInvalid as error:
            raise _named(error, list(types)) from error
        columns = [
            _exactly(column, fields[name], exact=name in guessed) if name in checked else column
            for name, column in zip(table.column_names, table.columns, strict=True)
        ]
        return pa.table(columns, names=table.column_names)

    return parse


def _is_checked(dtype: pa.DataType, guessed: bool) -> bool:
    """Whether text is read first, and looked at: Arrow's reader takes `007`, `0x10` and `1e999` as numbers."""
    zoned = pa.types.is_timestamp(dtype) and dtype.tz is not None
    return pa.types.is_floating(dtype) or (guessed and (pa.types.is_integer(dtype) or zoned))


def _exactly(column: pa.ChunkedArray, field: pa.Field, *, exact: bool) -> pa.ChunkedArray:
    try:
        return pa.chunked_array([parse_text(chunk, field.type, exact=exact) for chunk in column.chunks], field.type)
    except pa.ArrowInvalid as error:
        hint = f" (the type {field.type} was guessed: --cast {field.name}=string takes any)" if exact else ""
        raise pa.ArrowInvalid(f"column '{field.name}': {error}{hint}") from error


def _named(error: pa.ArrowInvalid, names: Sequence[str]) -> pa.ArrowInvalid:
    """The error with the column's name in the place of its number."""
    text = str(error)
    found = _COLUMN.match(text)
    return pa.ArrowInvalid(f"column '{names[int(found[1])]}': {text[found.end() :]}") if found else error


def _reading(data: bytes, names: Sequence[str]) -> pyarrow.csv.ReadOptions:
    """One block of all bytes: Arrow would cut blocks at any line break, also within quotes."""
    return pyarrow.csv.ReadOptions(column_names=list(names), use_threads=False, block_size=len(data) + 1)


def _converting(types: dict[str, pa.DataType], dialect: Dialect) -> pyarrow.csv.ConvertOptions:
    return pyarrow.csv.ConvertOptions(
        column_types=types,
        include_columns=list(types),
        null_values=["", *dialect.nulls],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )


def _breaks(data: bytes) -> np.ndarray:
    """Offsets behind line breaks: of \\n, or of \\r where that is all there is."""
    byte = _NEWLINE if _NEWLINE in data else _RETURN
    return np.flatnonzero(np.frombuffer(data, np.uint8) == byte) + 1


def count_breaks(data: bytes) -> int:
    """How many line breaks there are in a text."""
    return data.count(b"\n") or data.count(b"\r")


def _are_plain(data: bytes, quotes: np.ndarray, delimiter: str) -> bool:
    """Whether each quote that opens stands at the beginning of a value, or is the second one of a doubled quote.

    Then the number of quotes before a place says whether it is within quotes.
    """
    opening = quotes[::2]
    before = np.frombuffer(data, np.uint8)[np.maximum(opening, 1) - 1]
    allowed = np.frombuffer(delimiter.encode() + b'\n\r"', np.uint8)
    return bool(np.all(np.isin(before, allowed) | (opening == 0)))


def _split_slowly(data: bytes, breaks: np.ndarray, delimiter: str) -> tuple[np.ndarray, bool]:
    """The same where quotes stand within values: only one at a value's beginning opens."""
    before = re.escape(delimiter.encode())
    value = re.compile(rb"(?:^|(?<=[\n\r]|" + before + rb'))"[^"]*(?:""[^"]*)*("|$)')
    spans = [(found.start(), found.end(), bool(found[1])) for found in value.finditer(data)]
    starts = np.array([begin for begin, _, _ in spans], dtype=np.int64)
    ends = np.array([end for _, end, _ in spans], dtype=np.int64)
    at = np.searchsorted(starts, breaks - 1, side="right") - 1
    inside = (at >= 0) & (breaks - 1 < np.append(ends, 0)[at])
    return breaks[~inside], bool(spans) and not spans[-1][2]
