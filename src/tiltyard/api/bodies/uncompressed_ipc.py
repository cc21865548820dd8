"""Read Arrow streams of a schema and uncompressed record batches alone, as most small bodies are.

Their messages are located in microseconds, and cannot become larger than they came. Small bodies of one client begin
with the same bytes, the schema, which pyarrow takes longer to read than a row: it is cached.

Arrow's IPC format frames each message by its length and describes it in FlatBuffers
(https://arrow.apache.org/docs/format/Columnar.html).
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from tiltyard.api.bodies.decoded_size import check_decoded_size, encoded_columns
from tiltyard.api.bodies.decompression_guard import ALLOWED_BYTES
from tiltyard.model.schemas.arrow_compat import decimal_columns

_CONTINUATION = 0xFFFFFFFF
_PREFIX_BYTES = 8
_SCHEMA, _BATCH = 1, 3
_MAX_CACHED_SCHEMA = 32 << 10
"""Bytes of a schema that is cached."""
_MAX_SCHEMAS = 256
_PREFIX = struct.Struct("<II")
_FOUR = struct.Struct("<6H")
_I64, _I32, _U32, _I16 = (struct.Struct(f"<{kind}") for kind in "qiIh")


class MessageOffsets(NamedTuple):
    """Where the messages of a stream begin; the first record batch begins where the schema ends."""

    schema_end: int
    batches: list[int]
    has_native_endianness: bool


def find_messages(data: bytes) -> MessageOffsets | None:
    """Locate the messages of a stream: not compressed, without dictionaries, of at most `ALLOWED_BYTES` rows.

    None for any other stream, and for an invalid one: pyarrow reads it, and raises its errors.
    """
    at = rows = 0
    batches: list[int] = []
    has_native_endianness = False
    schema_end = 0
    try:
        while True:
            first, length = _PREFIX.unpack_from(data, at)
            if first != _CONTINUATION or not length:
                is_end = first == _CONTINUATION and schema_end and at + _PREFIX_BYTES == len(data)
                return MessageOffsets(schema_end, batches, has_native_endianness) if is_end else None
            root = at + _PREFIX_BYTES + _U32.unpack_from(data, at + _PREFIX_BYTES)[0]
            _, kind, header, body = _field_offsets(data, root)
            body_bytes = _I64.unpack_from(data, root + body)[0] if body else 0
            if not kind or not header or body_bytes < 0 or data[root + kind] != (_BATCH if at else _SCHEMA):
                return None
            header += root + _U32.unpack_from(data, root + header)[0]
            if at:
                count, _, _, compression = _field_offsets(data, header)
                rows += max(0, _I64.unpack_from(data, header + count)[0]) if count else 0
                if compression or rows > ALLOWED_BYTES:
                    return None
                batches.append(at)
            elif body_bytes:
                return None
            else:
                endianness = _field_offsets(data, header)[0]
                has_native_endianness = not endianness or not _I16.unpack_from(data, header + endianness)[0]
                schema_end = _PREFIX_BYTES + length
            at += _PREFIX_BYTES + length + body_bytes
    except (struct.error, IndexError):
        return None


def read(data: bytes, offsets: MessageOffsets) -> tuple[pa.Table, tuple[int, ...]]:
    """Return the rows of a stream, validated, and the positions of its columns with decimals.

    Raises pyarrow.ArrowException, OSError, UnicodeDecodeError for a name that is not UTF-8, ValueError for views that
    decode to too much.
    """
    buffer = pa.py_buffer(data)
    if not offsets.has_native_endianness or offsets.schema_end > _MAX_CACHED_SCHEMA:
        table = pa.ipc.open_stream(buffer).read_all()
        table.validate(full=True)
        check_decoded_size(table.to_batches(), encoded_columns(table.schema), len(data))
        return table, decimal_columns(table.schema)
    schema, decimals, encoded = _schema(data[: offsets.schema_end])
    batches = [pa.ipc.read_record_batch(buffer[at:], schema) for at in offsets.batches]
    for batch in batches:
        batch.validate(full=True)
    if encoded:
        check_decoded_size(batches, encoded, len(data))
    return pa.Table.from_batches(batches, schema), decimals


@lru_cache(maxsize=_MAX_SCHEMAS)
def _schema(message: bytes) -> tuple[pa.Schema, tuple[int, ...], tuple[int, ...]]:
    """Read a schema; return it with the positions of its columns with decimals, and of those with views."""
    schema = pa.ipc.read_schema(pa.py_buffer(message))
    return schema, decimal_columns(schema), encoded_columns(schema)


def _field_offsets(data: bytes, table: int) -> list[int]:
    """Return the offsets of a table's first four fields, from its beginning; 0 for absent ones."""
    start = table - _I32.unpack_from(data, table)[0]
    size, _, *offsets = _FOUR.unpack_from(data, start)
    fields = size // 2 - 2
    if fields < len(offsets):
        offsets[max(0, fields) :] = [0] * (len(offsets) - max(0, fields))
    return offsets
