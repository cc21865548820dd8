"""What is left of a large body, read by the thread that needs it, right off its connection.

On the way through the event loop each byte is copied four times before Arrow has it, and two threads take turns for it.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable

from lance_namespace.errors import ErrorCode, InvalidInputError

from tiltyard.api.errors import HttpError

LOOK_SECONDS = 0.5
"""How often a thread that waits for bytes looks whether they are still wanted."""

Give = Callable[[int], "Intake | None"]
"""Hands over a connection, given how many bytes of the body were taken off it before; None where that cannot be."""
INTAKE = "tiltyard.intake"
"""The extension of the ASGI scope that has a `Give`."""
Arrived = Callable[[], bytes | None]
"""Takes a body off its connection, all at once, if the whole of it has come; else None, and nothing is taken."""
ARRIVED = "tiltyard.arrived"
"""The extension that has an `Arrived`."""


class ClientGoneError(InvalidInputError):
    """The client left before its body was complete."""


def client_gone() -> ClientGoneError:
    """The error of a connection that ends too early."""
    return ClientGoneError("The connection closed before the body was complete.")


def stalled(seconds: float) -> HttpError:
    """The error of a client that sends nothing for so long."""
    return HttpError(408, ErrorCode.INVALID_INPUT, f"No byte of the body came for {seconds:.0f} s.")


class Intake:
    """The rest of one body. One thread reads it at a time; the event loop, whose connection it is, ends it."""

    def __init__(self, connection: socket.socket, first: bytes, left: int, ended: Callable[[int], None]) -> None:
        """`connection` is a duplicate that nobody else reads. `first` came before, `left` bytes are still to come.

        `ended` is told how many of them were not read.
        """
        self.first = first
        self.left = left
        self.error: Exception | None = None
        self._connection = connection
        self._ended: Callable[[int], None] | None = ended
        self._lock = threading.Lock()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def read_into(self, view: memoryview, patience: float) -> int:
        """How many bytes were put into a view: at least one, none only after the last.

        Raises OSError when the client is gone, or sends nothing for `patience` seconds; `error` says which.
        """
        until = time.monotonic() + patience
        while self.left:
            if count := self._taken(view):
                return count
            if time.monotonic() > until:
                self.error = stalled(patience)
                raise TimeoutError("the client sends nothing")
            self._poll.poll(min(LOOK_SECONDS, patience) * 1000)
        return 0

    def _taken(self, view: memoryview) -> int | None:
        """What is there now; None for nothing yet."""
        with self._lock:
            if self._ended is None:
                raise OSError("nobody wants this body any more")
            try:
                count = self._connection.recv_into(view, min(len(view), self.left))
            except BlockingIOError:
                return None
            except OSError:  # reset, or unreachable: no byte will come, just as after an orderly end
                count = 0
            if not count:
                self.error = client_gone()
                raise ConnectionResetError("the client is gone")
            self.left -= count
            return count

    def end(self) -> None:
        """Give the connection back to the event loop, which calls this; nothing is read after that."""
        with self._lock:
            ended, self._ended = self._ended, None
            self._connection.close()
        if ended is not None:
            ended(self.left)
