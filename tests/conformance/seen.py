"""What became of the calls of a client that runs in a process of its own, and what each asked of the server."""

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
"""Begins the lines of a driver's standard output that are answers."""
QUIET = ("DescribeTable", "ListTableVersions", "DescribeTableVersion")
"""Asked along with nearly everything: named only where nothing else was asked."""
NOT_RUN = "\N{EN DASH}"
WORKS, REFUSED, THEIRS = "works", "refused", "a fault of the client: "


@dataclass(frozen=True, slots=True)
class Seen:
    """One call: what it does, as it is written, what came of it ("works", or how it fails), and what it asked for."""

    what: str
    call: str
    outcome: str
    operations: tuple[str, ...]

    @property
    def fine(self) -> bool:
        """Whether it works, is refused as it must be, or fails for a reason that is known to be the client's."""
        return self.outcome in (WORKS, REFUSED) or self.outcome.startswith(THEIRS)


class Driver:
    """A process that answers requests, one line each; `seconds` is how long an answer may take."""

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
        self._answers: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def next_answer(self) -> dict[str, Any] | None:
        """The next answer; None once the process has ended well.

        Raises RuntimeError, with the end of what the process logged, if it failed or is too slow.
        """
        try:
            found = self._answers.get(timeout=self._seconds)
        except queue.Empty:
            found = None
        if found is None and (self._process.poll() != 0):
            tail = self._log.read_text(errors="replace")[-3000:]
            raise RuntimeError(f"The client gave no answer:\n{tail}")
        return found

    def answer(self) -> dict[str, Any]:
        """The next answer, of a process that must not have ended."""
        found = self.next_answer()
        assert found is not None, "the client ended before it answered"
        return found

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send one request; its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self.answer()

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
            _, found, text = line.rpartition(MARK)
            if found:
                self._answers.put(json.loads(text))
        self._process.wait()
        self._answers.put(None)


@dataclass(frozen=True, slots=True)
class Story:
    """How one server is set up, and what was seen there."""

    title: str
    seen: tuple[Seen, ...]


@contextmanager
def lake(folder: Path) -> Iterator[Secured]:
    """A server that asks who you are, with tables on S3, to whose folders it hands out credentials."""
    with guarded_s3(900) as objects:
        bucket = objects.new_bucket("lake")
        environ = {"TILTYARD_STORAGE": json.dumps({"lake": objects.storage(bucket)}), **SECRETS}
        with secured_server(f"{bucket}/tables", db=f"sqlite:///{folder}/lake.db", environ=environ) as server:
            yield server


def asked(requests: Recorder) -> tuple[str, ...]:
    """The operations that were asked for since the last look, each once, in their order."""
    names = tuple(dict.fromkeys(call.operation for call in requests.drain()))
    return tuple(name for name in names if name not in QUIET) or names


def judged(answer: Mapping[str, Any], rows: Sequence[Sequence[Any]] | None, refusal: str = "", known: str = "") -> str:
    """Say "works", "refused" where that was expected (`refusal` is a part of the error), or what is not as expected.

    A `known` fault of the client's, whose error has `refusal` in it, is named instead. If it has gone, that fails, too.
    """
    error = str(answer.get("error", ""))
    if known:
        expected = error and refusal in error
        return f"{THEIRS}{known}" if expected else f"fails: {_line(error) or 'works'}, not by {known}"
    if refusal:
        return REFUSED if refusal in error else f"fails: {_line(error) or 'not refused'}"
    if error:
        return f"fails: {_line(error)}"
    found = answer["rows"]
    if rows is not None and sorted(map(str, found)) != sorted(str(list(row)) for row in rows):
        return f"fails: {_line(str(found))} instead of {_line(str(list(rows)))}"
    return WORKS


def run_alone(what: str | None, observe: Callable[[], Sequence[Story]]) -> None:
    """The command of a module that observes: says how far it is, and ends with the calls that failed, if any did."""
    argparse.ArgumentParser(description=what, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("__main__").setLevel(logging.INFO)  # the module's own, since it was run by its name
    failed = [f"{story.title}: {one.call}" for story in observe() for one in story.seen if not one.fine]
    sys.exit("\n".join(["These calls failed:", *failed]) if failed else 0)


def markdown(stories: Sequence[Story]) -> str:
    """The observations as a table: a row for each call, a column for each server, and what the first was asked for."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    asked_for: dict[tuple[str, str], tuple[str, ...]] = {}
    for story in stories:
        for one in story.seen:
            found.setdefault((one.what, one.call), {})[story.title] = one.outcome
            asked_for.setdefault((one.what, one.call), one.operations)
    titles = [story.title for story in stories]
    lines = [f"| what | as it is written | {' | '.join(titles)} | asks for |", "|---" * (len(titles) + 3) + "|"]
    for (what, call), outcomes in found.items():
        cells = [_cell(outcomes.get(title, NOT_RUN)) for title in titles]
        asked_here = ", ".join(asked_for[what, call]) or NOT_RUN
        lines.append(f"| {what} | `{_cell(call)}` | {' | '.join(cells)} | {asked_here} |")
    return "\n".join(lines)


def _line(text: str) -> str:
    return " ".join(text.split())[:160]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
