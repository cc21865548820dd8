"""Processes that measure, driven line by line: a JSON object in, a JSON object out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.processor_time import tree_seconds
from bench.servers import RESET_PEAK, TREE

Measures = dict[str, Callable[..., Any]]


def reserve_output() -> None:
    """Keep the standard output for answers: what child processes print goes to the standard error."""
    sys.stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)


def answer(measures: Measures) -> None:
    """Run the measurement of each line of the standard input, until it ends."""
    out = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is no answer
    for line in sys.stdin:
        order = json.loads(line)
        Path("/proc/self/clear_refs").write_text(RESET_PEAK)
        before = tree_seconds(os.getpid())
        result = measures[order.pop("do")](**order)
        cpu = tree_seconds(os.getpid()) - before
        print(json.dumps({"found": result, "memory": _peak(), "cpu": cpu}), file=out, flush=True)


def _peak() -> float:
    [line] = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


class Process:
    """Such a process, from the outside.

    `memory` is the most it has held at once during its last order, in MiB; `cpu` the processor seconds of that order,
    with those of the processes that it has started (Spark's, Ray's).
    """

    def __init__(self, module: str, *arguments: str, environ: Mapping[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=TREE,
            env={**os.environ, **(environ or {})},
        )
        self.memory = self.cpu = 0.0

    def ask(self, do: str, **order: Any) -> Any:
        """Return its response. Raises RuntimeError if it ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **order}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("A process that measures ended; its reason stands above.")
        response = json.loads(line)
        self.memory, self.cpu = float(response["memory"]), float(response["cpu"])
        return response["found"]

    def stop(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
