"""Encode values of any size in Arrow's stream format without holding them: their bytes are read as they are sent.

pyarrow encodes arrays, whose bytes are in memory. So the message of a large value is made of that which pyarrow encodes
for one byte: the header with the sizes replaced, then the body (https://arrow.apache.org/docs/format/Columnar.html).
"""

from __future__ import annotations

import struct
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa

from tiltyard.model.operations import StreamedValue
from tiltyard.runtime.client_arrow.ipc_metadata import CONTINUATION, I64, PREFIX, U32, read_fields, read_reference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tiltyard.model.operations import StreamedAnswer

CHUNK_BYTES = 512 << 10
"""Bytes that are read and sent at once."""
_ALIGNMENT = 8
_OFFSETS = struct.Struct("<qq")
"""The body's first buffer, as there is none of validity: where the value begins in the next one, and where it ends."""
_BUFFER = struct.Struct("<qq")
"""A buffer in the header: its position in the body, and its length."""
_VALUES = 2
"""The number of the buffer that has the bytes, after those of validity and offsets."""


def encode_stream(answer: StreamedAnswer) -> Iterator[bytes]:
    """Yield the messages of a response, in pieces of up to `CHUNK_BYTES` bytes for values that are streamed."""
    yield answer.schema.serialize().to_pybytes()
    for batch in answer.batches:
        if isinstance(batch, StreamedValue):
            yield from _encode_value(batch)
        else:
            yield batch.serialize().to_pybytes()
    yield PREFIX.pack(CONTINUATION, 0)


def _encode_value(value: StreamedValue) -> Iterator[bytes]:
    """Yield the message of a batch with one column of `large_binary`, and one row with this value."""
    size = value.size
    padding = -size % _ALIGNMENT
    yield _header(_OFFSETS.size + size + padding, size) + _OFFSETS.pack(0, size)
    for offset in range(0, size, CHUNK_BYTES):
        yield value.read(offset, min(CHUNK_BYTES, size - offset))
    yield bytes(padding)


def _header(body_bytes: int, value_bytes: int) -> bytes:
    """Return a message up to its body, for a body of so many bytes in all, and a value of so many."""
    message, body_position, value_position = _template()
    header = bytearray(message)
    I64.pack_into(header, body_position, body_bytes)
    I64.pack_into(header, value_position, value_bytes)
    return bytes(header)


@cache
def _template() -> tuple[bytes, int, int]:
    """Return the message of a value of one byte up to its body; where the body's length is, and the value's."""
    batch = pa.record_batch([pa.array([b"x"], pa.large_binary())], ["value"])
    message = batch.serialize().to_pybytes()
    _, length = PREFIX.unpack_from(message)
    header = message[PREFIX.size : PREFIX.size + length]
    _, _, table, body_position = read_fields(header, U32.unpack_from(header)[0])
    _, _, buffers, _ = read_fields(header, read_reference(header, table))
    value_position = read_reference(header, buffers) + U32.size + _VALUES * _BUFFER.size + I64.size
    start = PREFIX.size
    return message[: start + length], start + body_position, start + value_position
