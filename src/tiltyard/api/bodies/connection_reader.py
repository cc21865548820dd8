"""Let a worker thread read the rest of a large body straight from its connection.

Through the event loop, each byte is copied four times before Arrow has it, and two threads alternate for it.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable

from lance_namespace.errors import ErrorCode, InvalidInputError

from tiltyard.api.errors import HttpError

POLL_SECONDS = 0.5
"""How often a thread that waits for bytes checks whether the reader was closed."""

HandOver = Callable[[int], "BodyReader | None"]
"""Hands over a connection, given how many bytes of the body were received before; None where that is impossible."""
HAND_OVER = "tiltyard.hand_over"
"""The extension of the ASGI scope that has a `HandOver`."""
TakeCompleteBody = Callable[[], bytes | None]
"""Takes a whole body off its connection if all of it has come; else returns None, and takes nothing."""
COMPLETE_BODY = "tiltyard.complete_body"
"""The extension that has a `TakeCompleteBody`."""


class ClientGoneError(InvalidInputError):
    """The client left before its body was complete."""


def client_gone() -> ClientGoneError:
    """Return the error of a connection that ends too early."""
    return ClientGoneError("The connection closed before the body was complete.")


def stalled(seconds: float) -> HttpError:
    """Return the error of a client that sent nothing for so long."""
    return HttpError(408, ErrorCode.INVALID_INPUT, f"No byte of the body arrived for {seconds:.0f} s.")


class BodyReader:
    """Reads the rest of one body, by one thread at a time; the event loop, which owns the connection, closes it."""

    def __init__(
        self, connection: socket.socket, first: bytes, remaining: int, on_close: Callable[[int], None]
    ) -> None:
        """`connection` is a duplicate that is read here alone. `first` came before, `remaining` bytes are to come.

        `on_close` gets the number of bytes that were not read.
        """
        self.first = first
        self.remaining = remaining
        self.error: Exception | None = None
        self._connection = connection
        self._on_close: Callable[[int], None] | None = on_close
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def read_into(self, view: memoryview, patience: float) -> int:
        """Read at least one byte into a view; return how many, 0 only after the last one.

        Raises OSError when the client is gone, or sends nothing for `patience` seconds; `error` says which.
        """
        deadline = time.monotonic() + patience
        while self.remaining:
            if count := self._receive_into(view):
                return count
            if time.monotonic() > deadline:
                self.error = stalled(patience)
                raise TimeoutError("the client sends nothing")
            self._poll.poll(min(POLL_SECONDS, patience) * 1000)
        return 0

    def _receive_into(self, view: memoryview) -> int | None:
        """Read what is there now; return how many bytes, None for none yet. Raises OSError."""
        with self._lock:
            if self._on_close is None:
                raise OSError("the body reader is closed")
            try:
                count = self._connection.recv_into(view, min(len(view), self.remaining))
            except BlockingIOError:
                return None
            except OSError:  # reset, or unreachable: no byte will come, just as after an orderly end
                count = 0
            if not count:
                self.error = client_gone()
                raise ConnectionResetError("the client is gone")
            self.remaining -= count
            return count

    def close(self) -> None:
        """Give the connection back to the event loop, which calls this; nothing is read after that."""
        with self._lock:
            on_close, self._on_close = self._on_close, None
            self._connection.close()
        if on_close is not None:
            on_close(self.remaining)
