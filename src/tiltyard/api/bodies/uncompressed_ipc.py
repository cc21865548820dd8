"""Arrow streams that hold nothing but a schema and record batches as they lie in memory: what most small bodies are.

Their messages are found in microseconds, and cannot become larger than they came. Small ones from one client begin with
the same bytes, the schema, which pyarrow takes longer to read than a row: it is read once and kept.

Arrow's IPC format frames each message by its length and describes it in FlatBuffers
(https://arrow.apache.org/docs/format/Columnar.html).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from tiltyard.api.bodies.decoded_size import check_unfolded, folded_columns
from tiltyard.api.bodies.decompression_guard import ROOM
from tiltyard.model.arrow_compat import with_decimals

_CONTINUES = 0xFFFFFFFF
_HEADED = 8
_SCHEMA, _BATCH = 1, 3
_LONGEST_SCHEMA = 32 << 10
"""Bytes of a schema that is kept."""
_MOST_SCHEMAS = 256
_PREFIX = struct.Struct("<II")
_FOUR = struct.Struct("<6H")
_I64, _I32, _U32, _I16 = (struct.Struct(f"<{kind}") for kind in "qiIh")


class Plain(NamedTuple):
    """Where the messages of a stream are: its record batches begin where its schema ends."""

    schema_end: int
    batches: list[int]
    native: bool
    """Whether its numbers are as this machine has them."""


def look(data: bytes) -> Plain | None:
    """Find the messages of a stream that is plain: not compressed, without dictionaries, no more than `ROOM` rows.

    Whatever else there is about it, or if it is none, is for others to say.
    """
    at = rows = 0
    batches: list[int] = []
    native = False
    schema_end = 0
    try:
        while True:
            first, length = _PREFIX.unpack_from(data, at)
            if first != _CONTINUES or not length:
                ends = first == _CONTINUES and schema_end and at + _HEADED == len(data)
                return Plain(schema_end, batches, native) if ends else None
            root = at + _HEADED + _U32.unpack_from(data, at + _HEADED)[0]
            _, kind, header, body = _fields(data, root)
            behind = _I64.unpack_from(data, root + body)[0] if body else 0
            if not kind or not header or behind < 0 or data[root + kind] != (_BATCH if at else _SCHEMA):
                return None
            header += root + _U32.unpack_from(data, root + header)[0]
            if at:
                count, _, _, compression = _fields(data, header)
                rows += max(0, _I64.unpack_from(data, header + count)[0]) if count else 0
                if compression or rows > ROOM:
                    return None
                batches.append(at)
            elif behind:
                return None
            else:
                endianness = _fields(data, header)[0]
                native = not endianness or not _I16.unpack_from(data, header + endianness)[0]
                schema_end = _HEADED + length
            at += _HEADED + length + behind
    except (struct.error, IndexError):
        return None


def read(data: bytes, plain: Plain) -> tuple[pa.Table, tuple[int, ...]]:
    """The rows of a stream, validated, and the positions of its columns with decimals.

    Raises pyarrow.ArrowException, OSError, UnicodeDecodeError for a name that is not UTF-8, ValueError for views that
    stand for too much.
    """
    whole = pa.py_buffer(data)
    if not plain.native or plain.schema_end > _LONGEST_SCHEMA:
        table = pa.ipc.open_stream(whole).read_all()
        table.validate(full=True)
        check_unfolded(table.to_batches(), folded_columns(table.schema), len(data))
        return table, with_decimals(table.schema)
    schema, decimals, folded = _schema(data[: plain.schema_end])
    batches = [pa.ipc.read_record_batch(whole[at:], schema) for at in plain.batches]
    for batch in batches:
        batch.validate(full=True)
    if folded:
        check_unfolded(batches, folded, len(data))
    return pa.Table.from_batches(batches, schema), decimals


@lru_cache(maxsize=_MOST_SCHEMAS)
def _schema(message: bytes) -> tuple[pa.Schema, tuple[int, ...], tuple[int, ...]]:
    """Read a schema; return it with the positions of its columns with decimals, and with views."""
    schema = pa.ipc.read_schema(pa.py_buffer(message))
    return schema, with_decimals(schema), folded_columns(schema)


def _fields(data: bytes, table: int) -> list[int]:
    """Where the first four fields of a table are, counted from its beginning; 0 for those that are left out."""
    start = table - _I32.unpack_from(data, table)[0]
    size, _, *places = _FOUR.unpack_from(data, start)
    there = size // 2 - 2
    if there < len(places):
        places[max(0, there) :] = [0] * (len(places) - max(0, there))
    return places
