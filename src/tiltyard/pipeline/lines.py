"""Text of one record a line (CSV, JSON lines), read in blocks of whole lines, and from the middle of a file.

A block that does not parse is halved until the lines that are bad stand alone: the others are read all the same.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json

BLOCK = 8 << 20
_LEAST_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Bad:
    """A row that cannot be taken: what it was, as far as that can be shown, and why."""

    row: Any
    reason: str


Parse = Callable[[bytes], pa.Table]


def blocks(file: IO[bytes], start: int, end: int | None, size: int = BLOCK) -> Iterator[bytes]:
    """The lines that begin in the bytes from `start` to `end` (None: the end of the file), in blocks of whole lines.

    The file is read on from `start`, never back: it may be one that is decompressed on the way.
    """
    position = max(0, start - 1)  # one before: where that is the end of a line, the first line is ours
    if position:
        file.seek(position)
    rest, skipping = b"", start > 0
    while chunk := file.read(size):
        position += len(chunk)
        whole = rest + chunk
        rest = b""
        if skipping:
            cut = whole.find(b"\n")
            if cut < 0:
                continue
            whole, skipping = whole[cut + 1 :], False
        begin = position - len(whole)
        if end is not None and begin >= end:
            return
        if end is not None and position >= end:
            cut = whole.find(b"\n", end - 1 - begin) + 1
            if cut:
                yield whole[:cut]
                return
            rest = whole
            continue
        cut = whole.rfind(b"\n") + 1
        if cut:
            yield whole[:cut]
        rest = whole[cut:]
    if rest:
        yield rest


def parse(block: bytes, how: Parse) -> Iterator[pa.Table | Bad]:
    """The rows of a block in their order, and the lines that are none."""
    try:
        yield how(block)
    except pa.ArrowInvalid as error:
        lines = block.splitlines(keepends=True)
        if len(lines) == 1:
            yield Bad(block.decode(errors="replace").rstrip("\r\n"), str(error))
            return
        middle = len(lines) // 2
        yield from parse(b"".join(lines[:middle]), how)
        yield from parse(b"".join(lines[middle:]), how)


def csv_parser(schema: pa.Schema, delimiter: str) -> Parse:
    """Reads lines of CSV without a head; values as the schema has them."""
    reading = pyarrow.csv.ReadOptions(column_names=schema.names, use_threads=False)
    parsing = pyarrow.csv.ParseOptions(delimiter=delimiter)
    converting = pyarrow.csv.ConvertOptions(
        column_types=schema, strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    return lambda block: pyarrow.csv.read_csv(pa.BufferReader(block), reading, parsing, converting)


def json_parser(schema: pa.Schema) -> Parse:
    """Reads lines of JSON; fields that the schema lacks are an error, those that a line lacks are null."""
    reading = pyarrow.json.ReadOptions(use_threads=False, block_size=2 * BLOCK)
    parsing = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
    return lambda block: pyarrow.json.read_json(pa.BufferReader(block), reading, parsing)


def csv_schema(head: bytes, delimiter: str, *, complete: bool) -> pa.Schema:
    """The schema of CSV that begins with a line of names, guessed from the first lines."""
    lines = _whole_lines(head, complete=complete)
    parsing = pyarrow.csv.ParseOptions(delimiter=delimiter, invalid_row_handler=lambda row: "skip")
    return pyarrow.csv.read_csv(pa.BufferReader(lines), parse_options=parsing).schema


def json_schema(head: bytes, *, complete: bool) -> pa.Schema:
    """The schema of JSON lines, guessed from the first ones that are JSON.

    Where lines disagree on a type, most of them have it their way; whole numbers and others become others. Without a
    line that is a JSON object there is no column.
    """
    lines = [line for line in _whole_lines(head, complete=complete).splitlines(keepends=True) if _is_json(line)]
    if not lines:
        return pa.schema([])
    reading = pyarrow.json.ReadOptions(block_size=max(len(head), _LEAST_BLOCK) * 2)
    parts = parse(b"".join(lines), lambda block: pyarrow.json.read_json(pa.BufferReader(block), reading))
    tables = sorted((part for part in parts if isinstance(part, pa.Table)), key=lambda part: -part.num_rows)
    schema = pa.schema([])
    for table in tables:
        for field in table.schema:
            at = schema.get_field_index(field.name)
            schema = schema.append(field) if at < 0 else schema.set(at, _either(schema.field(at), field))
    return schema


def _either(one: pa.Field, other: pa.Field) -> pa.Field:
    """A field for the values of both, or the first one where there is none."""
    try:
        return pa.unify_schemas([pa.schema([one]), pa.schema([other])], promote_options="permissive").field(0)
    except pa.ArrowTypeError:
        return one


def _is_json(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _whole_lines(head: bytes, *, complete: bool) -> bytes:
    return head if complete else head[: head.rfind(b"\n") + 1]


def unpacked(file: Any, path: str) -> Any:
    """The file itself, or what is compressed in it, by its name."""
    return gzip.GzipFile(fileobj=file) if path.endswith(".gz") else file
