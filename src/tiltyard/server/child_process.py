"""The entry of one of a server's processes: send heartbeats, then import, serve, and end when the parent does.

Little is imported here, so that the first heartbeat comes before the imports that take long.
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
from tiltyard.server.flight_address import FlightAddress
from tiltyard.server.supervisor import SERVING, STOP_SECONDS

HEARTBEAT_SECONDS = 1.0
_STARTING = b"starting"


class Heartbeats:
    """Tell the parent that this process lives, and end this process when the parent ends."""

    def __init__(self, parent: Connection) -> None:
        self._parent = parent
        self._lock = threading.Lock()
        self._state = _STARTING

    def start(self) -> None:
        """Send a heartbeat now, and then regularly."""
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def report_serving(self) -> None:
        """Tell the parent that requests are answered from now on."""
        self._state = SERVING
        try:
            self._send()
        except OSError:  # the parent is gone: the thread ends this process
            return

    def _run(self) -> None:
        try:
            while True:
                self._send()
                if self._parent.poll(HEARTBEAT_SECONDS):
                    self._parent.recv_bytes()  # the parent sends nothing: this is its end
        except (EOFError, OSError):
            _stop()

    def _send(self) -> None:
        with self._lock:
            self._parent.send_bytes(self._state)


def _stop() -> None:
    """Stop as the parent would have stopped this process, so that the port is free at once."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(1)


def run(parent: Connection, listener: socket.socket, settings: Settings, flight: FlightAddress | None) -> None:
    """Serve on a listening socket, and SQL at `flight`, until SIGTERM, or until the parent is gone."""
    for number in (signal.SIGTERM, signal.SIGINT):  # the server takes them over once it runs
        signal.signal(number, lambda *_: os._exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closed terminal's goes to the parent as well, which decides
    heartbeat = Heartbeats(parent)
    heartbeat.start()
    import_lazily()
    from tiltyard.server.process import serve_shared_socket

    serve_shared_socket(settings, listener, flight, heartbeat.report_serving)
