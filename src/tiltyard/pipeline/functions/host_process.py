"""Processes of functions, in a Spark worker: started at the first batch, kept for all later ones.

A function's secrets and variables come with the first message, and are in the memory of its process alone: neither its
command line nor the environment that it starts with has them. An error's message is freed of them.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from tiltyard.column_refresh.fragment_files import RowError
from tiltyard.pipeline.functions.code import FunctionCode
from tiltyard.pipeline.functions.environments import python_for
from tiltyard.pipeline.functions.host import read_message, write_message
from tiltyard.pipeline.task_errors import RefusedError

HOST = Path(__file__).parent / "host.py"
MOST_PROCESSES = 4
"""How many functions a worker keeps; the one that was used least recently ends."""
_END_SECONDS = 5.0
_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
REDACTED = "…"


@dataclass(frozen=True, slots=True)
class ComputedBatch:
    """The values of a batch; `failed` rows are null, and `errors` has some of them."""

    values: pa.Array
    failed: int = 0
    errors: tuple[RowError, ...] = ()


class FunctionProcess:
    """A process of one function."""

    def __init__(self, code: FunctionCode) -> None:
        """Start it, with its environment. Raises RefusedError if the function cannot be loaded."""
        self._code = code
        python = python_for(code.python_version, code.packages)
        variables = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(  # noqa: S603 - our own script, in the function's environment
            [python, "-I", str(HOST)], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=variables
        )
        answer = self._ask(json.dumps(code.order()).encode())
        if "error" in answer:
            self.close()
            raise RefusedError(f"The function {code.name} cannot be loaded: {self._describe(answer)}")

    def compute(self, batch: pa.RecordBatch) -> ComputedBatch:
        """Compute a batch. Raises RefusedError if the function of Arrow fails, or its process ends."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        answer = self._ask(sink.getvalue().to_pybytes())
        if "error" in answer:
            raise RefusedError(f"The function {self._code.name} failed: {self._describe(answer)}")
        body = self._read()
        values = pa.ipc.open_stream(body).read_all().column(0).combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            values = values.chunk(0) if values.num_chunks else pa.array([], values.type)
        errors = tuple(RowError(row, kind, self._redact(message)) for row, kind, message in answer["errors"])
        return ComputedBatch(values, int(answer["failed"]), errors)

    def _ask(self, message: bytes) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            write_message(self._process.stdin, message)
        except OSError as error:
            raise self._ended() from error
        answer: dict[str, Any] = json.loads(self._read())
        return answer

    def _read(self) -> bytes:
        body = read_message(self._process.stdout)
        if body is None:
            raise self._ended()
        return body

    def _ended(self) -> RefusedError:
        status = self._process.wait()
        return RefusedError(f"The process of the function {self._code.name} ended with status {status}.")

    def _describe(self, answer: dict[str, Any]) -> str:
        kind, message = answer["error"]
        return f"{kind}: {self._redact(message)}"

    def _redact(self, text: str) -> str:
        for value in self._code.secrets.values():
            text = text.replace(value, REDACTED)
        return text

    def close(self) -> None:
        """Let it end; kill it if it does not."""
        end_process(self._process)

    @property
    def is_running(self) -> bool:
        """Return whether it takes batches."""
        return self._process.poll() is None


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes of a function's process, and wait for it to end; kill it if it does not."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(OSError):  # it has ended, and what was sent last stays unread
        process.stdin.close()
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


_processes: OrderedDict[str, FunctionProcess] = OrderedDict()


def function_process(code: FunctionCode) -> FunctionProcess:
    """Return this worker's process of a function: a class is created once in it. Raises RefusedError."""
    process = _processes.pop(code.key, None)
    if process is None or not process.is_running:
        while len(_processes) >= MOST_PROCESSES:
            _processes.popitem(last=False)[1].close()
        process = FunctionProcess(code)
    _processes[code.key] = process
    return process
