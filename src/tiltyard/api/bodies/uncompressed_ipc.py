"""Read Arrow streams of a schema and uncompressed record batches alone, as most small bodies are.

Their messages are located in microseconds, and cannot become larger than they came. Small bodies of one client begin
with the same bytes, the schema, which pyarrow takes longer to read than a row: it is cached.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import pyarrow as pa

from tiltyard.model.schemas.arrow_compat import decimal_columns
from tiltyard.runtime.cache import cached
from tiltyard.runtime.client_arrow.decoded_size import check_decoded_size, encoded_columns
from tiltyard.runtime.client_arrow.decompression_guard import ALLOWED_BYTES
from tiltyard.runtime.client_arrow.ipc_metadata import (
    CONTINUATION,
    I16,
    I64,
    PREFIX,
    RECORD_BATCH,
    SCHEMA,
    read_fields,
    read_message,
)

_MAX_CACHED_SCHEMA_BYTES = 32 << 10
"""Bytes of a schema that is cached."""
_MAX_SCHEMAS = 256
_PREFIX_BYTES = PREFIX.size


class MessageOffsets(NamedTuple):
    """Where the messages of a stream begin; the first record batch begins where the schema ends."""

    schema_end: int
    batches: list[int]
    has_native_endianness: bool


def find_messages(data: bytes) -> MessageOffsets | None:
    """Locate the messages of a stream: not compressed, without dictionaries, of at most `ALLOWED_BYTES` rows.

    None for any other stream, and for an invalid one: pyarrow reads it, and raises its errors.
    """
    view = memoryview(data)
    at = rows = 0
    batches: list[int] = []
    has_native_endianness = False
    schema_end = 0
    try:
        while True:
            first, length = PREFIX.unpack_from(data, at)
            start = at + _PREFIX_BYTES
            if first != CONTINUATION or not length:
                is_end = first == CONTINUATION and schema_end and start == len(data)
                return MessageOffsets(schema_end, batches, has_native_endianness) if is_end else None
            header = view[start : start + length]
            kind, table, body_bytes = read_message(header)
            if kind != (RECORD_BATCH if at else SCHEMA) or not table or not 0 <= body_bytes <= len(data):
                return None
            if at:
                count, _, _, compression = read_fields(header, table)
                rows += max(0, I64.unpack_from(header, count)[0]) if count else 0
                if compression or rows > ALLOWED_BYTES:
                    return None
                batches.append(at)
            elif body_bytes:
                return None
            else:
                endianness, *_ = read_fields(header, table)
                has_native_endianness = not endianness or not I16.unpack_from(header, endianness)[0]
                schema_end = start + length
            at = start + length + body_bytes
    except (struct.error, IndexError):
        return None


def read(data: bytes, offsets: MessageOffsets) -> tuple[pa.Table, tuple[int, ...]]:
    """Return the rows of a stream, validated, and the positions of its columns with decimals.

    Raises pyarrow.ArrowException, OSError, UnicodeDecodeError for a name that is not UTF-8, ValueError for views that
    decode to too much.
    """
    buffer = pa.py_buffer(data)
    if not offsets.has_native_endianness or offsets.schema_end > _MAX_CACHED_SCHEMA_BYTES:
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


@cached("schemas of bodies", "What is read of the schema of small Arrow bodies", max_entries=_MAX_SCHEMAS)
def _schema(message: bytes) -> tuple[pa.Schema, tuple[int, ...], tuple[int, ...]]:
    """Read a schema; return it with the positions of its columns with decimals, and of those with views."""
    schema = pa.ipc.read_schema(pa.py_buffer(message))
    return schema, decimal_columns(schema), encoded_columns(schema)
