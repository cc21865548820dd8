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
from typing import Any, Protocol, Self

from tests.services.guarded_s3 import SECRETS, guarded_s3
from tests.services.recorder import Recorder
from tests.services.secured import Secured, secured_server
from tests.services.server import ServerProcess

MARK = "\x1e"
"""Begins the lines of a driver's standard output that are responses."""
QUIET = ("DescribeTable", "ListTableVersions", "DescribeTableVersion")
"""Part of nearly every call: named only where a call requests no other."""
NOT_RUN = "\N{EN DASH}"
log = logging.getLogger(__name__)

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
def open_server(root: Path, **environ: str) -> Iterator[ServerProcess]:
    """Start a server without authentication, whose tables are in a folder."""
    server = ServerProcess(root, environ=environ)
    try:
        yield server
    finally:
        server.stop()


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

    A known fault of the client's is named instead: one whose error has `refusal` in it, or, if that is empty and
    nothing fails, whose `rows` are these. If it has gone, that fails, too.
    """
    error = str(response.get("error", ""))
    if known_fault:
        silent = not error and not refusal and rows is not None and _are(response["rows"], rows)
        expected = silent or (error and refusal in error)
        return f"{THEIRS}{known_fault}" if expected else f"fails: {_line(error) or 'works'}, not by {known_fault}"
    if refusal:
        return REFUSED if refusal in error else f"fails: {_line(error) or 'not refused'}"
    if error:
        return f"fails: {_line(error)}"
    if rows is not None and not _are(response["rows"], rows):
        return f"fails: {_line(str(response['rows']))} instead of {_line(str(list(rows)))}"
    return WORKS


def _are(result: Sequence[Any], rows: Sequence[Sequence[Any]]) -> bool:
    """Return whether rows are these, in any order."""
    return sorted(map(str, result)) == sorted(str(list(row)) for row in rows)


class Expectation(Protocol):
    """What a call is for, and how it ends: its `rows` in any order, or an error.

    `refusal` is a part of the error; `known` names a fault of the client, where it is one.
    """

    @property
    def what(self) -> str: ...
    @property
    def rows(self) -> Sequence[Sequence[object]] | None: ...
    @property
    def refusal(self) -> str: ...
    @property
    def known(self) -> str: ...


def observe_call(requests: Recorder, expected: Expectation, shown: str, response: Mapping[str, Any]) -> ObservedCall:
    """Compare the response to a call with what was expected of it, take what it requested, and log its outcome."""
    outcome = outcome_of(response, expected.rows, expected.refusal, expected.known)
    log.info("%s: %s", outcome, shown)
    return ObservedCall(expected.what, shown, outcome, drain_operations(requests))


def run_alone(description: str | None, observers: Mapping[str, Callable[[], Sequence[ServerObservations]]]) -> None:
    """Run the command of a module that observes: log its progress, and exit with the calls that failed, if any did."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("client", nargs="*", default=list(observers), help=f"of {', '.join(observers)}")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    log.setLevel(logging.INFO)
    servers = [server for client in arguments.client for server in observers[client]()]
    failed = [f"{server.title}: {call.call}" for server in servers for call in server.calls if not call.is_expected]
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
    has_operations = any(asked_for.values())
    heads = ["what", "as it is written", *titles, *(["asks for"] if has_operations else [])]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for (purpose, call), outcomes in outcomes_of.items():
        cells = [purpose, f"`{_cell(call)}`", *(_cell(outcomes.get(title, NOT_RUN)) for title in titles)]
        if has_operations:
            cells.append(", ".join(asked_for[purpose, call]) or NOT_RUN)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _line(text: str) -> str:
    return " ".join(text.split())[:160]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
