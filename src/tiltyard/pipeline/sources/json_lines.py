"""JSON lines: the types of fields, guessed from what lines hold, and lines made into rows.

A block that does not parse is halved until the lines that are bad stand alone: the others are read all the same.
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

from tiltyard.pipeline.sources.exact_text import NUMBER, gives_back, parse_text
from tiltyard.pipeline.sources.text_blocks import BLOCK, Bad, whole_lines
from tiltyard.pipeline.sources.type_inference import Evidence, Fraction, Integer

BOM = b"\xef\xbb\xbf"

_LONG_NUMBER = re.compile(rb"[0-9][0-9.]{15,}(?:[eE][+-]?[0-9]+)?")
_ROW = re.compile(r"^JSON parse error: | in row \d+$")
_NULL = re.compile(rb"^\s*null", re.MULTILINE)
_INFINITY = b"Infinity"

Parse = Callable[[bytes], pa.Table]


def json_evidence(head: bytes, *, complete: bool) -> Evidence:
    """What the first lines of JSON are like; those that are no JSON objects are left out."""
    found = Evidence()
    for line in whole_lines(head.removeprefix(BOM), complete=complete).splitlines():
        if (row := _object(line)) is not None:
            found.add(row)
    return found


def json_schema(evidence: Evidence) -> pa.Schema:
    """The columns that lines have, with the types that lose nothing; null for those without a value."""
    return pa.schema([(name, own.guess()) for name, own in evidence.fields.items()])


def parse_lines(block: bytes, how: Parse, line: int) -> Iterator[pa.Table | Bad]:
    """The rows of a block in their order, and the lines that are none; `line` is the number of the first one."""
    try:
        yield how(block)
    except pa.ArrowInvalid as error:
        lines = block.splitlines(keepends=True)
        if len(lines) == 1:
            yield Bad(block.decode(errors="replace").rstrip("\r\n"), _ROW.sub("", str(error)), line)
            return
        middle = len(lines) // 2
        yield from parse_lines(b"".join(lines[:middle]), how, line)
        yield from parse_lines(b"".join(lines[middle:]), how, line + middle)


def json_parser(
    schema: pa.Schema,
    guessed: Collection[str] = (),
    numbers_as_text: Collection[str] = (),
    *,
    ignore: bool = False,
) -> Parse:
    """Make a parser of lines; those that lack a field have null there. Fields that the schema lacks are an error.

    With `ignore` they are left out.

    Numbers in the fields `numbers_as_text` become the text that they are written as. In fields whose types were guessed
    no number is rounded. The parser raises pa.ArrowInvalid.
    """
    texts = {field.name for field in schema if pa.types.is_temporal(field.type)}
    wire = pa.schema([field.with_type(pa.string()) if field.name in texts else field for field in schema])
    reading = pyarrow.json.ReadOptions(use_threads=False, block_size=2 * BLOCK)
    parsing = pyarrow.json.ParseOptions(explicit_schema=wire, unexpected_field_behavior="ignore" if ignore else "error")
    rounded = [field for field in schema if field.name in guessed and _has_floats(field.type)]

    def parse(block: bytes) -> pa.Table:
        _check_encoding(block)
        if _NULL.search(block):  # Arrow's reader ends the process where a block begins so
            raise pa.ArrowInvalid("the line is no JSON object")
        options = reading if len(block) < BLOCK else pyarrow.json.ReadOptions(False, len(block) + 1)
        if numbers_as_text:
            table = _parse_slowly(block, wire, ignore=ignore)
        else:
            table = pyarrow.json.read_json(pa.BufferReader(block), options, parsing)
        if rounded and (suspects := _long_numbers(block)):
            _check_digits(block, suspects, rounded)
        _check_infinite(block, table)
        columns = [
            _parse_times(column, schema.field(name), exact=name in guessed) if name in texts else column
            for name, column in zip(table.column_names, table.columns, strict=True)
        ]
        return pa.table(columns, names=table.column_names)

    return parse


def _check_encoding(block: bytes) -> None:
    """Raise pa.ArrowInvalid for bytes that are not UTF-8, which Arrow takes as text."""
    if not block.isascii():
        try:
            block.decode()
        except UnicodeDecodeError as error:
            raise pa.ArrowInvalid(f"the line is not UTF-8: {error.reason} at byte {error.start}") from error


def _parse_times(column: pa.ChunkedArray, field: pa.Field, *, exact: bool) -> pa.ChunkedArray:
    """Text as times. Arrow's JSON reader would drop the zone of a time, or read a time without one as UTC."""
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
    return pa.types.is_floating(dtype) or (pa.types.is_struct(dtype) and any(_has_floats(one.type) for one in dtype))


