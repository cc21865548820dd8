"""Processes that start in a moment: forked from one that has imported everything.

Four fifths of a server's start are imports, and nearly all of the start of one of Spark's Python workers. What is
forked is a process of its own, with its own environment, sockets, threads and connections, that runs a module as
`python -m` does, or code as `python -c`; only its command line in /proc is its starter's.

    python -m tests.services.forked_process SOCKET MODULE…

is a starter: with its first order it imports the modules, it takes orders at a Unix socket, and ends with its standard
input. The connection of an order gets the id of the process, and later its exit status. The processes of pytest-xdist
share the starters of the one that schedules.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import resource
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

HOME = Path(__file__).resolve().parents[2]
SERVER_MODULES = ("tiltyard.server.serve", "tiltyard.storage.objects", "tiltyard.store.postgres")
WORKER_MODULES = (
    *("pyarrow.compute", "lance", "lance_namespace", "pandas", "pyspark.worker"),
    "tiltyard.pipeline.datasource",
    *(
        f"pyspark.sql.worker.{name}"
        for name in (
            *("lookup_data_sources", "create_data_source", "plan_data_source_read"),
            *("write_into_data_source", "commit_data_source_write", "python_streaming_sink_runner"),
        )
    ),
)
STARTERS: Mapping[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "servers": (SERVER_MODULES, {}),
    "workers": (WORKER_MODULES, {"PYTHONHASHSEED": "0"}),  # as Spark sets it
    "sweeps": ((*SERVER_MODULES, "tests.faults.sweep.operations", "pyspark.sql"), {}),
}
"""What each starter imports, and the variables that it has besides ours."""
SHARED_FOLDER = "TEST_STARTERS"  # no setting of Tiltyard, which has a list of those
"""The variable that names the folder of the sockets of starters which several processes share."""
MAX_ORDER_BYTES = 1 << 18

_WORKER_SCRIPT = """#!{python} -IS
import json, os, signal, socket, sys
arguments = [argument for argument in sys.argv[1:] if argument != "-u"]
if arguments[:1] not in (["-m"], ["-c"]):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
starter = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
starter.connect({address!r})
what = "module" if arguments[0] == "-m" else "code"
order = {{what: arguments[1], "arguments": arguments[2:], "environ": dict(os.environ), "folder": os.getcwd()}}
socket.send_fds(starter, [json.dumps(order).encode()], [0, 1, 2])
process_id = int(starter.recv(16))
signal.signal(signal.SIGTERM, lambda number, _: os.kill(process_id, number))
signal.signal(signal.SIGINT, {interrupt})
sys.exit(int(starter.recv(16) or 1) & 255)
"""


class ForkedProcess:
    """A running `tiltyard`, or another module; with the part of `subprocess.Popen`'s interface that tests use."""

    def __init__(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        folder: Path,
        descriptors: int | None = None,
        module: str = "tiltyard",
        starter: str = "servers",
    ) -> None:
        """Start it in a folder, with these environment variables alone; at most so many `descriptors` are open."""
        self._module = module
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self._starter = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._starter.connect(str(_starter(starter)))
        order = {
            "module": module,
            "arguments": list(arguments),
            "environ": dict(environ),
            "folder": str(folder),
            "descriptors": descriptors,
        }
        (stdout, its_stdout), (stderr, its_stderr), stdin = os.pipe(), os.pipe(), os.open(os.devnull, os.O_RDONLY)
        its_own = [stdin, its_stdout, its_stderr]
        socket.send_fds(self._starter, [json.dumps(order).encode()], its_own)
        for descriptor in its_own:
            os.close(descriptor)
        self.pid = int(self._starter.recv(16))
        self.stdout: TextIO = os.fdopen(stdout)
        self.stderr: TextIO = os.fdopen(stderr)

    def poll(self) -> int | None:
        """Return the exit status, as `Popen` has it; None while the process runs."""
        return self._receive_status(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit status. Raises subprocess.TimeoutExpired."""
        if (status := self._receive_status(timeout)) is None:
            raise subprocess.TimeoutExpired(self._module, timeout or 0)
        return status

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Read what it writes, to its end; return stdout and stderr. Raises subprocess.TimeoutExpired."""
        with ThreadPoolExecutor(2) as readers:
            stdout, stderr = readers.submit(self.stdout.read), readers.submit(self.stderr.read)
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            return stdout.result(), stderr.result()

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _receive_status(self, timeout: float | None) -> int | None:
        with self._lock:
            if self.returncode is not None:
                return self.returncode
            poller = select.poll()
            poller.register(self._starter, select.POLLIN)
        if not poller.poll(None if timeout is None else timeout * 1000):
            return None
        with self._lock:
            if self.returncode is None:
                status = self._starter.recv(16)
                assert status, "the starter of servers has ended"
                self._starter.close()
                self.returncode = int(status)
            return self.returncode


def start_tiltyard(*arguments: str, **environ: str) -> ForkedProcess:
    """Start a command with this process's environment, and further variables."""
    return ForkedProcess(arguments, {**os.environ, **environ}, Path.cwd())


def run_tiltyard(
    *arguments: str, module: str = "tiltyard", starter: str = "servers", timeout: float = 180, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with this process's environment, and further variables.

    Raises subprocess.TimeoutExpired.
    """
    process = ForkedProcess(arguments, {**os.environ, **environ}, Path.cwd(), module=module, starter=starter)
    with process.stdout, process.stderr:
        stdout, stderr = process.communicate(timeout)
        return subprocess.CompletedProcess(arguments, process.wait(), stdout, stderr)


@contextmanager
def forking_python() -> Iterator[Path]:
    """Write a `python` for Spark's workers: where it is to run a module or code, the process that does is forked."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "python"
        _write_forking_python(python, _starter("workers"), interrupt="lambda number, _: os.kill(process_id, number)")
        yield python


def share_starters() -> None:
    """Start all starters, for the processes that this one starts, and for as long as it lives."""
    for name in STARTERS:
        _starter(name)
    os.environ[SHARED_FOLDER] = str(_folder())


def _write_forking_python(python: Path, starter: Path, *, interrupt: str) -> None:
    script = _WORKER_SCRIPT.format(python=sys.executable, address=str(starter), interrupt=interrupt)
    python.write_text(script)
    python.chmod(0o700)


@cache
def _starter(name: str) -> Path:
    """Return the socket of a starter: a shared one, or one of our own, which lives as long as this process."""
    if SHARED_FOLDER in os.environ:
        return Path(os.environ[SHARED_FOLDER]) / name
    return _start(name, *STARTERS[name])


def _start(name: str, modules: Sequence[str], variables: Mapping[str, str]) -> Path:
    """Start a starter, with variables besides ours. Returns its socket."""
    address = _folder() / name
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.services.forked_process", str(address), *modules],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=HOME,
        env={**os.environ, **variables},
    )
    assert process.stdin is not None and process.stdout is not None
    atexit.register(process.stdin.close)
    assert process.stdout.readline() == b"ready\n", "the starter of processes has ended"
    return address


@cache
def _folder() -> Path:
    """Make the folder of the sockets of this process's starters."""
    folder = tempfile.mkdtemp(prefix="starters-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


class _Starter:
    """Forks a process for each order, and reports how each ends."""

    def __init__(self, listener: socket.socket, modules: Sequence[str]) -> None:
        self._listener = listener
        self._modules = modules
        self._processes: dict[int, socket.socket] = {}
        self._woken, self._wake = os.pipe()

    def run(self) -> dict[str, Any]:
        """Serve orders. Returns in a forked process, with its order."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with those that need what it has forked
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake)
        while True:
            sources: list[int | socket.socket] = [0, self._woken, self._listener]
            ready, _, _ = select.select(sources, [], [])
            if 0 in ready:
                os._exit(0)
            if self._woken in ready:
                os.read(self._woken, 1024)
                self._report_ended()
            if self._listener in ready:
                customer, _ = self._listener.accept()
                self._import_modules()
                if order := self._fork(customer):
                    return order

    def _import_modules(self) -> None:
        """Import the modules, unless this is not the first order."""
        if not self._modules:
            return
        if "tiltyard.server.serve" in self._modules:
            from tiltyard.bootstrap import register_operations

            register_operations()
        for name in self._modules:
            importlib.import_module(name)
        self._modules = ()
        gc.collect()
        gc.freeze()  # else each process, as it runs and as it ends, looks through all that was imported here

    def _fork(self, customer: socket.socket) -> dict[str, Any] | None:
        text, descriptors, _, _ = socket.recv_fds(customer, MAX_ORDER_BYTES, 3)
        with warnings.catch_warnings():
            # It is, as long as it has done nothing; and lancedb starts its thread again.
            warnings.filterwarnings("ignore", message="lance is not fork-safe|lancedb fork support is experimental")
            process_id = os.fork()
        if not process_id:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, descriptor in enumerate(descriptors):
                os.dup2(descriptor, number)
            for connection in (customer, self._listener, *self._processes.values()):
                connection.close()
            for descriptor in (*descriptors, self._woken, self._wake):
                os.close(descriptor)
            return dict(json.loads(text))
        for descriptor in descriptors:
            os.close(descriptor)
        self._processes[process_id] = customer
        customer.send(str(process_id).encode())
        return None

    def _report_ended(self) -> None:
        while self._processes:
            process_id, status = os.waitpid(-1, os.WNOHANG)
            if not process_id:
                return
            with self._processes.pop(process_id) as customer, suppress(OSError):  # it may have gone
                customer.send(str(os.waitstatus_to_exitcode(status)).encode())


def _run_order(order: Mapping[str, Any]) -> None:
    """Take the environment, the folder and the limit of an order, and run its module, or its code."""
    from tiltyard.runtime import failpoints

    os.environ.clear()
    os.environ.update(order["environ"])
    os.chdir(order["folder"])
    sys.path[1:1] = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path and path not in sys.path]
    failpoints.arm(os.environ.get(failpoints.VARIABLE, ""))  # it was read when it was imported
    if descriptors := order.get("descriptors"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    sys.argv = ["", *order["arguments"]]
    if "code" in order:
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(order["code"], vars(main))
        return
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)


def _main(address: str, *modules: str) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(128)
    os.write(1, b"ready\n")
    _run_order(_Starter(listener, modules).run())


if __name__ == "__main__":
    _main(*sys.argv[1:])
