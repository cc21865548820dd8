"""Encode Arrow responses in a thread, a few hundred kilobytes at a time, with a limit on their bytes.

Values of any size are encoded without holding them: their bytes are read as they are sent. pyarrow encodes arrays,
whose bytes are in memory. So the message of a large value is made of that which pyarrow encodes for one byte: the
header with the sizes replaced, then the body (https://arrow.apache.org/docs/format/Columnar.html).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.api.bodies.byte_ranges import VERSION_HEADER, ByteDownload
from tiltyard.model.operations import ArrowAnswer, BytesAnswer, StreamedAnswer, StreamedValue
from tiltyard.model.spec import ARROW_FILE, ARROW_STREAM
from tiltyard.runtime.client_arrow.ipc_metadata import CONTINUATION, I64, PREFIX, U32, read_fields, read_reference
from tiltyard.runtime.client_arrow.reading import slice_batch
from tiltyard.runtime.tracing import add_rows

CHUNK_BYTES = 512 << 10
"""Bytes that are sent at once. Three chunks are held for a client that does not read: one that is sent, one that waits
for that, and one that was encoded meanwhile."""
_ARROW = (ArrowAnswer, StreamedAnswer)
_STREAM, _FILE = ARROW_STREAM.encode(), ARROW_FILE.encode()
_UNTHREADED = pa.ipc.IpcWriteOptions(use_threads=False)
ENCODED_AHEAD_BYTES = 16 << 20
"""Bytes of a limited response that are encoded before its head is sent: one that exceeds its limit before is a 400."""


class ResponseTooLargeError(InvalidInputError):
    """A response has more bytes than `max_result_bytes`."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"The response has more than {limit} bytes: ask for fewer rows or columns, or in pages (offset)."
        )


class Download:
    """An Arrow response in chunks: encoded in a thread, the first ones by the constructor.

    `first` are the first bytes; `complete` says whether they are all.
    """

    status = 200

    def __init__(self, response: ArrowAnswer | StreamedAnswer, media: str, limit: int = 0) -> None:
        """`limit` is how many bytes it may have, 0 for any number. Raises ResponseTooLargeError, as `next_chunk`."""
        self.media = media
        version = response.version if isinstance(response, ArrowAnswer) else None
        self.headers = () if version is None else ((VERSION_HEADER, b"%d" % version),)
        self._batches = response.batches
        self._chunks = encode_stream(response) if isinstance(response, StreamedAnswer) else encode(response, media)
        self._limit = limit
        self._encoded_bytes = 0
        try:
            self.first = self._encode_next() or b""
            self._ahead = self._encode_next()
            while (
                self._limit and self._ahead is not None and self._encoded_bytes < min(self._limit, ENCODED_AHEAD_BYTES)
            ):
                self.first += self._ahead
                self._ahead = self._encode_next()
        except BaseException:
            self.close()
            raise
        self.complete = self._ahead is None

    def next_chunk(self) -> bytes | None:
        """Return the next chunk, None after the last. Raises ResponseTooLargeError."""
        chunk, self._ahead = self._ahead, None
        return chunk if chunk is not None else self._encode_next()

    def close(self) -> None:
        """Stop reading the table."""
        for source in (self._chunks, self._batches):
            close = getattr(source, "close", None)
            if close is not None:
                close()

    def _encode_next(self) -> bytes | None:
        chunk = next(self._chunks, None)
        if chunk is not None:
            self._encoded_bytes += len(chunk)
            if self._limit and self._encoded_bytes > self._limit:
                raise ResponseTooLargeError(self._limit)
        return chunk


def encode_response(
    response: Any, media: str, limit: int, byte_range: bytes | None = None, *, is_head: bool = False
) -> Any:
    """Return an operation's response; Arrow as a Download, bytes as the ByteDownload of the header `Range`.

    Raises ResponseTooLargeError, HttpError 416.
    """
    if isinstance(response, BytesAnswer):
        return ByteDownload(response, byte_range, is_head=is_head)
    is_arrow = isinstance(response, _ARROW)
    return Download(response, response.media or media, limit) if is_arrow else response


class _Buffer:
    """The file that pyarrow writes to: holds the bytes until they are taken."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size = 0

    def write(self, piece: bytes) -> int:
        self._pieces.append(bytes(piece))
        self.size += len(piece)
        return len(piece)

    def take(self) -> bytes:
        chunk, self._pieces, self.size = b"".join(self._pieces), [], 0
        return chunk

    def flush(self) -> None:
        """Do nothing: the bytes wait for `take`."""

    def close(self) -> None:
        """Do nothing: the bytes outlive the writer."""

    def writable(self) -> bool:
        return True


def media_type(accept: bytes) -> str:
    """Return the Arrow file format, which QueryTable's contract names, unless only the stream format is accepted."""
    return ARROW_STREAM if accept.find(_STREAM) >= 0 and accept.find(_FILE) < 0 else ARROW_FILE


def encode(response: ArrowAnswer, media: str) -> Iterator[bytes]:
    """Encode a response in chunks of about CHUNK_BYTES bytes; the last one closes the file."""
    if isinstance(response.batches, list):
        yield _encode_whole(response.schema, response.batches, media)
        return
    buffer = _Buffer()
    sink = pa.PythonFile(buffer, mode="w")
    writer = _writer(media)(sink, response.schema)
    for batch in response.batches:
        add_rows(batch.num_rows)
        for part in slice_batch(batch, CHUNK_BYTES):
            writer.write_batch(part)
            if buffer.size >= CHUNK_BYTES:
                yield buffer.take()
    writer.close()
    yield buffer.take()


def _encode_whole(schema: pa.Schema, batches: list[pa.RecordBatch], media: str) -> bytes:
    """Encode a small response at once.

    Arrow then never calls back into Python: under load each switch between threads costs more than the encoding.
    """
    sink = pa.BufferOutputStream()
    with _writer(media)(sink, schema, options=_UNTHREADED) as writer:
        for batch in batches:
            add_rows(batch.num_rows)
            writer.write_batch(batch)
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def _writer(media: str) -> Callable[..., pa.RecordBatchWriter]:
    writer: Callable[..., pa.RecordBatchWriter] = pa.ipc.new_stream if media == ARROW_STREAM else pa.ipc.new_file
    return writer


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
