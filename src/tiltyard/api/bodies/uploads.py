"""Arrow bodies as they come in: small ones in memory, large ones through a bounded window to the reading thread.

The reader raises when the client goes away, so that a cut upload can never look like the end of a stream: a stream
also has to close with Arrow's end-of-stream mark.
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
from tiltyard.api.bodies.connection_reader import Arrived, ClientGoneError, Give, Intake, client_gone, stalled
from tiltyard.api.bodies.decoded_size import Unfolding, check_unfolded, known_folded_columns
from tiltyard.api.bodies.decompression_guard import Swelling, check_whole
from tiltyard.api.errors import HttpError
from tiltyard.model.arrow_compat import aligned, with_decimals

Receive = Callable[[], Awaitable[Any]]
Fingerprint = hashlib.blake2b

IN_MEMORY = 1 << 20
WINDOW = 8 << 20
PIECE_BYTES = 64
"""What a piece of a body takes in memory besides its bytes: a client may send it two bytes at a time."""
STALL_SECONDS = 60.0
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
FILE_MAGIC = b"ARROW1\x00\x00"
_MORE = "it goes on behind its end-of-stream mark: send one stream"


def new_fingerprint() -> Fingerprint:
    """The state of a fingerprint: two bodies with the same one are the same."""
    return hashlib.blake2b(digest_size=16)


def fingerprint_of(body: bytes) -> str:
    """The fingerprint of a whole body."""
    fingerprint = new_fingerprint()
    fingerprint.update(body)
    return fingerprint.hexdigest()


async def read_body(receive: Receive, limit: int, arrived: Arrived | None = None) -> bytes:
    """A whole body of at most `limit` bytes. Raises HttpError 413, ClientGoneError."""
    if arrived is not None and (body := arrived()) is not None:
        _check_body(len(body), limit)
        return body
    first, more = await _next(receive)
    _check_body(len(first), limit)
    if not more:
        return first
    whole = bytearray(first)  # and no list of pieces: each would take many times its bytes
    while more:
        chunk, more = await _next(receive)
        _check_body(len(whole) + len(chunk), limit)
        whole += chunk
    return bytes(whole)


async def open_upload(
    receive: Receive,
    limit: int,
    identified: bool = False,
    give: Give | None = None,
    arrived: Arrived | None = None,
) -> MemoryBody | StreamedBody:
    """The Arrow body of a request, once it is complete or known to be large (`limit` 0: any size).

    If `identified`, a large one has a fingerprint once it is read; it is made by the thread that reads. With `give`,
    that thread reads the rest off the connection itself.
    """
    if arrived is not None and (body := arrived()) is not None:
        _check_size(len(body), limit)
        return MemoryBody(body)
    chunks: deque[bytes] = deque()
    total, more = 0, True
    while more and total + PIECE_BYTES * len(chunks) < IN_MEMORY:
        chunk, more = await _next(receive)
        chunks.append(chunk)
        total += len(chunk)
    _check_size(total, limit)
    if more:
        intake = give(total) if give else None
        if intake is not None:
            chunks.append(intake.first)
            try:
                _check_size(total + len(intake.first) + intake.left, limit)
            except HttpError:
                intake.end()
                raise
        return StreamedBody(receive, chunks, limit, new_fingerprint() if identified else None, intake)
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
        raise HttpError(413, ErrorCode.INVALID_INPUT, f"The body has more than {limit} bytes.")


def _check_size(size: int, limit: int) -> None:
    if limit and size > limit:
        raise HttpError(413, ErrorCode.INVALID_INPUT, f"The upload has more than {limit} bytes.")


class MemoryBody:
    """A body that is here already."""

    failure: BaseException | None = None

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int | None:
        return len(self._data)

    @property
    def fingerprint(self) -> str | None:
        """What the body is."""
        return fingerprint_of(self._data)

    def reader(self) -> pa.RecordBatchReader:
        """See ArrowBody."""
        data = self._data
        if not data:
            return pa.RecordBatchReader.from_batches(pa.schema([]), [])
        try:
            table, decimals = _rows(data)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise not_arrow(error) from error
        if decimals:
            table = pa.Table.from_batches([aligned(batch, decimals) for batch in table.to_batches()], table.schema)
        return table.to_reader()


class StreamedBody:
    """A body that is still coming in: the event loop feeds a window of chunks that one thread reads.

    With an intake, the window has what came before, and the thread reads the rest by itself.
    """

    size = None

    def __init__(
        self,
        receive: Receive,
        first: deque[bytes],
        limit: int,
        fingerprint: Fingerprint | None,
        intake: Intake | None = None,
    ) -> None:
        self._receive = receive
        self._limit = limit
        self._chunks = first
        self._received = sum(map(len, first))
        self._held = self._received + PIECE_BYTES * len(first)
        self._changed = threading.Condition()
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Event()
        self._intake = intake
        self._done = intake is not None
        self._error: BaseException | None = None
        self.failure: BaseException | None = None
        self._tail = b""
        self._fingerprint = fingerprint
        self._swelling: Swelling | None = None
        self._unfolding = Unfolding(())
        self._read = 0
        self._ended = False

    @property
    def fingerprint(self) -> str | None:
        """What the body was, once all of it was read; None before, or if nobody asked for it."""
        return self._fingerprint.hexdigest() if self._ended and self._fingerprint else None

    def drain(self) -> str | None:
        """Read the rest of the body, for its fingerprint alone. Raises what broke it off."""
        try:
            while self.read_buffer(IN_MEMORY):
                pass
        except OSError as error:
            raise self._failure(error) from error
        return self.fingerprint

    async def feed(self) -> None:
        """Take chunks off the wire until the body ends; runs on the event loop beside the reading thread."""
        if self._intake is not None:
            try:
                await self._room.wait()
            finally:
                self._intake.end()
            return
        try:
            more = True
            while more:
                chunk, more = await _next(self._receive)
                self._received += len(chunk)
                _check_size(self._received, self._limit)
                self._room.clear()
                with self._changed:
                    self._chunks.append(chunk)
                    self._held += len(chunk) + PIECE_BYTES
                    full = self._held >= WINDOW
                    self._changed.notify()
                if full:
                    await self._room.wait()
        except BaseException as error:
            self._error = error
            if not isinstance(error, (HttpError, ClientGoneError)):
                raise
        finally:
            with self._changed:
                self._done = True
                self._changed.notify()

    def reader(self) -> pa.RecordBatchReader:
        """See ArrowBody."""
        self._swelling = Swelling()
        try:
            source = pa.ipc.open_stream(pa.PythonFile(self, mode="r"))
            decimals = with_decimals(source.schema)
            self._unfolding = Unfolding(known_folded_columns(source.schema))
            return pa.RecordBatchReader.from_batches(source.schema, self._batches(source, decimals))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._failure(error) from error

    def _batches(self, source: pa.RecordBatchReader, decimals: tuple[int, ...]) -> Any:
        try:
            for batch in source:
                batch.validate(full=True)  # offsets that lead out of a buffer would end the process
                self._unfolding.take(batch, self._read)
                yield aligned(batch, decimals)
            _check_end(self._tail)
            if self.read_buffer(1):
                raise ValueError(_MORE)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._failure(error) from error

    def _failure(self, error: BaseException) -> BaseException:
        """Why the stream cannot be read: the connection, if that failed, else the data.

        Kept in `failure` too: between Lance's readers and ours an exception becomes a text.
        """
        connection = isinstance(self._error, (HttpError, InvalidInputError))
        self.failure = self._error if connection else not_arrow(error)
        assert self.failure is not None
        return self.failure

    # What pyarrow asks of a Python file.
    closed = False

    def close(self) -> None:
        """Nothing to close: the connection is the server's."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def read(self, count: int) -> bytes:
        return bytes(self.read_buffer(count))

    def read_buffer(self, count: int) -> Any:
        """Exactly `count` bytes, fewer only at the end of the body."""
        buffer = pa.allocate_buffer(count, resizable=True)
        view = memoryview(buffer).cast("B")
        at = 0
        while at < count:
            parts = self._wait(count - at)
            for part in parts:
                view[at : at + len(part)] = part
                at += len(part)
            if not parts:
                taken = self._take_in(view[at:])
                if not taken:
                    break
                at += taken
        self._tail = (self._tail + bytes(view[max(0, at - 8) : at]))[-8:]
        self._ended = at < count
        self._read += at
        if self._fingerprint is not None:
            self._fingerprint.update(view[:at])
        if self._swelling is not None:
            self._swelling.take(view[:at])
        return buffer if at == count else pa.py_buffer(bytes(view[:at]))

    def _take_in(self, view: memoryview) -> int:
        """Bytes right off the connection, none at the end of the body, or where the window has all."""
        intake = self._intake
        if intake is None:
            return 0
        try:
            taken = intake.read_into(view, STALL_SECONDS)
        except OSError:
            self._error = intake.error
            raise
        finally:
            if not intake.left or intake.error:
                self._loop.call_soon_threadsafe(self._room.set)
        return taken

    def _wait(self, most: int) -> list[bytes]:
        with self._changed:
            while not self._chunks and not self._done:
                self._changed.wait()
            if self._error is not None and not self._chunks:
                raise OSError("The upload broke off.")
            return self._taken(most)

    def _taken(self, most: int) -> list[bytes]:
        """Up to `most` bytes off the window; the lock is held."""
        parts: list[bytes] = []
        while self._chunks and most:
            chunk = self._chunks.popleft()
            if len(chunk) > most:
                self._chunks.appendleft(memoryview(chunk)[most:])  # type: ignore[arg-type]  # a view of bytes reads alike
                chunk = memoryview(chunk)[:most]  # type: ignore[assignment]  # as above
            else:
                self._held -= PIECE_BYTES
            most -= len(chunk)
            self._held -= len(chunk)
            parts.append(chunk)
        if self._held < WINDOW // 2 and self._intake is None:
            self._loop.call_soon_threadsafe(self._room.set)
        return parts


def _rows(data: bytes) -> tuple[pa.Table, tuple[int, ...]]:
    """The rows of a whole body, validated, and the positions of its columns with decimals."""
    file = data.startswith(FILE_MAGIC)
    plain = None if file else uncompressed_ipc.look(data)
    if plain is None:
        check_whole(data, file=file)
    if not file:
        _check_end(data[-8:])
    if plain is not None:
        return uncompressed_ipc.read(data, plain)
    source = pa.BufferReader(data)
    table = (pa.ipc.open_file if file else pa.ipc.open_stream)(source).read_all()
    if not file and source.tell() != len(data):
        raise ValueError(_MORE)
    table.validate(full=True)
    check_unfolded(table.to_batches(), known_folded_columns(table.schema), len(data))
    return table, with_decimals(table.schema)


def _check_end(tail: bytes) -> None:
    if tail != END_OF_STREAM:
        raise ValueError("it does not close with the end-of-stream mark, so part of it may be missing")


def not_arrow(error: BaseException) -> InvalidInputError:
    """The error of a body that is no sound Arrow IPC stream."""
    reason = str(error).splitlines()[0].strip().rstrip(".") if str(error) else type(error).__name__
    return InvalidInputError(f"The body is no complete Arrow IPC stream: {reason}.")
