"""Encode Arrow as FlightData: an IPC message in two fields of protobuf, its metadata and its buffers.

The bytes are put together here, since protobuf would copy the buffers into a message first and out of it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

MESSAGE_BYTES = 2 << 20
"""Bytes of a message: many clients refuse one of more than 4 MiB. Only a single row can be larger."""

_HEADER_TAG = b"\x12"
"""Field 2, `data_header`, of length-delimited type."""
_BODY_TAG = b"\xc2\x3e"
"""Field 1000, `data_body`, likewise."""
_PREFIX_BYTES = 8
"""An encapsulated message begins with a continuation marker and the length of its metadata, four bytes each."""


def schema_message(schema: pa.Schema) -> bytes:
    """Return a schema as an encapsulated IPC message, as FlightInfo has it."""
    encoded: bytes = schema.serialize().to_pybytes()
    return encoded


def encode_schema(schema: pa.Schema) -> bytes:
    """Return the FlightData of a schema, the first message of a stream."""
    return b"".join(_flight_data(memoryview(schema.serialize())))


def has_dictionaries(schema: pa.Schema) -> bool:
    """Return whether a type of the schema has a dictionary, which takes messages of its own."""
    return any(_has_dictionary(field.type) for field in schema)


def _has_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    if isinstance(kind, pa.BaseExtensionType):
        return _has_dictionary(kind.storage_type)
    return any(_has_dictionary(kind.field(number).type) for number in range(kind.num_fields))


def encode_batch(batch: pa.RecordBatch, *, dictionaries: bool) -> Iterator[tuple[bytes, memoryview]]:
    """Yield the FlightData of a batch, in messages of about MESSAGE_BYTES, each in two parts: its head, its buffers.

    With `dictionaries`, each message is preceded by the dictionaries of its batch, which replace those before.
    """
    for part in _parts(batch):
        yield from _encode_part(part, dictionaries)


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = max(1, batch.num_rows * MESSAGE_BYTES // max(1, batch.nbytes))
    if rows >= batch.num_rows:
        if batch.num_rows:
            yield batch
        return
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


def _encode_part(batch: pa.RecordBatch, dictionaries: bool) -> Iterator[tuple[bytes, memoryview]]:
    if not dictionaries:
        yield _flight_data(memoryview(batch.serialize()))
        return
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(pa.BufferReader(sink.getvalue()))
    for message in messages:
        if message.type != "schema":
            yield _flight_data(memoryview(message.serialize()))


def _flight_data(message: memoryview) -> tuple[bytes, memoryview]:
    """Return the FlightData of an encapsulated IPC message, in two parts."""
    end = _PREFIX_BYTES + int.from_bytes(message[4:_PREFIX_BYTES], "little")
    header, body = message[_PREFIX_BYTES:end], message[end:]
    body_head = (_BODY_TAG, _varint(len(body))) if body else ()
    return b"".join((_HEADER_TAG, _varint(len(header)), header, *body_head)), body


def _varint(number: int) -> bytes:
    """Return a number as protobuf writes it: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
