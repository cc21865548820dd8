"""Encode Arrow as FlightData: an IPC message in two fields of protobuf, its metadata and its buffers.

The bytes are put together here, since protobuf would copy the buffers into a message first and out of it again. They
are those of the batch as it is in memory: pyarrow's writer hands its buffers over without copying them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from tiltyard.model.schemas.nested_types import has_dictionary
from tiltyard.runtime.client_arrow.reading import slice_batch, to_ipc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Part = bytes | bytearray | memoryview
"""A part of a message."""

MESSAGE_BYTES = 2 << 20
"""Bytes of a message: many clients refuse one of more than 4 MiB. Only a single row can be larger."""

LARGE_BYTES = 64 << 10
"""A buffer from this size on is a part of its own, which is sent without copying it."""
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
    return b"".join(_flight_data([memoryview(schema.serialize())]))


def _has_dictionaries(schema: pa.Schema) -> bool:
    """Return whether a type of the schema has a dictionary, which takes messages of its own."""
    return any(has_dictionary(field.type) for field in schema)


class BatchEncoder:
    """Encodes the batches of one schema as FlightData, in messages of about MESSAGE_BYTES.

    A message is in parts: its head with small buffers, and each large buffer of the batch itself, which is not copied.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._has_dictionaries = _has_dictionaries(schema)
        self._sink = _Sink()
        self._writer = pa.ipc.new_stream(self._sink, schema)

    def encode(self, batch: pa.RecordBatch) -> Iterator[list[Part]]:
        """Yield the messages of a batch; each after those of its dictionaries, if any, which replace those before."""
        if not batch.schema.equals(self._schema):  # DataFusion may say otherwise which columns have no nulls
            batch = pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
        for part in slice_batch(batch, MESSAGE_BYTES) if batch.num_rows else ():
            if self._has_dictionaries:
                yield from _encode_with_dictionaries(part)
            else:
                yield self._encode(part)

    def encode_nothing(self) -> Iterator[list[Part]]:
        """Yield the messages of a batch without rows, which tell a reader that the query still runs."""
        empty = pa.RecordBatch.from_arrays(
            [column.combine_chunks() for column in self._schema.empty_table().columns], schema=self._schema
        )
        if self._has_dictionaries:
            yield from _encode_with_dictionaries(empty)
        else:
            yield self._encode(empty)

    def _encode(self, batch: pa.RecordBatch) -> list[Part]:
        if not self._sink.written:
            self._writer.write_batch(batch.slice(0, 0))  # after the schema, which is sent by itself
        self._sink.written.clear()
        self._writer.write_batch(batch)
        return _flight_data(self._sink.written)


class _Sink:
    """A file, as far as pyarrow's writer uses it: what is written, buffers as they are."""

    closed = False

    def __init__(self) -> None:
        self.written: list[memoryview] = []

    def write(self, data: bytes | pa.Buffer) -> int:
        self.written.append(memoryview(data))
        return len(data)

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _encode_with_dictionaries(batch: pa.RecordBatch) -> Iterator[list[Part]]:
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(to_ipc(batch))):
        if message.type != "schema":
            yield _flight_data([memoryview(message.serialize())])


def _flight_data(written: Iterable[memoryview]) -> list[Part]:
    """Return the FlightData of an encapsulated IPC message, which is in some pieces."""
    pieces = iter(written)
    head, end = bytearray(), _PREFIX_BYTES
    while len(head) < end:
        head += next(pieces)
        end = _PREFIX_BYTES + int.from_bytes(head[4:_PREFIX_BYTES], "little")
    header, body = head[_PREFIX_BYTES:end], [memoryview(head)[end:], *pieces]
    size = sum(map(len, body))
    body_head = (_BODY_TAG, _varint(size)) if size else ()
    parts: list[Part] = []
    small: list[Part] = [_HEADER_TAG, _varint(len(header)), header, *body_head]
    for piece in body:
        if len(piece) < LARGE_BYTES:
            small.append(piece)
        else:
            parts += (b"".join(small), piece)
            small = []
    return [*parts, b"".join(small)]


def _varint(number: int) -> bytes:
    """Return a number as protobuf writes it: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
