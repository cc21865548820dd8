"""Serve files of tables to Lance in this process: an endpoint of S3's protocol on loopback, for reads alone.

Python cannot give Lance 14 an object store of its own (`_ObjectStoreProvider` takes one from a Rust library built with
the very same sources), but it can name the endpoint of one. Requests show a secret of this process in a header, which
no other one knows: they are signed by nobody, and carry no credential of the store.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from hmac import compare_digest
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote
from urllib.request import getproxies_environment, proxy_bypass

import uvloop
from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

from tiltyard.runtime.pool import start_thread
from tiltyard.storage.disk_cache.range_reader import Kind, RangeError, RangeFile, RangeReader
from tiltyard.storage.errors import is_throttled

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from tiltyard.storage.disk_cache.blocks import Content

_log = logging.getLogger(__name__)

HOST = "127.0.0.1"
MAX_CONNECTIONS = 512
MAX_HEAD_BYTES = 16 << 10
MAX_WINDOW_BYTES = 16 << 20
"""Bytes of a response that are in memory at once."""
MAX_LARGE_RESPONSES = 8
"""Responses of more than `LARGE_BYTES` that are sent at once."""
LARGE_BYTES = 1 << 20
FIRST_REQUEST_SECONDS = 5.0
"""How long a connection may be open without a request that shows the secret."""
_START_SECONDS = 10.0
_SECRET_HEADER = "x-tiltyard-secret"  # noqa: S105  # a name
_END = b"\r\n\r\n"
_REFUSALS = {
    400: ("400 Bad Request", "InvalidRequest"),
    403: ("403 Forbidden", "AccessDenied"),
    404: ("404 Not Found", "NoSuchKey"),
    405: ("405 Method Not Allowed", "MethodNotAllowed"),
    416: ("416 Range Not Satisfiable", "InvalidRange"),
    502: ("502 Bad Gateway", "InternalError"),
    503: ("503 Slow Down", "SlowDown"),
}


class NoServerError(Exception):
    """Nothing can be served; the message says why."""


class _Request(NamedTuple):
    """What is asked for of a file: all of it without a range, its last bytes where `start` is negative."""

    is_head: bool
    location: str
    start: int | None
    end: int | None


def status_of(error: BaseException) -> int:
    """Return the status of a response for an error of the store: the one that the store itself gave, if it gave one."""
    if isinstance(error, RangeError):
        return 416
    if isinstance(error, FileNotFoundError):
        return 404
    if isinstance(error, PermissionError | PermissionDeniedError | UnauthenticatedError):
        return 403
    return 503 if is_throttled(str(error)) else 502


class RangeServer:
    """An event loop in a thread, with the reader of ranges and the endpoint. Its methods are for other threads."""

    def __init__(self, make_reader: Callable[[asyncio.AbstractEventLoop], RangeReader]) -> None:
        """Start to serve. Raises NoServerError."""
        if getproxies_environment().keys() & {"http", "all"} and not proxy_bypass(HOST):
            raise NoServerError(f"requests to {HOST} would go to the environment's HTTP proxy: name it in NO_PROXY")
        self._secret = secrets.token_hex(32)
        self._loop = uvloop.new_event_loop()
        self.reader = make_reader(self._loop)
        self._connections: set[_Connection] = set()
        self._port = 0
        self._stopped = start_thread("ranges", self._run)
        try:
            asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_START_SECONDS)
        except (OSError, TimeoutError) as error:
            self.close()
            raise NoServerError(f"no socket of {HOST} can be had: {error}") from error

    @property
    def options(self) -> dict[str, str]:
        """Lance's storage options for reads through this server: they are for this process alone."""
        return {
            "aws_endpoint": f"http://{HOST}:{self._port}",
            "aws_region": "us-east-1",
            "aws_virtual_hosted_style_request": "false",
            "aws_skip_signature": "true",
            "allow_http": "true",
            f"headers.{_SECRET_HEADER}": self._secret,
            "client_max_retries": "0",  # the reader's own client tries again
            "lance_aimd_max_retries": "0",
            "lance_aimd_initial_rate": "1000000",
            "lance_aimd_max_rate": "1000000",
        }

    @property
    def is_serving(self) -> bool:
        """Whether the thread is there."""
        return not self._stopped.done()

    def call(self, work: Callable[..., object], *arguments: object) -> None:
        """Call a function in the loop, soon, unless the server is closed."""
        try:
            self._loop.call_soon_threadsafe(work, *arguments)
        except RuntimeError:
            _log.debug("The ranges are closed.")

    def run(self, work: Coroutine[Any, Any, object]) -> object:
        """Run a coroutine in the loop, and return its result. Raises what it raises."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Stop; what is being read ends with an error."""
        self.call(self._loop.stop)

    def is_secret(self, shown: bytes) -> bool:
        """Whether a request shows the secret."""
        return compare_digest(shown, self._secret.encode())

    def add(self, connection: _Connection) -> bool:
        """Count a connection; return whether there is room for it."""
        if len(self._connections) >= MAX_CONNECTIONS:
            return False
        self._connections.add(connection)
        return True

    def remove(self, connection: _Connection) -> None:
        """Count a connection no more."""
        self._connections.discard(connection)

    async def _listen(self) -> None:
        large = asyncio.Semaphore(MAX_LARGE_RESPONSES)
        listening = socket.create_server((HOST, 0))
        self._port = listening.getsockname()[1]
        await self._loop.create_server(lambda: _Connection(self, self._loop, large), sock=listening)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self.reader.close())
        finally:
            self._loop.close()


