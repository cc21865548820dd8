"""Receive a file behind a form in the body of one request: onto the disk, within bounds, never as a whole in memory."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lance_namespace.errors import ErrorCode, ServiceUnavailableError
from starlette.requests import ClientDisconnect

from tiltyard.api.errors import HttpError
from tiltyard.console.page_calls import ClientLeftError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from concurrent.futures import Executor

    from starlette.requests import Request

MAX_FILE_BYTES = 4 << 30
"""Bytes of a file that a browser sends; `max_upload_bytes`, if it is set, may be less."""
MAX_SAMPLE_BYTES = 40 << 20
"""Bytes of the beginning and the end of a file that are sent to look at it."""
MAX_FILES = 8
"""Files that one process receives and reads at once."""
MAX_FILES_EACH = 3
"""Those of one principal."""
STALL_SECONDS = 60.0
"""How long a browser may send nothing."""
MIN_FREE_BYTES = 512 << 20
"""Bytes that the disk for temporary files keeps."""
FORM_BYTES = "x-form-bytes"
"""The header that says how many bytes of the body are the form; the file is behind them."""
_PREFIX = "tiltyard-file-"
_STALE_SECONDS = 24 * 3600
_WRITE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A file on this machine's disk, in a folder of its own, until it is closed."""

    path: Path
    size: int
    close: Callable[[], None]


class FileReceiver:
    """Receives the files of one process. Its methods run on the event loop, but for `ReceivedFile.close`."""

    def __init__(self, pool: Executor) -> None:
        """`pool` has the threads that write to the disk."""
        self._pool = pool
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()

    def reserve(self, name: str) -> FilePlace:
        """Return the place for a file of a principal, which is to be closed. Raises HttpError 429."""
        with self._lock:
            if self._held[name] >= MAX_FILES_EACH or self._held.total() >= MAX_FILES:
                message = "Other files are being read already: wait for one of them, then send this again."
                raise HttpError(429, ErrorCode.THROTTLING, message, ((b"retry-after", b"5"),))
            self._held[name] += 1
        return FilePlace(self._pool, lambda: self._release(name))

    def _release(self, name: str) -> None:
        with self._lock:
            self._held[name] -= 1


class FilePlace:
    """The place for one file."""

    def __init__(self, pool: Executor, release: Callable[[], None]) -> None:
        self._pool = pool
        self._release = release
        self._folder: Path | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    async def receive(self, body: FileBody, name: str) -> ReceivedFile:
        """Save the file of a body under a name of ours.

        Raises HttpError 413, ClientLeftError, ServiceUnavailableError where the disk has too little room.
        """
        run = asyncio.get_running_loop().run_in_executor
        await run(self._pool, self._make_folder, body.file_bytes)
        assert self._folder is not None
        path = self._folder / name
        file = await run(self._pool, path.open, "xb")
        try:
            size = 0
            async for part in body.parts():
                await run(self._pool, file.write, part)
                size += len(part)
        except OSError as error:
            raise ServiceUnavailableError(f"The file cannot be kept: {error.strerror or error}.") from error
        finally:
            await run(self._pool, file.close)
        return ReceivedFile(path, size, self.close)

    def _make_folder(self, size: int) -> None:
        _remove_stale()
        if shutil.disk_usage(tempfile.gettempdir()).free < size + MIN_FREE_BYTES:
            raise ServiceUnavailableError(
                "The server's disk for temporary files has too little room for this file: `tiltyard import` needs none "
                "there."
            )
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))

    def close(self) -> None:
        """Delete the file, and let another one have the place. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._release()


def _remove_stale() -> None:
    """Remove files that a server left which was killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's, or removed by another process just now
            if folder.stat().st_mtime < time.time() - _STALE_SECONDS:
                shutil.rmtree(folder)


class FileBody:
    """The body of a request: a form, and a file behind it."""

    def __init__(self, request: Request, most_form_bytes: int, most_file_bytes: int) -> None:
        """Raises HttpError 400, 411, 413."""
        length = _header_number(request, "content-length")
        self._form_bytes = _header_number(request, FORM_BYTES)
        self.file_bytes = length - self._form_bytes
        if self.file_bytes < 0:
            raise HttpError(400, ErrorCode.INVALID_INPUT, f"The header {FORM_BYTES} says more than the body has.")
        if self._form_bytes > most_form_bytes or self.file_bytes > most_file_bytes:
            raise HttpError(
                413,
                ErrorCode.INVALID_INPUT,
                f"The file has {self.file_bytes} bytes, and {most_file_bytes} can be sent here: "
                "`tiltyard import` brings in larger ones.",
            )
        self._chunks = _chunks(request)
        self._ahead = b""

    async def form(self) -> bytes:
        """Return the form. Raises HttpError 408, ClientLeftError."""
        data = bytearray()
        while len(data) < self._form_bytes and (chunk := await anext(self._chunks, None)) is not None:
            data += chunk
        self._ahead = bytes(data[self._form_bytes :])
        return bytes(data[: self._form_bytes])

    async def parts(self) -> AsyncIterator[bytes]:
        """Yield the file. Raises HttpError 408, ClientLeftError."""
        data = bytearray(self._ahead)
        async for chunk in self._chunks:
            data += chunk
            if len(data) >= _WRITE_BYTES:
                yield bytes(data)
                data.clear()
        if data:
            yield bytes(data)


async def _chunks(request: Request) -> AsyncIterator[bytes]:
    """Yield the body as it comes. Raises HttpError 408 for a browser that stalls, ClientLeftError."""
    stream = request.stream()
    while True:
        try:
            chunk = await asyncio.wait_for(anext(stream, None), STALL_SECONDS)
        except TimeoutError:
            message = f"Nothing of the file came for {STALL_SECONDS:.0f} s: send it again."
            raise HttpError(408, ErrorCode.INVALID_INPUT, message) from None
        except ClientDisconnect:
            raise ClientLeftError from None
        if chunk is None:
            return
        if chunk:
            yield chunk


def _header_number(request: Request, name: str) -> int:
    text = request.headers.get(name, "")
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise HttpError(411, ErrorCode.INVALID_INPUT, f"The header {name} says how many bytes there are: send it.")
    return int(text)
