"""Parse JSON lines, and infer the types of their fields.

A block that does not parse is halved until the invalid lines stand alone: all others are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from tiltyard.pipeline.sources.text_blocks import BLOCK_BYTES, RejectedRow, drop_incomplete_line
from tiltyard.pipeline.sources.text_types import (
    NUMBER,
    JsonFraction,
    JsonInteger,
    JsonProfile,
    parse_text,
    round_trips_as_float64,
)

BOM = b"\xef\xbb\xbf"

_LONG_NUMBER = re.compile(rb"[0-9][0-9.]{15,}(?:[eE][+-]?[0-9]+)?")
_ERROR_POSITION = re.compile(r"^JSON parse error: | in row \d+$")
_NULL_FIRST, _NULL_LATER = re.compile(rb"\s*null"), re.compile(rb"\n\s*null")
"""A line that begins with null: the first one, a later one. One pattern of both is far slower."""
_DIGITS = bytes(ord("0") if byte in b"0123456789." else ord(" ") for byte in range(256))
_LONG_DIGITS = b"0" * 16
"""What `_LONG_NUMBER` begins with, once `_DIGITS` has made digits and points the same: most blocks have none."""
_INFINITY = b"Infinity"

Parser = Callable[[bytes], pa.Table]


def profile_json(head: bytes, *, complete: bool) -> JsonProfile:
    """Collect type statistics of the first lines of JSON; lines that are no JSON objects are ignored."""
    profile = JsonProfile()
    for line in drop_incomplete_line(head.removeprefix(BOM), complete=complete).splitlines():
        if (row := _parse_object(line)) is not None:
            profile.add(row)
    return profile


def infer_json_schema(profile: JsonProfile) -> pa.Schema:
    """Return the fields of all lines, with types that lose nothing; null for fields without a value."""
    return pa.schema([(name, field.infer_type()) for name, field in profile.fields.items()])


def parse_json_lines(block: bytes, parser: Parser, line: int) -> Iterator[pa.Table | RejectedRow]:
    """Yield the rows of a block in order, and the lines that do not parse; `line` is the number of the first line."""
    try:
        yield parser(block)
    except pa.ArrowInvalid as error:
        lines = block.splitlines(keepends=True)
        if len(lines) == 1:
            yield RejectedRow(block.decode(errors="replace").rstrip("\r\n"), _ERROR_POSITION.sub("", str(error)), line)
            return
        middle = len(lines) // 2
        yield from parse_json_lines(b"".join(lines[:middle]), parser, line)
        yield from parse_json_lines(b"".join(lines[middle:]), parser, line + middle)


def make_json_parser(
    schema: pa.Schema,
    inferred: Collection[str] = (),
    numbers_as_text: Collection[str] = (),
    *,
    ignore: bool = False,
) -> Parser:
    """Make a parser of lines: missing fields are null; fields that the schema lacks raise, or are left out (`ignore`).

    Numbers of the fields `numbers_as_text` become text as written. Fields in `inferred` round no number. The parser
    raises pa.ArrowInvalid.
    """
    time_fields = {field.name for field in schema if pa.types.is_temporal(field.type)}
    read_schema = pa.schema([field.with_type(pa.string()) if field.name in time_fields else field for field in schema])
    read_options = pyarrow.json.ReadOptions(use_threads=False, block_size=2 * BLOCK_BYTES)
    parse_options = pyarrow.json.ParseOptions(
        explicit_schema=read_schema, unexpected_field_behavior="ignore" if ignore else "error"
    )
    float_fields = [field for field in schema if field.name in inferred and _has_floats(field.type)]

    def parse(block: bytes) -> pa.Table:
        _check_encoding(block)
        if _NULL_FIRST.match(block) or _NULL_LATER.search(
            block
        ):  # Arrow's reader crashes the process where a block begins with null
            raise pa.ArrowInvalid("the line is not a JSON object")
        options = read_options if len(block) < BLOCK_BYTES else pyarrow.json.ReadOptions(False, len(block) + 1)
        if numbers_as_text:
            table = _parse_in_python(block, read_schema, ignore=ignore)
        else:
            table = pyarrow.json.read_json(pa.BufferReader(block), options, parse_options)
            if table.num_rows != sum(1 for line in block.splitlines() if line.strip()):  # it makes two rows of `{}{}`
                raise pa.ArrowInvalid("the line is not one JSON object")
        if float_fields and (suspects := _find_inexact_numbers(block)):
            _check_precision(block, suspects, float_fields)
        _check_infinite(block, table)
        columns = [
            _parse_times(column, schema.field(name), exact=name in inferred) if name in time_fields else column
            for name, column in zip(table.column_names, table.columns, strict=True)
        ]
        return pa.table(columns, names=table.column_names)

    return parse


def _check_encoding(block: bytes) -> None:
    """Raise pa.ArrowInvalid for bytes that are not UTF-8, which Arrow would accept as text."""
    if not block.isascii():
        try:
            block.decode()
        except UnicodeDecodeError as error:
            raise pa.ArrowInvalid(f"the line is not UTF-8: {error.reason} at byte {error.start}") from error


def _parse_times(column: pa.ChunkedArray, field: pa.Field, *, exact: bool) -> pa.ChunkedArray:
    """Parse text as times.

    Arrow's JSON reader would drop the zone of a time, or read a time without one as UTC.
    """
    try:
        return pa.chunked_array([parse_text(chunk, field.type, exact=exact) for chunk in column.chunks], field.type)
    except pa.ArrowNotImplementedError as error:
        raise pa.ArrowInvalid(f"column '{field.name}': text is not read as {field.type}") from error
    except pa.ArrowInvalid as error:
        hint = f" (the type {field.type} was guessed: --cast {field.name}=string takes any)" if exact else ""
        raise pa.ArrowInvalid(f"column '{field.name}': {error}{hint}") from error


def _has_floats(dtype: pa.DataType) -> bool:
    if pa.types.is_list(dtype):
        return _has_floats(dtype.value_type)
    return pa.types.is_floating(dtype) or (
        pa.types.is_struct(dtype) and any(_has_floats(field.type) for field in dtype)
    )


def _find_inexact_numbers(block: bytes) -> set[bytes]:
    """Return texts that look like numbers which a float64 rounds.

    Few remain: most numbers are written in the shortest form of their float64.
    """
    if _LONG_DIGITS not in block.translate(_DIGITS):
        return set()
    texts = pa.array(_LONG_NUMBER.findall(block), pa.binary()).cast(pa.string())
    numbers = texts.filter(pc.match_substring_regex(texts, NUMBER))
    shortest = numbers.cast(pa.float64()).cast(pa.string())
    return {
        text.encode()
        for text in numbers.filter(pc.not_equal(shortest, numbers)).to_pylist()
        if not round_trips_as_float64(text)
    }


def _check_precision(block: bytes, candidates: set[bytes], fields: list[pa.Field]) -> None:
    """Raise pa.ArrowInvalid for a number with more digits than its float64 holds."""
    for line in block.splitlines():
        row = (_parse_object(line) if not candidates.isdisjoint(_LONG_NUMBER.findall(line)) else None) or {}
        for field in fields:
            if (text := _find_rounded(row.get(field.name), field.type)) is not None:
                raise pa.ArrowInvalid(
                    f"column '{field.name}': {text} has more digits than a float64 holds (the type {field.type} was "
                    f"guessed: --cast {field.name}=string takes any)"
                )


def _find_rounded(value: Any, dtype: pa.DataType) -> str | None:
    """Return the first number within a value that a float64 rounds."""
    if isinstance(value, JsonInteger | JsonFraction):
        return str(value) if pa.types.is_floating(dtype) and not round_trips_as_float64(value) else None
    if isinstance(value, list):
        inner = [(item, dtype.value_type) for item in value]
    elif isinstance(value, dict):
        inner = [(value.get(field.name), field.type) for field in dtype]
    else:
        return None
    return next(
        (rounded for nested, nested_type in inner if (rounded := _find_rounded(nested, nested_type)) is not None), None
    )


def _check_infinite(block: bytes, table: pa.Table) -> None:
    """Raise pa.ArrowInvalid where finite numbers became infinite."""
    infinite = {name: _count_infinite(table.column(name)) for name in table.column_names}
    if sum(infinite.values()) > block.count(_INFINITY):
        name = next(name for name, count in infinite.items() if count)
        raise pa.ArrowInvalid(f"column '{name}': a number is beyond what {table.schema.field(name).type} holds")


def _count_infinite(values: pa.ChunkedArray) -> int:
    if pa.types.is_list(values.type):
        return _count_infinite(pc.list_flatten(values)) if _has_floats(values.type) else 0
    if pa.types.is_struct(values.type):
        return sum(_count_infinite(pc.struct_field(values, field.name)) for field in values.type)
    return pc.sum(pc.is_inf(values), min_count=0).as_py() if pa.types.is_floating(values.type) else 0


def _parse_in_python(block: bytes, schema: pa.Schema, *, ignore: bool) -> pa.Table:
    """Parse rows with Python's JSON reader, which keeps numbers as they are written."""
    rows = []
    for line in block.splitlines():
        if not line.strip():
            continue
        row = _parse_object(line)
        if row is None:
            raise pa.ArrowInvalid("the line is not a JSON object")
        if not ignore and (unknown := [name for name in row if name not in schema.names]):
            raise pa.ArrowInvalid(f"unexpected field '{unknown[0]}'")
        fields = {name: value for name, value in row.items() if name in schema.names}
        rows.append({name: _to_arrow_value(value, schema.field(name).type) for name, value in fields.items()})
    try:
        return pa.Table.from_pylist(rows, schema)
    except (pa.ArrowTypeError, OverflowError) as error:
        raise pa.ArrowInvalid(str(error)) from error


def _to_arrow_value(value: Any, dtype: pa.DataType) -> Any:
    """Convert a value to what Arrow takes for a type; a number becomes its text for a string type."""
    match value:
        case JsonInteger() | JsonFraction() if pa.types.is_string(dtype):
            return str(value)
        case JsonInteger() | JsonFraction() if pa.types.is_decimal(dtype):
            return Decimal(value)
        case JsonInteger():
            return int(value)
        case JsonFraction():
            return float(value)
        case list() if pa.types.is_list(dtype):
            return [_to_arrow_value(item, dtype.value_type) for item in value]
        case dict() if pa.types.is_struct(dtype):
            inner = {field.name: field.type for field in dtype}
            return {name: _to_arrow_value(item, inner.get(name, pa.null())) for name, item in value.items()}
    return value


def _parse_object(line: bytes) -> dict[str, Any] | None:
    """Return a line's object with its numbers as text; None if it is no JSON object."""
    try:
        row = json.loads(line, parse_int=JsonInteger, parse_float=JsonFraction, object_pairs_hook=_unique_object)
        if b"\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair (`\ud800`) is no text
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _unique_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object whose names are unique, as Arrow's reader requires."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name is there twice")
    return fields
