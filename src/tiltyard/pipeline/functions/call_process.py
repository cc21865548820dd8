"""Processes of users' functions, in a Spark worker: each with limits of time and memory, and its own packages.

A process starts at the first call, and serves all later ones. One that takes too long, or more memory than it may have,
is killed; the next call starts another.
"""

from __future__ import annotations

import json
import pickle
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa

from tiltyard.pipeline.functions.call_host import BATCH, TABLE, from_ipc, to_ipc
from tiltyard.pipeline.functions.call_policy import CallPolicy
from tiltyard.pipeline.functions.environments import python_for
from tiltyard.pipeline.functions.host import read_message, write_message
from tiltyard.pipeline.functions.host_process import end_process
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.user_functions import Loadable

_START = """
import json, sys
worker_path = json.loads(sys.argv[1])
sys.path = [path for path in sys.path if path not in worker_path] + worker_path
from tiltyard.pipeline.functions.call_host import main
main()
"""
"""The worker's own import path comes behind that of the function's packages."""
MOST_PROCESSES = 2
"""How many functions a worker keeps processes of; the one that was used least recently ends."""


class CallError(Exception):
    """A call failed in the process of its function: `kind` is the error's type, `kinds` all names of its classes."""

    def __init__(
        self, kind: str, message: str, kinds: frozenset[str] = frozenset(), *, ended_process: bool = False
    ) -> None:
        super().__init__(message if kind == "RowsFailedError" else f"{kind}: {message}")
        self.kind, self.message, self.kinds, self.ended_process = kind, message, kinds | {kind}, ended_process


class CallProcess:
    """A process of one function."""

    def __init__(self, pickled: bytes, policy: CallPolicy) -> None:
        """Start it, with its environment. Raises RefusedError if the function cannot be loaded."""
        self._policy = policy
        self._timed_out = False
        python = python_for(f"{sys.version_info.major}.{sys.version_info.minor}", policy.packages)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(  # noqa: S603 - our own script, in the function's environment
            [python, "-I", "-c", _START, json.dumps([path for path in sys.path if path])],
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.DEVNULL,
        )
        self._send(json.dumps(policy.memory_bytes).encode())
        self._send(pickled)
        try:
            answer = json.loads(self._receive())
        except CallError as error:
            raise RefusedError(f"The function cannot be loaded: {error}") from error
        if "error" in answer:
            self.close()
            raise RefusedError(f"The function cannot be loaded: {': '.join(answer['error'])}")

    def call(self, rows: pa.RecordBatch | pa.Table) -> Any:
        """Call the function; return what it returns of Arrow. Raises CallError, RefusedError for another result."""
        timer = threading.Timer(self._policy.batch_seconds, self._time_out) if self._policy.batch_seconds else None
        if timer is not None:
            timer.start()
        try:
            self._send((TABLE if isinstance(rows, pa.Table) else BATCH).encode())
            self._send(to_ipc(rows))
            answer = json.loads(self._receive())
            if "error" in answer:
                kind, message = answer["error"]
                if "RefusedError" in answer["kinds"] and "RowsFailedError" not in answer["kinds"]:
                    raise RefusedError(message)
                raise CallError(kind, message, frozenset(answer["kinds"]))
            if "other" in answer:
                raise RefusedError(f"The function returned {answer['other']}, which is nothing of Arrow.")
            parts = [from_ipc(self._receive(), form) for form in answer["forms"]]
        finally:
            if timer is not None:
                timer.cancel()
        return parts if answer["is_list"] else parts[0]

    def _time_out(self) -> None:
        self._timed_out = True
        self._process.kill()

    def _send(self, body: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # of a process that has ended: `_receive` says how
            write_message(self._process.stdin, body)

    def _receive(self) -> bytes:
        body = read_message(self._process.stdout)
        if body is None:
            raise self._ended()
        return body

    def _ended(self) -> CallError:
        status = self._process.wait()
        self.close()
        if self._timed_out:
            message = f"the call took longer than {self._policy.batch_seconds:g} s, and was ended"
            return CallError("TimeoutError", message, ended_process=True)
        if status < 0:  # by the system where memory is short, or by a fault of native code
            name = signal.Signals(-status).name
            return CallError("MemoryError", f"the process of the function was ended by {name}", ended_process=True)
        return CallError("SystemExit", f"the process of the function ended with status {status}", ended_process=True)

    def close(self) -> None:
        """Let it end; kill it if it does not."""
        end_process(self._process)

    @property
    def is_running(self) -> bool:
        """Return whether it takes calls."""
        return self._process.poll() is None


_processes: OrderedDict[tuple[bytes, CallPolicy], CallProcess] = OrderedDict()


def call_in_process(code: Loadable, policy: CallPolicy) -> Callable[[pa.RecordBatch | pa.Table], Any]:
    """Return a function that calls another one in its process, which is started now. Raises RefusedError."""
    pickled = pickle.dumps(code)
    _process_of(pickled, policy)
    return lambda rows: _process_of(pickled, policy).call(rows)


def _process_of(pickled: bytes, policy: CallPolicy) -> CallProcess:
    key = (pickled, policy)
    process = _processes.pop(key, None)
    if process is None or not process.is_running:
        while len(_processes) >= MOST_PROCESSES:
            _processes.popitem(last=False)[1].close()
        process = CallProcess(pickled, policy)
    _processes[key] = process
    return process
