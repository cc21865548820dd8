"""Child processes of a Spark worker in which functions run: their messages, their limit of time, and how they end.

A worker starts one at the first call of a function, and keeps it for later ones.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Generic, Protocol, TypeVar

from tiltyard.pipeline.functions.host import read_message, write_message
from tiltyard.runtime.cache import Cache
from tiltyard.runtime.child_process import NOTHING, ChildProcess

_END_SECONDS = 5.0


class CallError(Exception):
    """A call failed in the process of its function: `kind` is the error's type, `kinds` all names of its classes."""

    def __init__(
        self, kind: str, message: str, kinds: frozenset[str] = frozenset(), *, ended_process: bool = False
    ) -> None:
        super().__init__(message if kind == "RowsFailedError" else f"{kind}: {message}")
        self.kind, self.message, self.kinds, self.ended_process = kind, message, kinds | {kind}, ended_process


class HostProcess:
    """A process that reads messages from its standard input, and answers on its standard output, as `host` does."""

    def __init__(
        self, command: Sequence[str], call_seconds: float | None, variables: Mapping[str, str] | None = None
    ) -> None:
        """Start it, with these environment variables, or with this process's own ones."""
        self._call_seconds = call_seconds
        self._timed_out = False
        self._process = ChildProcess(
            "function", "A function of a user, in its own environment", command, stderr=NOTHING, variables=variables
        )

    @contextmanager
    def time_limit(self) -> Iterator[None]:
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

    def send(self, body: bytes) -> None:
        """Send a message; `receive` says so if the process has ended."""
        with suppress(OSError):
            write_message(self._process.stdin, body)

    def receive(self) -> bytes:
        """Return the next message. Raises CallError if the process has ended."""
        body = read_message(self._process.stdout)
        if body is None:
            raise self._ended()
        return body

    def receive_json(self) -> dict[str, Any]:
        """Return the next message, which is JSON. Raises CallError if the process has ended."""
        answer: dict[str, Any] = json.loads(self.receive())
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
        """Close the pipes, and wait for the process to end; kill it if it does not."""
        self._process.close(_END_SECONDS)

    @property
    def is_running(self) -> bool:
        """Return whether it takes messages."""
        return self._process.is_running


class _FunctionProcess(Protocol):
    """A process of one function."""

    @property
    def is_running(self) -> bool: ...

    def close(self) -> None: ...


K = TypeVar("K", bound=Hashable)
P = TypeVar("P", bound=_FunctionProcess)


class ProcessCache(Generic[K, P]):
    """The processes that a worker keeps, `most` at once; the one that was used least recently ends."""

    def __init__(self, most: int) -> None:
        self._processes: Cache[K, P] = Cache(
            "function processes",
            "Processes of users' functions that a worker of Spark keeps for later calls",
            max_entries=most,
            invalidated_by="the end of a process",
            dropped=lambda process: process.close(),
        )

    def get(self, key: K, start: Callable[[], P]) -> P:
        """Return the process of a key, which is started if none is running. Raises what `start` raises."""
        process = self._processes.get(key)
        if process is None or not process.is_running:
            process = start()
            self._processes.put(key, process)
        return process

    def clear(self) -> None:
        """End all processes."""
        self._processes.clear()
