"""Read request bodies within limits: JSON and small Arrow bodies in memory, large uploads by a worker thread.

A large upload goes through a bounded window to the thread that reads it. Its reader raises when the client goes away,
so that a cut upload can never look like the end of a stream: a stream also has to close with Arrow's end-of-stream
mark.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
from lance_namespace.errors import ErrorCode, InvalidInputError

from tiltyard.api.bodies import uncompressed_ipc
from tiltyard.api.bodies.connection_reader import (
    BodyReader,
    ClientGoneError,
    HandOver,
    TakeCompleteBody,
    client_gone,
    stalled,
)
from tiltyard.api.errors import HttpError
from tiltyard.model.schemas.arrow_compat import align_columns, decimal_columns
from tiltyard.runtime.client_arrow.decoded_size import DecodedSizeCheck, encoded_columns
from tiltyard.runtime.client_arrow.decompression_guard import ExpansionCheck
from tiltyard.runtime.client_arrow.reading import TRAILING_BYTES, read_table
from tiltyard.runtime.tracing import add_rows

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Fingerprint = hashlib.blake2b

MAX_MEMORY_BYTES = 1 << 20
WINDOW_BYTES = 8 << 20
CHUNK_OVERHEAD = 64
"""Memory of a chunk besides its bytes: a client may send a body two bytes at a time."""
STALL_SECONDS = 60.0
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
FILE_MAGIC = b"ARROW1\x00\x00"


def new_fingerprint() -> Fingerprint:
    """Start a fingerprint: two bodies with the same one are the same."""
    return hashlib.blake2b(digest_size=16)


def fingerprint_of(body: bytes) -> str:
    """Return the fingerprint of a whole body."""
    fingerprint = new_fingerprint()
    fingerprint.update(body)
    return fingerprint.hexdigest()


async def read_body(receive: Receive, limit: int) -> bytes:
    """Return a whole body of at most `limit` bytes. Raises HttpError 413 and 408, ClientGoneError."""
    first, more = await _next(receive)
    _check_body(len(first), limit)
    if not more:
        return first
    whole = bytearray(first)  # and no list of chunks: each may take many times its bytes
    while more:
        chunk, more = await _next(receive)
        _check_body(len(whole) + len(chunk), limit)
        whole += chunk
    return bytes(whole)


async def open_upload(
    receive: Receive,
    limit: int,
    with_fingerprint: bool = False,
    hand_over: HandOver | None = None,
    take_complete: TakeCompleteBody | None = None,
) -> MemoryBody | StreamedBody:
    """Return the Arrow body of a request, once it is complete or known to be large (`limit` 0: any size).

    If `with_fingerprint`, the thread that reads a large body computes its fingerprint. With `hand_over`, that thread
    reads the rest from the connection itself. Raises HttpError 413 and 408, ClientGoneError.
    """
    if take_complete is not None and (body := take_complete()) is not None:
        _check_size(len(body), limit)
        return MemoryBody(body)
    chunks: deque[bytes] = deque()
    total, more = 0, True
    while more and total + CHUNK_OVERHEAD * len(chunks) < MAX_MEMORY_BYTES:
        chunk, more = await _next(receive)
        chunks.append(chunk)
        total += len(chunk)
    _check_size(total, limit)
    if more:
        body_reader = hand_over(total) if hand_over else None
        if body_reader is not None:
            chunks.append(body_reader.first)
            try:
                _check_size(total + len(body_reader.first) + body_reader.remaining, limit)
            except HttpError:
                body_reader.close()
                raise
        return StreamedBody(receive, chunks, limit, new_fingerprint() if with_fingerprint else None, body_reader)
    return MemoryBody(b"".join(chunks))


async def _next(receive: Receive) -> tuple[bytes, bool]:
    try:
        async with asyncio.timeout(STALL_SECONDS):  # not wait_for: before Python 3.12 that costs a task each time
            message = await receive()
    except TimeoutError as error:
        raise stalled(STALL_SECONDS) from error
    if message["type"] == "http.disconnect":
        raise client_gone()
    return message.get("body", b""), message.get("more_body", False)


def _check_body(size: int, limit: int) -> None:
    if size > limit:
        raise body_too_long(limit)


def body_too_long(limit: int) -> HttpError:
    """Return the error of a body that is not Arrow, and longer than `limit` bytes."""
    return HttpError(413, ErrorCode.INVALID_INPUT, f"The body has more than {limit} bytes.")


def _check_size(size: int, limit: int) -> None:
    if limit and size > limit:
        raise HttpError(413, ErrorCode.INVALID_INPUT, f"The upload has more than {limit} bytes.")


class MemoryBody:
    """A body that is complete already."""

    failure: BaseException | None = None

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int | None:
        return len(self._data)

    @property
    def fingerprint(self) -> str | None:
        return fingerprint_of(self._data)

    def reader(self) -> pa.RecordBatchReader:
        data = self._data
        if not data:
            return pa.RecordBatchReader.from_batches(pa.schema([]), [])
        try:
            table, decimals = _read_table(data)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise not_arrow(error) from error
        add_rows(table.num_rows)
        if decimals:
            table = pa.Table.from_batches(
                [align_columns(batch, decimals) for batch in table.to_batches()], table.schema
            )
        return table.to_reader()


class StreamedBody:
    """A body that is still coming in: the event loop feeds a window of chunks that one thread reads.

    With a body reader, the window has what came before, and the thread reads the rest from the connection itself.
    """

    size = None

    def __init__(
        self,
        receive: Receive,
        first: deque[bytes],
        limit: int,
        fingerprint: Fingerprint | None,
        body_reader: BodyReader | None = None,
    ) -> None:
        self._receive = receive
        self._limit = limit
        self._chunks = first
        self._received = sum(map(len, first))
        self._held_bytes = self._received + CHUNK_OVERHEAD * len(first)
        self._changed = threading.Condition()
        self._loop = asyncio.get_running_loop()
        self._has_room = asyncio.Event()
        self._body_reader = body_reader
        self._is_fed = body_reader is not None
        self._error: BaseException | None = None
        self.failure: BaseException | None = None
        self._tail = b""
        self._fingerprint = fingerprint
        self._expansion: ExpansionCheck | None = None
        self._decoded_size = DecodedSizeCheck(())
        self._read_bytes = 0
        self._is_at_end = False

    @property
    def fingerprint(self) -> str | None:
        """The body's fingerprint once all of it was read; None before, or without `with_fingerprint`."""
        return self._fingerprint.hexdigest() if self._is_at_end and self._fingerprint else None

    def drain(self) -> str | None:
        """Read the rest of the body and return its fingerprint. Raises the error that cut it."""
        try:
            while self.read_buffer(MAX_MEMORY_BYTES):
                pass
        except OSError as error:
            raise self._failure(error) from error
        return self.fingerprint

    async def feed(self) -> None:
        """Receive chunks until the body ends, on the event loop, while a thread reads them."""
        if self._body_reader is not None:
            try:
                await self._has_room.wait()
            finally:
                self._body_reader.close()
            return
        try:
            more = True
            while more:
                chunk, more = await _next(self._receive)
                self._received += len(chunk)
                _check_size(self._received, self._limit)
                self._has_room.clear()
                with self._changed:
                    self._chunks.append(chunk)
                    self._held_bytes += len(chunk) + CHUNK_OVERHEAD
                    is_full = self._held_bytes >= WINDOW_BYTES
                    self._changed.notify()
                if is_full:
                    await self._has_room.wait()
        except BaseException as error:
            self._error = error
            if not isinstance(error, (HttpError, ClientGoneError)):
                raise
        finally:
            with self._changed:
                self._is_fed = True
                self._changed.notify()

    def reader(self) -> pa.RecordBatchReader:
        self._expansion = ExpansionCheck()
        try:
            source = pa.ipc.open_stream(pa.PythonFile(self, mode="r"))
            decimals = decimal_columns(source.schema)
            self._decoded_size = DecodedSizeCheck(encoded_columns(source.schema))
            return pa.RecordBatchReader.from_batches(source.schema, self._batches(source, decimals))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._failure(error) from error

    def _batches(self, source: pa.RecordBatchReader, decimals: tuple[int, ...]) -> Any:
        try:
            for batch in source:
                batch.validate(full=True)  # offsets that lead out of a buffer would end the process
                self._decoded_size.add(batch, self._read_bytes)
                yield align_columns(batch, decimals)
            _check_end(self._tail)
            if self.read_buffer(1):
                raise ValueError(TRAILING_BYTES)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._failure(error) from error

    def _failure(self, error: BaseException) -> BaseException:
        """Return why the stream cannot be read: the connection's error, if it failed, else the data's.

        Also set as `failure`: between Lance's readers and this one an exception becomes a string.
        """
        connection = isinstance(self._error, (HttpError, InvalidInputError))
        self.failure = self._error if connection else not_arrow(error)
        assert self.failure is not None
        return self.failure

    # The methods that pyarrow needs of a Python file.
    closed = False

    def close(self) -> None:
        """Do nothing: the connection is the server's."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def read(self, count: int) -> bytes:
        return bytes(self.read_buffer(count))

    def read_buffer(self, count: int) -> Any:
        """Read exactly `count` bytes, fewer only at the end of the body."""
        buffer = pa.allocate_buffer(count, resizable=True)
        view = memoryview(buffer).cast("B")
        at = 0
        while at < count:
            chunks = self._wait_for_chunks(count - at)
            for chunk in chunks:
                view[at : at + len(chunk)] = chunk
                at += len(chunk)
            if not chunks:
                received = self._read_connection(view[at:])
                if not received:
                    break
                at += received
        self._tail = (self._tail + bytes(view[max(0, at - 8) : at]))[-8:]
        self._is_at_end = at < count
        self._read_bytes += at
        if self._fingerprint is not None:
            self._fingerprint.update(view[:at])
        if self._expansion is not None:
            self._expansion.add(view[:at])
        return buffer if at == count else pa.py_buffer(bytes(view[:at]))

    def _read_connection(self, view: memoryview) -> int:
        """Read bytes from the connection into a view; return how many: 0 at the end, or where the window gets all."""
        body_reader = self._body_reader
        if body_reader is None:
            return 0
        try:
            return body_reader.read_into(view, STALL_SECONDS)
        except OSError:
            self._error = body_reader.error
            raise
        finally:
            if not body_reader.remaining or body_reader.error:
                self._loop.call_soon_threadsafe(self._has_room.set)

    def _wait_for_chunks(self, most: int) -> list[bytes]:
        """Return up to `most` bytes of the window once it has some; none at its end. Raises OSError for a cut body."""
        with self._changed:
            while not self._chunks and not self._is_fed:
                self._changed.wait()
            if self._error is not None and not self._chunks:
                raise OSError("The upload broke off.")
            return self._pop_chunks(most)

    def _pop_chunks(self, most: int) -> list[bytes]:
        """Take up to `most` bytes off the window; the lock is held."""
        chunks: list[bytes] = []
        while self._chunks and most:
            chunk = self._chunks.popleft()
            if len(chunk) > most:
                self._chunks.appendleft(memoryview(chunk)[most:])  # type: ignore[arg-type]  # a view of bytes reads alike
                chunk = memoryview(chunk)[:most]  # type: ignore[assignment]  # as above
            else:
                self._held_bytes -= CHUNK_OVERHEAD
            most -= len(chunk)
            self._held_bytes -= len(chunk)
            chunks.append(chunk)
        if self._held_bytes < WINDOW_BYTES // 2 and self._body_reader is None:
            self._loop.call_soon_threadsafe(self._has_room.set)
        return chunks


def _read_table(data: bytes) -> tuple[pa.Table, tuple[int, ...]]:
    """Return the rows of a whole body, validated, and the positions of its columns with decimals."""
    is_file = data.startswith(FILE_MAGIC)
    uncompressed = None if is_file else uncompressed_ipc.find_messages(data)
    if not is_file:
        _check_end(data[-8:])
    if uncompressed is not None:
        return uncompressed_ipc.read(data, uncompressed)
    table = read_table(data, is_file=is_file)
    return table, decimal_columns(table.schema)


def _check_end(tail: bytes) -> None:
    """Raise ValueError for a stream whose last eight bytes are not its end-of-stream mark."""
    if tail != END_OF_STREAM:
        raise ValueError("it does not close with the end-of-stream mark, so part of it may be missing")


def not_arrow(error: BaseException) -> InvalidInputError:
    """Return the error of a body that is no valid Arrow IPC stream."""
    reason = str(error).splitlines()[0].strip().rstrip(".") if str(error) else type(error).__name__
    return InvalidInputError(f"The body is not a complete Arrow IPC stream: {reason}.")
