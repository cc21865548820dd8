"""One of several processes of a server: say that it lives, then import, serve, and end when its parent does.

Little is imported here, so that the first beat comes before all that takes long.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from multiprocessing.connection import Connection

from tiltyard.config import Settings
from tiltyard.runtime.lazy_imports import import_lazily
from tiltyard.server.supervisor import SERVING, STOP_SECONDS

BEAT_SECONDS = 1.0
_STARTING = b"starting"


class Beats:
    """Tells the parent that this process lives, and hears of the parent's end."""

    def __init__(self, parent: Connection) -> None:
        self._parent = parent
        self._lock = threading.Lock()
        self._beat = _STARTING

    def start(self) -> None:
        """Send a beat now, and from now on."""
        threading.Thread(target=self._run, name="beats", daemon=True).start()

    def serving(self) -> None:
        """Say that requests are answered from now on."""
        self._beat = SERVING
        try:
            self._send()
        except OSError:  # the parent is gone: the thread ends this process
            return

    def _run(self) -> None:
        try:
            while True:
                self._send()
                if self._parent.poll(BEAT_SECONDS):
                    self._parent.recv_bytes()  # it sends nothing: this is its end
        except (EOFError, OSError):
            _end()

    def _send(self) -> None:
        with self._lock:
            self._parent.send_bytes(self._beat)


def _end() -> None:
    """Stop as the parent would have told this process to; the port is free at once."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(1)


def run(parent: Connection, listener: socket.socket, settings: Settings) -> None:
    """Serve on a listening socket until SIGTERM, or until the parent is gone."""
    for number in (signal.SIGTERM, signal.SIGINT):  # the server takes them over once it runs
        signal.signal(number, lambda *_: os._exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closed terminal's goes to the parent as well, which decides
    beats = Beats(parent)
    beats.start()
    import_lazily()
    from tiltyard.server.serve import serve_beside_others

    serve_beside_others(settings, listener, beats.serving)
