"""Processes of the command `tiltyard` that start in a moment: forked from one that has imported everything.

Four fifths of a server's start are imports. What is forked is a process of its own, with its own environment, sockets,
threads and connections; only its command line in /proc is its starter's.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TextIO

HOME = Path(__file__).resolve().parents[2]
MODULES = ("tiltyard.__main__", "tiltyard.server.serve", "tiltyard.storage.objects", "tiltyard.store.postgres")
LARGEST_ORDER = 1 << 18


class ForkedProcess:
    """A running `tiltyard`, with the part of `subprocess.Popen`'s interface that tests of servers use."""

    def __init__(
        self, arguments: Sequence[str], environ: Mapping[str, str], folder: Path, descriptors: int | None = None
    ) -> None:
        """Start it in a folder, with these environment variables alone; at most so many `descriptors` are open."""
        self.returncode: int | None = None
        self._lock = threading.Lock()
        stdout, stderr, self._status = os.pipe(), os.pipe(), os.pipe()
        order = {
            "arguments": list(arguments),
            "environ": dict(environ),
            "folder": str(folder),
            "descriptors": descriptors,
        }
        self.pid = _starter().start(json.dumps(order).encode(), [stdout[1], stderr[1], self._status[1]])
        for written_by_the_process in (stdout[1], stderr[1], self._status[1]):
            os.close(written_by_the_process)
        self.stdout: TextIO = os.fdopen(stdout[0])
        self.stderr: TextIO = os.fdopen(stderr[0])

    def poll(self) -> int | None:
        """Return the exit status, as `Popen` has it; None while the process runs."""
        return self._read_status(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit status. Raises subprocess.TimeoutExpired."""
        if (status := self._read_status(timeout)) is None:
            raise subprocess.TimeoutExpired("tiltyard", timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _read_status(self, timeout: float | None) -> int | None:
        poller = select.poll()
        with self._lock:
            if self.returncode is not None:
                return self.returncode
            poller.register(self._status[0], select.POLLIN)
        if not poller.poll(None if timeout is None else timeout * 1000):
            return None
        with self._lock:
            if self.returncode is None:
                status = os.read(self._status[0], 16)
                assert status, "the starter of servers has ended"
                os.close(self._status[0])
                self.returncode = int(status)
            return self.returncode


class _Starter:
    """The process that forks the others; it ends when this one does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders, orders = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with orders:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.services.forked_process", str(orders.fileno())],
                stdin=subprocess.DEVNULL,
                cwd=HOME,
                pass_fds=[orders.fileno()],
            )

    def start(self, order: bytes, descriptors: list[int]) -> int:
        """Start a process that writes to these descriptors; return its id. The last one gets its exit status."""
        with self._lock:
            socket.send_fds(self._orders, [order], descriptors)
            process_id = self._orders.recv(16)
        assert process_id, "the starter of servers has ended"
        return int(process_id)


@cache
def _starter() -> _Starter:
    return _Starter()


def _serve_orders(orders: socket.socket) -> list[str]:
    """Fork a process for each order, and report how each ends. Returns in the forked process, with its arguments."""
    statuses: dict[int, int] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    while True:
        ready, _, _ = select.select([orders, woken], [], [])
        if woken in ready:
            os.read(woken, 1024)
            _report_ended(statuses)
        if orders not in ready:
            continue
        text, descriptors, _, _ = socket.recv_fds(orders, LARGEST_ORDER, 3)
        if not text:
            os._exit(0)
        order = json.loads(text)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="lance is not fork-safe")  # it is, as long as it has done nothing
            process_id = os.fork()
        if not process_id:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number, descriptor in enumerate(descriptors[:2], start=1):
                os.dup2(descriptor, number)
            for descriptor in (*descriptors, *statuses.values(), woken, wake, orders.detach()):
                os.close(descriptor)
            _become(order)
            return list(order["arguments"])
        for descriptor in descriptors[:2]:
            os.close(descriptor)
        statuses[process_id] = descriptors[2]
        orders.send(str(process_id).encode())


def _report_ended(statuses: dict[int, int]) -> None:
    while statuses:
        process_id, status = os.waitpid(-1, os.WNOHANG)
        if not process_id:
            return
        with suppress(BrokenPipeError):  # nobody waits for it
            os.write(statuses[process_id], str(os.waitstatus_to_exitcode(status)).encode())
        os.close(statuses.pop(process_id))


def _become(order: Mapping[str, object]) -> None:
    """Give this process the environment, the folder and the limit of an order."""
    from tiltyard.runtime import failpoints

    environ, descriptors = order["environ"], order["descriptors"]
    assert isinstance(environ, dict)
    os.environ.clear()
    os.environ.update(environ)
    os.chdir(str(order["folder"]))
    failpoints._faults = failpoints.parse(os.environ.get(failpoints.VARIABLE, ""))  # read when it was imported
    if isinstance(descriptors, int):
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))


def _run() -> None:
    from tiltyard.bootstrap import register_operations

    register_operations()
    for name in MODULES:
        importlib.import_module(name)
    arguments = _serve_orders(socket.socket(fileno=int(sys.argv[1])))
    main = sys.modules["__main__"] = sys.modules["tiltyard.__main__"]
    sys.argv = [str(main.__file__), *arguments]
    main.main()


if __name__ == "__main__":
    _run()
