"""Run the calls of a client in a process of its own; observe their outcomes, and the operations that each requested."""

from __future__ import annotations

import argparse
import json
import logging
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.services.guarded_s3 import SECRETS, guarded_s3
from tests.services.recorder import Recorder
from tests.services.secured import Secured, secured_server

MARK = "\x1e"
"""Begins the lines of a driver's standard output that are responses."""
QUIET = ("DescribeTable", "ListTableVersions", "DescribeTableVersion")
"""Part of nearly every call: named only where a call requests no other."""
NOT_RUN = "\N{EN DASH}"
WORKS, REFUSED, THEIRS = "works", "refused", "a fault of the client: "


@dataclass(frozen=True, slots=True)
class ObservedCall:
    """One call: its purpose, its code, its outcome ("works", or how it fails), and the operations that it requested."""

    what: str
    call: str
    outcome: str
    operations: tuple[str, ...]

    @property
    def is_expected(self) -> bool:
        """Whether it works, is refused as expected, or fails for a known fault of the client."""
        return self.outcome in (WORKS, REFUSED) or self.outcome.startswith(THEIRS)


class Driver:
    """A process that responds to requests, one line each, within `seconds`."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path, seconds: float = 240) -> None:
        self._log, self._seconds = log, seconds
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**clean, "AWS_EC2_METADATA_DISABLED": "true", **environ},
            )
        self._responses: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def next_response(self) -> dict[str, Any] | None:
        """Return the next response; None once the process has ended well.

        Raises RuntimeError, with the end of what the process logged, if it failed or is too slow.
        """
        try:
            response = self._responses.get(timeout=self._seconds)
        except queue.Empty:
            response = None
        if response is None and (self._process.poll() != 0):
            tail = self._log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"The client gave no answer:\n{tail}")
        return response

    def response(self) -> dict[str, Any]:
        """Return the next response of a process that must not have ended."""
        response = self.next_response()
        assert response is not None, "the client ended before it answered"
        return response

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request; return its response."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self.response()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            _, mark, text = line.rpartition(MARK)
            if mark:
                self._responses.put(json.loads(text))
        self._process.wait()
        self._responses.put(None)


@dataclass(frozen=True, slots=True)
class ServerObservations:
    """The configuration of a server, and the calls observed on it."""

    title: str
    calls: tuple[ObservedCall, ...]


@contextmanager
def lake(folder: Path) -> Iterator[Secured]:
    """Start a server with authentication that vends credentials for the folders of its tables on S3."""
    with guarded_s3(900) as objects:
        bucket = objects.new_bucket("lake")
        environ = {"TILTYARD_STORAGE": json.dumps({"lake": objects.storage(bucket)}), **SECRETS}
        with secured_server(f"{bucket}/tables", db=f"sqlite:///{folder}/lake.db", environ=environ) as server:
            yield server


def drain_operations(requests: Recorder) -> tuple[str, ...]:
    """Return the operations requested since the last call of this function, each once, in their order."""
    names = tuple(dict.fromkeys(call.operation for call in requests.drain()))
    return tuple(name for name in names if name not in QUIET) or names


def outcome_of(
    response: Mapping[str, Any], rows: Sequence[Sequence[Any]] | None, refusal: str = "", known_fault: str = ""
) -> str:
    """Say "works", "refused" where that was expected (`refusal` is a part of the error), or what is not as expected.

    A `known` fault of the client's, whose error has `refusal` in it, is named instead. If it has gone, that fails, too.
    """
    error = str(response.get("error", ""))
    if known_fault:
        expected = error and refusal in error
        return f"{THEIRS}{known_fault}" if expected else f"fails: {_line(error) or 'works'}, not by {known_fault}"
    if refusal:
        return REFUSED if refusal in error else f"fails: {_line(error) or 'not refused'}"
    if error:
        return f"fails: {_line(error)}"
    result = response["rows"]
    if rows is not None and sorted(map(str, result)) != sorted(str(list(row)) for row in rows):
        return f"fails: {_line(str(result))} instead of {_line(str(list(rows)))}"
    return WORKS


def run_alone(description: str | None, observe: Callable[[], Sequence[ServerObservations]]) -> None:
    """Run the command of a module that observes: log its progress, and exit with the calls that failed, if any did."""
    argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("__main__").setLevel(logging.INFO)  # the module's own, since it was run by its name
    failed = [f"{server.title}: {call.call}" for server in observe() for call in server.calls if not call.is_expected]
    sys.exit("\n".join(["These calls failed:", *failed]) if failed else 0)


def markdown(observations: Sequence[ServerObservations]) -> str:
    """Render the observations: a row for each call, a column for each server, and the operations that the first got."""
    outcomes_of: dict[tuple[str, str], dict[str, str]] = {}
    asked_for: dict[tuple[str, str], tuple[str, ...]] = {}
    for server in observations:
        for entry in server.calls:
            outcomes_of.setdefault((entry.what, entry.call), {})[server.title] = entry.outcome
            asked_for.setdefault((entry.what, entry.call), entry.operations)
    titles = [server.title for server in observations]
    lines = [f"| what | as it is written | {' | '.join(titles)} | asks for |", "|---" * (len(titles) + 3) + "|"]
    for (purpose, call), outcomes in outcomes_of.items():
        cells = [_cell(outcomes.get(title, NOT_RUN)) for title in titles]
        asked_here = ", ".join(asked_for[purpose, call]) or NOT_RUN
        lines.append(f"| {purpose} | `{_cell(call)}` | {' | '.join(cells)} | {asked_here} |")
    return "\n".join(lines)


def _line(text: str) -> str:
    return " ".join(text.split())[:160]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
