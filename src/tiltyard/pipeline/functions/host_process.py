"""Processes of registered functions, in a Spark worker: started at the first batch, kept for all later ones.

A function's secrets and variables come with the first message, and are in the memory of its process alone: neither its
command line nor the environment that it starts with has them. An error's message is freed of them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tiltyard.column_refresh.fragment_files import RowError
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.functions.call_policy import PLAIN_POLICY, CallPolicy, pause_after
from tiltyard.pipeline.functions.child_process import CallError, ChildProcess, ProcessCache
from tiltyard.pipeline.functions.code import FunctionCode
from tiltyard.pipeline.functions.environments import python_for
from tiltyard.pipeline.functions.host import AGAIN, ARRAY, MAX_MESSAGE_LENGTH, from_ipc, to_ipc

HOST = Path(__file__).parent / "host.py"
MAX_PROCESSES = 4
"""How many functions a worker keeps; the one that was used least recently ends."""
_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
REDACTED = "…"


@dataclass(frozen=True, slots=True)
class ComputedBatch:
    """The values of a batch; `failed` rows are null, and `errors` has some of them."""

    values: pa.Array
    failed: int = 0
    errors: tuple[RowError, ...] = ()


class FunctionProcess:
    """A process of one function, with the limits of a policy."""

    def __init__(self, code: FunctionCode, policy: CallPolicy = PLAIN_POLICY) -> None:
        """Start it, with its environment. Raises RefusedError if the function cannot be loaded."""
        self._code = code
        python = python_for(code.python_version, code.packages)
        variables = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        self._child = ChildProcess([python, "-I", str(HOST)], policy.batch_seconds, variables)
        self._child.send(json.dumps(code.order(policy)).encode())
        try:
            answer = self._child.receive_json()
        except CallError as error:
            raise RefusedError(f"The function {code.name} cannot be loaded: {error}") from error
        if "error" in answer:
            self.close()
            raise RefusedError(f"The function {code.name} cannot be loaded: {': '.join(self._error(answer))}")

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
            kind, message = self._error(answer)
            if answer["is_refused"]:
                raise RefusedError(f"The function {self._code.name} failed: {message}")
            raise CallError(kind, message, frozenset(answer["kinds"]))
        errors = tuple(RowError(row, self._redact(kind), self._redact(text)) for row, kind, text in answer["errors"])
        return ComputedBatch(from_ipc(body, ARRAY), int(answer["failed"]), errors)

    def _call(self, message: bytes) -> tuple[dict[str, Any], bytes]:
        """Return the answer, and the values that come behind it, if it is the last one to a batch."""
        with self._child.time_limit():
            self._child.send(message)
            answer = self._child.receive_json()
            return answer, self._child.receive() if "failed" in answer else b""

    def _error(self, answer: dict[str, Any]) -> tuple[str, str]:
        kind, message = answer["error"]
        return self._redact(kind), self._redact(message)

    def _redact(self, text: str) -> str:
        """Replace the secrets, and cut the text then: before, a part of one could stay at its end."""
        for value in sorted(self._code.secrets.values(), key=len, reverse=True):
            text = text.replace(value, REDACTED)
        return text[:MAX_MESSAGE_LENGTH]

    def close(self) -> None:
        """Let it end; kill it if it does not."""
        self._child.close()

    @property
    def is_running(self) -> bool:
        """Return whether it takes batches."""
        return self._child.is_running


_processes: ProcessCache[tuple[str, CallPolicy], FunctionProcess] = ProcessCache(MAX_PROCESSES)


def function_process(code: FunctionCode, policy: CallPolicy = PLAIN_POLICY) -> FunctionProcess:
    """Return this worker's process of a function: a class is created once in it. Raises RefusedError."""
    return _processes.get((code.key, policy), lambda: FunctionProcess(code, policy))
