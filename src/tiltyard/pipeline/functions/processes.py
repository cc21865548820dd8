"""Processes of functions, in a Spark worker: each with limits of time and memory, and its own packages.

A process starts at the first call, and serves all later ones; one that takes too long, or more memory than it may have,
is killed, and the next call starts another. What runs in it is `host`, whose messages are these.

A registered function's secrets and variables come with the first message, and are in the memory of its process alone:
neither its command line nor the environment that it starts with has them. An error's message is freed of them.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import pyarrow as pa

from tiltyard.column_refresh.fragment_files import RowError
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.functions.call_policy import PLAIN_POLICY, CallPolicy, pause_after
from tiltyard.pipeline.functions.code import FunctionCode
from tiltyard.pipeline.functions.environments import python_for
from tiltyard.pipeline.functions.host import (
    AGAIN,
    ARRAY,
    BATCH,
    MAX_MESSAGE_LENGTH,
    TABLE,
    from_ipc,
    read_message,
    to_ipc,
    write_message,
)
from tiltyard.pipeline.functions.user_functions import Loadable
from tiltyard.runtime.cache import Cache
from tiltyard.runtime.child_process import NOTHING, ChildProcess

HOST = Path(__file__).parent / "host.py"
MAX_PROCESSES = 4
"""How many functions a worker keeps processes of; the one that was used least recently ends."""
_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
REDACTED = "…"
_END_SECONDS = 5.0

P = TypeVar("P", bound="HostedFunction")


class CallError(Exception):
    """A call failed in the process of its function: `kind` is the error's type, `kinds` all names of its classes."""

    def __init__(
        self, kind: str, message: str, kinds: frozenset[str] = frozenset(), *, ended_process: bool = False
    ) -> None:
        super().__init__(message if kind == "RowsFailedError" else f"{kind}: {message}")
        self.kind, self.message, self.kinds, self.ended_process = kind, message, kinds | {kind}, ended_process


