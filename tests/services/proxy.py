"""A wire that can be cut: a TCP proxy in front of any server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    """Relays connections to a server; `url` is where to reach it instead.

    `cut` ends all connections, and lets none in; `hold` keeps them, and lets no byte through. `lose` ends a connection
    in place of an answer: the server has done what its client cannot know of. `lost` is how many answers that were.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        assert parts.hostname and parts.port
        self._target = (parts.hostname, parts.port)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._whole = True
        self._losses: list[bytes] = []
        self.lost = 0
        self._flowing = threading.Event()
        self._flowing.set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.url = f"{parts.scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End every connection at once, and those to come as soon as they do."""
        with self._lock:
            self._whole = False
            ends = list(self._open)
        for end in ends:
            _close(end)

    def hold(self) -> None:
        """Keep connections, and let no byte through, as a network does that loses packets."""
        self._flowing.clear()

    def mend(self) -> None:
        """Relay again, all."""
        with self._lock:
            self._whole = True
            self._losses.clear()
        self._flowing.set()

    def lose(self, request: bytes) -> None:
        """End the connection of the next request that begins so, once the server answers it."""
        with self._lock:
            self._losses.append(request)

    def close(self) -> None:
        """End for good."""
        self.cut()
        self._flowing.set()
        _close(self._listener)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(near,), daemon=True).start()

    def _relay(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._target, timeout=10)
        except OSError:
            _close(near)
            return
        far.settimeout(None)
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            whole = self._whole
            self._open |= {near, far}
        if not whole:
            _close(near)
            _close(far)
        requests = _Requests()
        back = threading.Thread(target=self._pump, args=(far, near, partial(self._is_answered, requests)), daemon=True)
        back.start()
        self._pump(near, far, requests.note)
        back.join()
        with self._lock:
            self._open -= {near, far}
        near.close()
        far.close()

    def _is_answered(self, requests: _Requests, _: bytes) -> bool:
        """Return whether this answer reaches the client."""
        with self._lock:
            loss = next((loss for loss in self._losses if requests.latest.startswith(loss)), None)
            requests.latest = b""
            if loss is None:
                return True
            self._losses.remove(loss)
            self.lost += 1
            return False

    def _pump(self, source: socket.socket, sink: socket.socket, passes: Callable[[bytes], bool]) -> None:
        """Forward bytes, while they may flow and pass, until one side ends; then end the other."""
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if not passes(data):
                    _close(source)
                    break
                self._flowing.wait()
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class _Requests:
    """The request that a connection is about: what its client has sent since the last answer."""

    def __init__(self) -> None:
        self.latest = b""

    def note(self, data: bytes) -> bool:
        """Note what the client sends; all of it is relayed."""
        self.latest = self.latest or data[:64]
        return True


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
