"""Encode Arrow responses in a thread, a few hundred kilobytes at a time, with a limit on their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.api.bodies.byte_ranges import VERSION_HEADER, ByteDownload
from tiltyard.api.bodies.streamed_values import encode_stream
from tiltyard.model.operations import ArrowAnswer, BytesAnswer, StreamedAnswer
from tiltyard.model.spec import ARROW_FILE, ARROW_STREAM
from tiltyard.runtime.current_request import add_rows

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
        for part in _parts(batch):
            writer.write_batch(part)
            if buffer.size >= CHUNK_BYTES:
                yield buffer.take()
    writer.close()
    yield buffer.take()


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slice a batch so that each slice fits into a chunk; a row that does not fit is a slice by itself."""
    rows = max(1, batch.num_rows * CHUNK_BYTES // max(1, batch.nbytes))
    if rows >= batch.num_rows:
        yield batch
        return
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)


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