class HostedFunction:
    """A process of one function, which reads messages from its standard input and answers on its standard output."""

    def __init__(
        self,
        name: str,
        python: str,
        policy: CallPolicy,
        messages: tuple[bytes, ...],
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """Start it with a Python, its first messages, and these environment variables or this process's own ones.

        Raises RefusedError if the function cannot be loaded.
        """
        self._call_seconds = policy.batch_seconds
        self._timed_out = False
        command = [python, "-I", str(HOST)]
        self._process = ChildProcess(
            "function", "A function of a user, in its own environment", command, stderr=NOTHING, variables=variables
        )
        for message in messages:
            self._send(message)
        try:
            answer = self._receive_json()
        except CallError as error:
            raise RefusedError(f"{name} cannot be loaded: {error}") from error
        if "error" in answer:
            self.close()
            raise RefusedError(f"{name} cannot be loaded: {': '.join(map(self._redact, answer['error']))}")

    def _redact(self, text: str) -> str:
        """Return a text of the process without what nobody else may know."""
        return text

    @contextmanager
    def _time_limit(self) -> Iterator[None]:
        """Kill the process if the block takes longer than a call may."""
        if self._call_seconds is None:
            yield
            return
        timer = threading.Timer(self._call_seconds, self._time_out)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _time_out(self) -> None:
        self._timed_out = True
        self._process.kill()

    def _send(self, body: bytes) -> None:
        """Send a message; `_receive` says so if the process has ended."""
        with suppress(OSError):
            write_message(self._process.stdin, body)

    def _receive(self) -> bytes:
        """Return the next message. Raises CallError if the process has ended."""
        body = read_message(self._process.stdout)
        if body is None:
            raise self._ended()
        return body

    def _receive_json(self) -> dict[str, Any]:
        """Return the next message, which is JSON. Raises CallError if the process has ended."""
        answer: dict[str, Any] = json.loads(self._receive())
        return answer

    def _ended(self) -> CallError:
        self.close()
        status = self._process.wait()
        if self._timed_out:
            message = f"the call took longer than {self._call_seconds:g} s, and was ended"
            return CallError("TimeoutError", message, ended_process=True)
        if status < 0:  # by the system where memory is short, or by a fault of native code
            name = signal.Signals(-status).name
            return CallError("MemoryError", f"the process of the function was ended by {name}", ended_process=True)
        return CallError("SystemExit", f"the process of the function ended with status {status}", ended_process=True)

    def close(self) -> None:
        """Close the pipes, and wait for it to end; kill it if it does not."""
        self._process.close(_END_SECONDS)

    @property
    def is_running(self) -> bool:
        """Return whether it takes calls."""
        return self._process.is_running


class CallProcess(HostedFunction):
    """A process of a function of the job, which comes pickled, and takes and returns what it likes of Arrow."""

    def __init__(self, pickled: bytes, policy: CallPolicy) -> None:
        """Start it, with its environment; the worker's own import path comes behind that of the function's packages."""
        python = python_for(f"{sys.version_info.major}.{sys.version_info.minor}", policy.packages)
        order = {"worker_path": [path for path in sys.path if path], "memory_bytes": policy.memory_bytes}
        super().__init__("The function", python, policy, (json.dumps(order).encode(), pickled))

    def call(self, rows: pa.RecordBatch | pa.Table) -> Any:
        """Call the function; return what it returns of Arrow. Raises CallError, RefusedError for another result."""
        with self._time_limit():
            self._send((TABLE if isinstance(rows, pa.Table) else BATCH).encode())
            self._send(to_ipc(rows))
            answer = self._receive_json()
            if "error" in answer:
                kind, message = answer["error"]
                if "RefusedError" in answer["kinds"] and "RowsFailedError" not in answer["kinds"]:
                    raise RefusedError(message)
                raise CallError(kind, message, frozenset(answer["kinds"]))
            if "other" in answer:
                raise RefusedError(f"The function returned {answer['other']}, which is nothing of Arrow.")
            parts = [from_ipc(self._receive(), form) for form in answer["forms"]]
        return parts if answer["is_list"] else parts[0]


@dataclass(frozen=True, slots=True)
class ComputedBatch:
    """The values of a batch; `failed` rows are null, and `errors` has some of them."""

    values: pa.Array
    failed: int = 0
    errors: tuple[RowError, ...] = ()


class FunctionProcess(HostedFunction):
    """A process of a registered function, whose values have the type that it declares."""

    def __init__(self, code: FunctionCode, policy: CallPolicy = PLAIN_POLICY) -> None:
        """Start it, with its environment."""
        self._code = code
        python = python_for(code.python_version, code.packages)
        variables = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        order = json.dumps(code.order(policy)).encode()
        super().__init__(f"The function {code.name}", python, policy, (order,), variables)

    def compute(self, batch: pa.RecordBatch, sleep: Callable[[float], None] = time.sleep) -> ComputedBatch:
        """Compute a batch; rows that a function of rows fails on are called again as the policy says.

        Raises CallError if a function of Arrow fails, a function lacks memory, or its process ends; RefusedError if
        what it returns is no array of as many values as the batch has rows.
        """
        answer, body = self._call(to_ipc(batch))
        while "attempt" in answer:
            sleep(pause_after(answer["attempt"]))
            answer, body = self._call(AGAIN)
        if "error" in answer:
            kind, message = map(self._redact, answer["error"])
            if answer["is_refused"]:
                raise RefusedError(f"The function {self._code.name} failed: {message}")
            raise CallError(kind, message, frozenset(answer["kinds"]))
        errors = tuple(RowError(row, self._redact(kind), self._redact(text)) for row, kind, text in answer["errors"])
        return ComputedBatch(from_ipc(body, ARRAY), int(answer["failed"]), errors)

    def _call(self, message: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the answer, and the values that come behind it, if it is the last one to a batch."""
        with self._time_limit():
            self._send(message)
            answer = self._receive_json()
            return answer, self._receive() if "failed" in answer else b""

    def _redact(self, text: str) -> str:
        """Replace the secrets, and cut the text then: before, a part of one could stay at its end."""
        for value in sorted(self._code.secrets.values(), key=len, reverse=True):
            text = text.replace(value, REDACTED)
        return text[:MAX_MESSAGE_LENGTH]


_processes: Cache[tuple[bytes | str, CallPolicy], HostedFunction] = Cache(
    "function processes",
    "Processes of users' functions that a worker of Spark keeps for later calls",
    max_entries=MAX_PROCESSES,
    invalidated_by="the end of a process",
    dropped=HostedFunction.close,
)


def function_process(code: FunctionCode, policy: CallPolicy = PLAIN_POLICY) -> FunctionProcess:
    """Return this worker's process of a function: a class is created once in it. Raises RefusedError."""
    return _running((code.key, policy), lambda: FunctionProcess(code, policy))


def call_in_process(code: Loadable, policy: CallPolicy) -> Callable[[pa.RecordBatch | pa.Table], Any]:
    """Return a function that calls another one in its process, which is started now. Raises RefusedError."""
    pickled = pickle.dumps(code)

    def process() -> CallProcess:
        return _running((pickled, policy), lambda: CallProcess(pickled, policy))

    process()
    return lambda rows: process().call(rows)


def _running(key: tuple[bytes | str, CallPolicy], start: Callable[[], P]) -> P:
    """Return the process of a key, which is started if none is running. Raises RefusedError."""
    process = cast("P | None", _processes.get(key))
    if process is None or not process.is_running:
        process = start()
        _processes.put(key, process)
    return process