class _Connection(asyncio.Protocol):
    """A connection of Lance's, with one request after the other."""

    def __init__(self, server: RangeServer, loop: asyncio.AbstractEventLoop, large: asyncio.Semaphore) -> None:
        self._server = server
        self._loop = loop
        self._large = large
        self._received = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._is_known = False
        self._may_write = asyncio.Event()
        self._may_write.set()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it is one of a socket
        self._transport = transport
        if not self._server.add(self):
            transport.abort()
            return
        self._timer = self._loop.call_later(FIRST_REQUEST_SECONDS, transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.remove(self)
        self._may_write.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._continue()

    def _continue(self) -> None:
        """Begin the next request that is there as a whole."""
        while self._task is None and not self._transport.is_closing():
            at = self._received.find(_END)
            if at > MAX_HEAD_BYTES or (at < 0 and len(self._received) > MAX_HEAD_BYTES):
                self._refuse(400, is_last=True)
                return
            if at < 0:
                return
            head = bytes(self._received[:at])
            del self._received[: at + len(_END)]
            self._begin(head)

    def _begin(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
        if not self._server.is_secret(headers.get(_SECRET_HEADER.encode(), b"")):
            self._refuse(403, is_last=True)
            return
        if not self._is_known:
            self._is_known = True
            self._timer.cancel()
        method, _, rest = first.partition(b" ")
        target = rest.partition(b" ")[0].decode("latin-1")
        if method not in (b"GET", b"HEAD") or headers.get(b"content-length", b"0") != b"0" or "?" in target:
            self._refuse(405, is_last=True)
            return
        location = f"s3:/{unquote(target)}"
        try:
            start, end = _range_of(headers.get(b"range", b"").decode("latin-1"))
        except ValueError:
            self._refuse(400, is_head=method == b"HEAD")
            return
        file = self._server.reader.find(location)
        if file is None:
            self._refuse(403, is_head=method == b"HEAD")
            return
        request = _Request(method == b"HEAD", location, start, end)
        if not self._answer_at_once(file, request):
            self._task = self._loop.create_task(self._answer(file, request))
            self._task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and task.exception() is not None:
            _log.error("A range could not be served.", exc_info=task.exception())
            self._transport.abort()
        self._continue()

    def _answer_at_once(self, file: RangeFile, request: _Request) -> bool:
        """Respond where all that is asked for is on disk, and little; return whether it is."""
        size = file.blocks.size
        if size is None or file.kind is Kind.MUTABLE or request.is_head:
            return False
        if request.start is None or request.end is None or not 0 <= request.start < min(request.end, size):
            return False
        end = min(request.end, size)
        if end - request.start > LARGE_BYTES:
            return False
        pieces = self._server.reader.read_kept(file, request.start, end)
        if pieces is None:
            return False
        self._send_head(request, request.start, end, size, file.blocks.e_tag)
        self._transport.writelines(pieces)
        return True

    async def _answer(self, file: RangeFile, request: _Request) -> None:
        try:
            await self._serve(file, request)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  # whatever the store says is its client's
            self._refuse(status_of(error), is_head=request.is_head)

    async def _serve(self, file: RangeFile, request: _Request) -> None:
        """Respond from disk and from the store. Raises what reading raises, as long as nothing was sent."""
        reader = self._server.reader
        start, end = request.start, request.end
        first: list[Content] | None = None
        if start is not None and end is not None and start >= 0 and not request.is_head and end - start <= LARGE_BYTES:
            first = await reader.read(file, start, end)  # which tells the size, too
            end = start + sum(map(len, first))
        stat = await reader.stat(file)
        if start is None:
            start, end = 0, stat.size
        elif start < 0:
            start, end = max(0, stat.size + start), stat.size
        end = stat.size if end is None else min(end, stat.size)
        if start >= end and (request.start is not None or stat.size):
            raise RangeError
        if request.is_head:
            self._send_head(request, 0, stat.size, stat.size, stat.e_tag)
        elif first is not None:
            self._send_head(request, start, end, stat.size, stat.e_tag)
            self._transport.writelines(first)
        else:
            async with self._large:
                await self._send_large(file, request, start, end, stat.size, stat.e_tag)

    async def _send_large(
        self, file: RangeFile, request: _Request, start: int, end: int, size: int, e_tag: str | None
    ) -> None:
        """Send a range in windows. Raises what reading the first one raises; after that the connection ends."""
        at = start
        while at < end or at == start:
            try:
                window = await self._server.reader.read(file, at, min(end, at + MAX_WINDOW_BYTES))
                length = sum(map(len, window))
                if at < end and not length:
                    raise RangeError
            except Exception:
                if at == start:
                    raise
                self._transport.abort()  # its length was promised
                return
            if at == start:
                self._send_head(request, start, end, size, e_tag)
            self._transport.writelines(window)
            at += length
            if at >= end:
                return
            await self._may_write.wait()

    def _send_head(self, request: _Request, start: int, end: int, size: int, e_tag: str | None) -> None:
        is_part = request.start is not None
        lines = ["HTTP/1.1 206 Partial Content" if is_part else "HTTP/1.1 200 OK"]
        if is_part:
            lines.append(f"content-range: bytes {start}-{end - 1}/{size}")
        if e_tag:
            lines.append(f"etag: {e_tag}")
        lines += [f"content-length: {end - start}", "accept-ranges: bytes", "\r\n"]
        self._transport.write("\r\n".join(lines).encode("latin-1"))

    def _refuse(self, status: int, *, is_last: bool = False, is_head: bool = False) -> None:
        reason, code = _REFUSALS[status]
        body = f"<Error><Code>{code}</Code></Error>"
        lines = [f"HTTP/1.1 {reason}", f"content-length: {len(body)}", "content-type: application/xml"]
        if status == 503:
            lines.append("retry-after: 1")
        if is_last:
            lines.append("connection: close")
        self._transport.write("\r\n".join([*lines, "", "" if is_head else body]).encode())
        if is_last:
            self._transport.close()


def _range_of(header: str) -> tuple[int | None, int | None]:
    """Return where a range begins and ends (None: with the file); a negative begin counts from the end.

    Raises ValueError.
    """
    if not header:
        return None, None
    unit, _, text = header.partition("=")
    first, dash, last = text.partition("-")
    if unit != "bytes" or not dash or not (first or last) or not (first + last).isdecimal():
        raise ValueError(header)
    if not first:
        return -int(last), None
    return int(first), int(last) + 1 if last else None
