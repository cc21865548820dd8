"""Server processes that start in a moment: forked from one that has imported everything.

Four fifths of a server's start are imports. A test that kills a server every second would otherwise see it down most
of the time. What is forked is a process of its own, with its own sockets, threads and connections.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from pathlib import Path

from tests.services.ports import reserve_port

_SECONDS = 90
_PAUSE_SECONDS = 0.01


class WarmServer:
    """A server with the same face as a `ServerProcess`; what it logs goes to a file."""

    def __init__(self, starter: subprocess.Popen[str], log: Path, root: Path | str, flags: Sequence[str]) -> None:
        self._starter, self._log = starter, log
        self._arguments = ["serve", "--root", str(root), *flags]
        self._port, self._reserved = reserve_port()
        self.start()

    def start(self) -> None:
        """Start, or start again on the same port. Raises RuntimeError if it does not."""
        assert self._starter.stdin is not None and self._starter.stdout is not None
        self._log.write_text("")
        orders = {"arguments": [*self._arguments, "--port", str(self._port)], "log": str(self._log)}
        self._starter.stdin.write(json.dumps(orders) + "\n")
        self._starter.stdin.flush()
        self.pid = int(self._starter.stdout.readline())
        until = time.monotonic() + _SECONDS
        while not (match := re.search(r"on http://(\S+):(\d+)", self._log.read_text())):
            if not self._lives() or time.monotonic() > until:
                self.kill()
                raise RuntimeError(f"The server did not start:\n{self._log.read_text()}")
            time.sleep(_PAUSE_SECONDS)
        self.url = f"http://{match[1]}:{match[2]}"

    def kill(self) -> None:
        """End it without notice."""
        while self._lives():
            with suppress(ProcessLookupError):  # it may go between the look and the kill
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(_PAUSE_SECONDS)

    def wait(self) -> None:
        """Until something else has ended it."""
        until = time.monotonic() + _SECONDS
        while self._lives():
            assert time.monotonic() < until, "the server lives on"
            time.sleep(_PAUSE_SECONDS)

    def _lives(self) -> bool:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        return True


@contextmanager
def warm_servers(
    folder: Path, number: int, root: Path | str, *flags: str, environ: Mapping[str, str] | None = None
) -> Iterator[list[WarmServer]]:
    """Run so many servers on one root."""
    starter = subprocess.Popen(
        [sys.executable, "-m", "tests.services.warm"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environ or {})},
    )
    with ExitStack() as stack:
        stack.callback(starter.communicate)
        stack.callback(starter.kill)
        servers = []
        for i in range(number):
            server = WarmServer(starter, folder / f"server{i}.log", root, flags)
            stack.callback(server.kill)
            servers.append(server)
        yield servers


def _start_servers() -> None:
    """Import what a server needs, then fork one for each line of orders."""
    from tiltyard.bootstrap import register_operations
    from tiltyard.cli import main

    register_operations()
    for name in ("server.serve", "storage.objects", "store.postgres"):
        import_module(f"tiltyard.{name}")
    warnings.filterwarnings("ignore", message="lance is not fork-safe")  # it is, as long as it has done nothing yet
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead need no burial
    for line in sys.stdin:
        orders = json.loads(line)
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDWR), 0)
            os.dup2(0, 1)
            os.dup2(os.open(orders["log"], os.O_WRONLY | os.O_APPEND), 2)
            main(orders["arguments"])
            os._exit(1)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _start_servers()