def _long_numbers(block: bytes) -> set[bytes]:
    """What looks like a number that a float64 rounds; few are left, for most are written as a float64 writes itself."""
    texts = pa.array(_LONG_NUMBER.findall(block), pa.binary()).cast(pa.string())
    numbers = texts.filter(pc.match_substring_regex(texts, NUMBER))
    shortest = numbers.cast(pa.float64()).cast(pa.string())
    return {
        text.encode() for text in numbers.filter(pc.not_equal(shortest, numbers)).to_pylist() if not gives_back(text)
    }


def _check_digits(block: bytes, suspects: set[bytes], fields: list[pa.Field]) -> None:
    """Raise pa.ArrowInvalid for a number of more digits than its float64 holds."""
    for line in block.splitlines():
        row = (_object(line) if not suspects.isdisjoint(_LONG_NUMBER.findall(line)) else None) or {}
        for field in fields:
            if (text := _rounded(row.get(field.name), field.type)) is not None:
                raise pa.ArrowInvalid(
                    f"column '{field.name}': {text} has more digits than a float64 holds (the type {field.type} was "
                    f"guessed: --cast {field.name}=string takes any)"
                )


def _rounded(value: Any, dtype: pa.DataType) -> str | None:
    """The first number within a value that a float64 rounds."""
    if isinstance(value, Integer | Fraction):
        return str(value) if pa.types.is_floating(dtype) and not gives_back(value) else None
    if isinstance(value, list):
        inner = [(item, dtype.value_type) for item in value]
    elif isinstance(value, dict):
        inner = [(value.get(field.name), field.type) for field in dtype]
    else:
        return None
    return next((found for own, kind in inner if (found := _rounded(own, kind)) is not None), None)


def _check_infinite(block: bytes, table: pa.Table) -> None:
    """Raise pa.ArrowInvalid where numbers became infinite that are not written so."""
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


def _parse_slowly(block: bytes, schema: pa.Schema, *, ignore: bool) -> pa.Table:
    """Rows by Python's reader of JSON, which shows numbers as they are written."""
    rows = []
    for line in block.splitlines():
        if not line.strip():
            continue
        row = _object(line)
        if row is None:
            raise pa.ArrowInvalid("the line is no JSON object")
        if not ignore and (unknown := [name for name in row if name not in schema.names]):
            raise pa.ArrowInvalid(f"unexpected field '{unknown[0]}'")
        known = {name: own for name, own in row.items() if name in schema.names}
        rows.append({name: _value(own, schema.field(name).type) for name, own in known.items()})
    try:
        return pa.Table.from_pylist(rows, schema)
    except (pa.ArrowTypeError, OverflowError) as error:
        raise pa.ArrowInvalid(str(error)) from error


def _value(value: Any, dtype: pa.DataType) -> Any:
    """A value as Arrow takes it for a type; a number as it is written for text."""
    match value:
        case Integer() | Fraction() if pa.types.is_string(dtype):
            return str(value)
        case Integer() | Fraction() if pa.types.is_decimal(dtype):
            return Decimal(value)
        case Integer():
            return int(value)
        case Fraction():
            return float(value)
        case list() if pa.types.is_list(dtype):
            return [_value(item, dtype.value_type) for item in value]
        case dict() if pa.types.is_struct(dtype):
            inner = {own.name: own.type for own in dtype}
            return {name: _value(item, inner.get(name, pa.null())) for name, item in value.items()}
    return value


def _object(line: bytes) -> dict[str, Any] | None:
    """A line's object, its numbers as text; None for what is none."""
    try:
        row = json.loads(line, parse_int=Integer, parse_float=Fraction, object_pairs_hook=_once)
        if b"\\u" in line:
            json.dumps(row, ensure_ascii=False).encode()  # half a pair (`\ud800`) is no text
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of names that are there once, as Arrow's reader wants them."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found
