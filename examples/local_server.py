"""`tiltyard serve` in a process of its own, for as long as a `with` block lasts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

START_SECONDS = 120
STOP_SECONDS = 60


@contextmanager
def local_server(*options: str, environ: Mapping[str, str] | None = None) -> Iterator[str]:
    """Serve a new, empty folder on a free port; gives the URL. Server and folder are gone at the end.

    `options` are further ones of `tiltyard serve`, `environ` has further variables of its environment.

    Raises RuntimeError with the server's own words if it does not start, or does not stop cleanly.
    """
    with TemporaryDirectory(prefix="tiltyard-demo-") as folder:
        log, port = Path(folder) / "server.log", free_port()
        command = [sys.executable, "-m", "tiltyard", "serve", "--root", f"{folder}/tables", "--port", str(port)]
        command += options
        with log.open("wb") as output:
            server = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **(environ or {})})
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_ready(f"{url}/health/ready", server, log)
            yield url
        finally:
            server.terminate()
            status = server.wait(STOP_SECONDS)
        if status != 0:
            raise RuntimeError(f"The server stopped with status {status}:\n{log.read_text()}")


def free_port() -> int:
    """Return a port of this host that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_ready(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Ask until the server says that its database and storage answer."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310  # the address is made here
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise RuntimeError(f"The server did not start:\n{log.read_text()}")
