"""A wire that can be cut: a TCP proxy in front of any server."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    """Relays connections to a server; `url` is where to reach it instead.

    `cut` ends all connections, and lets none in; `hold` keeps them, and lets no byte through.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        assert parts.hostname and parts.port
        self._target = (parts.hostname, parts.port)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._whole = True
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
        """Relay again."""
        with self._lock:
            self._whole = True
        self._flowing.set()

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
        back = threading.Thread(target=_pump, args=(far, near, self._flowing), daemon=True)
        back.start()
        _pump(near, far, self._flowing)
        back.join()
        with self._lock:
            self._open -= {near, far}
        near.close()
        far.close()


def _pump(source: socket.socket, sink: socket.socket, flowing: threading.Event) -> None:
    """Forward bytes, while they may flow, until one side ends; then end the other."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            flowing.wait()
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
