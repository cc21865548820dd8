"""Processes of users' functions, in a Spark worker: each with limits of time and memory, and its own packages.

A process starts at the first call, and serves all later ones. One that takes too long, or more memory than it may have,
is killed; the next call starts another.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.functions.call_policy import CallPolicy
from tiltyard.pipeline.functions.child_process import CallError, ChildProcess, ProcessCache
from tiltyard.pipeline.functions.environments import python_for
from tiltyard.pipeline.functions.host import BATCH, TABLE, from_ipc, to_ipc
from tiltyard.pipeline.functions.user_functions import Loadable

_START = """
import json, sys
worker_path = json.loads(sys.argv[1])
sys.path = [path for path in sys.path if path not in worker_path] + worker_path
from tiltyard.pipeline.functions.call_host import main
main()
"""
"""The worker's own import path comes behind that of the function's packages."""
MAX_PROCESSES = 2
"""How many functions a worker keeps processes of; the one that was used least recently ends."""


class CallProcess:
    """A process of one function."""

    def __init__(self, pickled: bytes, policy: CallPolicy) -> None:
        """Start it, with its environment. Raises RefusedError if the function cannot be loaded."""
        python = python_for(f"{sys.version_info.major}.{sys.version_info.minor}", policy.packages)
        command = [python, "-I", "-c", _START, json.dumps([path for path in sys.path if path])]
        self._child = ChildProcess(command, policy.batch_seconds)
        self._child.send(json.dumps(policy.memory_bytes).encode())
        self._child.send(pickled)
        try:
            answer = self._child.receive_json()
        except CallError as error:
            raise RefusedError(f"The function cannot be loaded: {error}") from error
        if "error" in answer:
            self.close()
            raise RefusedError(f"The function cannot be loaded: {': '.join(answer['error'])}")

    def call(self, rows: pa.RecordBatch | pa.Table) -> Any:
        """Call the function; return what it returns of Arrow. Raises CallError, RefusedError for another result."""
        with self._child.time_limit():
            self._child.send((TABLE if isinstance(rows, pa.Table) else BATCH).encode())
            self._child.send(to_ipc(rows))
            answer = self._child.receive_json()
            if "error" in answer:
                kind, message = answer["error"]
                if "RefusedError" in answer["kinds"] and "RowsFailedError" not in answer["kinds"]:
                    raise RefusedError(message)
                raise CallError(kind, message, frozenset(answer["kinds"]))
            if "other" in answer:
                raise RefusedError(f"The function returned {answer['other']}, which is nothing of Arrow.")
            parts = [from_ipc(self._child.receive(), form) for form in answer["forms"]]
        return parts if answer["is_list"] else parts[0]

    def close(self) -> None:
        """Let it end; kill it if it does not."""
        self._child.close()

    @property
    def is_running(self) -> bool:
        """Return whether it takes calls."""
        return self._child.is_running


_processes: ProcessCache[tuple[bytes, CallPolicy], CallProcess] = ProcessCache(MAX_PROCESSES)


def call_in_process(code: Loadable, policy: CallPolicy) -> Callable[[pa.RecordBatch | pa.Table], Any]:
    """Return a function that calls another one in its process, which is started now. Raises RefusedError."""
    pickled = pickle.dumps(code)
    _process_of(pickled, policy)
    return lambda rows: _process_of(pickled, policy).call(rows)


def _process_of(pickled: bytes, policy: CallPolicy) -> CallProcess:
    return _processes.get((pickled, policy), lambda: CallProcess(pickled, policy))
