"""Let Lance work in a child process, which can be killed while it is at work, and is killed when it stalls.

Lance trains and writes in native code that cannot be canceled, and a thread cannot be ended from outside. The child
(`builder`, or `tables.upkeep.maintainer`) commits through this process, which alone has the catalog and its secrets.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lance_namespace.errors import (
    ErrorCode,
    InternalError,
    LanceNamespaceError,
    ServiceUnavailableError,
    from_error_code,
)

from tiltyard.runtime.child_process import ChildProcess, end_idle
from tiltyard.runtime.system_memory import private_bytes
from tiltyard.tables.commits.child_commits import COMMIT_CALLS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tiltyard.storage.commit_route import CommitRoute

log = logging.getLogger("tiltyard.indexes")

POLL_SECONDS = 1.0
COMMAND = (sys.executable, "-m", "tiltyard.runtime.lazy_imports", "tiltyard.tables.indexes.builder")
"""The child's command. Importing without `lazy_imports` would take more processor time than a small build."""
_EXIT_SECONDS = 10.0
_BUSY_SHARE = 0.005
"""The share of a processor from which on a process is at work. One in which Lance waits for ever has a third of it: it
polls for signals ten times a second, which is counted as 10 ms of processor time every few seconds."""
_CPU_LAG_SECONDS = 0.03
"""Seconds of processor time that may be counted late."""
_QUEUED_SHARE = 0.25
"""The share of the time that threads have waited for a processor from which on a process is slow, and not stalled: on a
loaded machine a build runs for two thousandths of the time, and waits for a processor for the rest."""
_IDLE_SECONDS = 20.0
"""For how long a child in the background runs only while processors are idle."""
_SERVER_VARIABLES = "TILTYARD_"
"""Prefix of environment variables that the child does not get: they have the server's settings and secrets."""


class LanceProcess:
    """A child process that works on one table. Used as a context manager: it has ended after the block."""

    def __init__(
        self,
        request: DataclassInstance,
        commit_route: CommitRoute | None,
        command: Sequence[str] = COMMAND,
        *,
        background: bool = False,
        most_bytes: int = 0,
    ) -> None:
        """Start it; `commit_route` is how its commits reach a managed table.

        In the `background` it gets what others leave. One with more than `most_bytes` of memory is killed, 0: never.
        """
        self._commit_route = commit_route
        self._most_bytes = most_bytes
        self.progress: dict[str, str] = {}
        """What it has reported."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(_SERVER_VARIABLES)}
        self._process = ChildProcess(
            "Lance's work",
            "Builds an index, or tidies a table, and can be killed at it",
            command,
            text=True,
            variables=variables,
            background=background,
        )
        self._background = background
        self._result: dict[str, Any] = {}
        self._committing = False
        self._ended = threading.Event()
        self._send(asdict(request))
        self._listener = threading.Thread(target=self._listen, name="lance-process", daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        self._process.close()

    def wait(self, report: Callable[[], None], stall_seconds: float) -> None:
        """Wait until its work is committed; call `report` each second, and pass on what it raises.

        Raises ServiceUnavailableError for a process that was killed, or that stalled for `stall_seconds` (0: not
        checked), InsufficientMemoryError, and what the work raises.
        """
        stall = _Stall(Path(f"/proc/{self._process.pid}"), stall_seconds)
        started = time.monotonic()
        while not self._ended.wait(POLL_SECONDS):
            report()
            if self._background and time.monotonic() - started > _IDLE_SECONDS:
                end_idle(self._process.pid)
            stall.check(is_waiting=self._committing)
            self._check_memory()
        if "error" in self._result:
            raise from_error_code(**self._result["error"])
        if "done" not in self._result:
            status = self._exit_status()
            if status < 0:
                raise ServiceUnavailableError(f"The process that worked on the table was ended by signal {-status}.")
            raise RuntimeError(f"The process that worked on the table ended with status {status}.")

    def _check_memory(self) -> None:
        used = private_bytes(self._process.pid)
        if self._most_bytes and used > self._most_bytes:
            raise InsufficientMemoryError(
                f"The work took more than {self._most_bytes >> 20} MiB of memory, and was ended."
            )

    def _exit_status(self) -> int:
        """Return the exit status; negative for a signal. A process that has closed its output is about to end."""
        return self._process.wait(_EXIT_SECONDS)

    def _listen(self) -> None:
        """Serve the commit calls of the process, and take its result, until it closes its output."""
        try:
            for line in self._process.stdout:
                message = json.loads(line)
                if "call" in message:
                    self._committing = True
                    self._send(self._run_call(message["call"], message["request"]))
                    self._committing = False
                elif "progress" in message:
                    self.progress |= message["progress"]
                else:
                    self._result = message
        except OSError as error:  # it ended while a message was sent to it
            log.info("a process that works on a table ended: %s", error)
        finally:
            self._ended.set()

    def _run_call(self, call: str, request: dict[str, Any]) -> dict[str, Any]:
        assert self._commit_route is not None
        assert call in COMMIT_CALLS
        try:
            return {"response": dict(getattr(self._commit_route.client, call)(request))}
        except LanceNamespaceError as error:
            return {"error": {"code": int(error.code), "message": str(error)}}
        except Exception:
            log.exception("a commit of a process that works on a table failed")
            return {"error": {"code": int(ErrorCode.INTERNAL), "message": "The commit failed; the log says why."}}

    def _send(self, message: dict[str, Any]) -> None:
        self._process.stdin.write(json.dumps(message) + "\n")


class InsufficientMemoryError(InternalError):
    """A process was ended because it took too much memory: to try again at once does not help."""


class _Stall:
    """Detect that a process has stalled: it has neither run, nor waited for a processor."""

    def __init__(self, process: Path, seconds: float) -> None:
        """`process` is its folder in /proc; `seconds` is how long it may stall, 0 for any time."""
        self._process, self._seconds = process, seconds
        self._queued: dict[str, float] = {}
        self._busy_at, self._used, self._waited = time.monotonic(), 0.0, 0.0

    def check(self, *, is_waiting: bool) -> None:
        """Read its processor times. Raises ServiceUnavailableError, unless it `is_waiting` for this process."""
        used = _cpu_seconds(self._process)
        if not self._seconds or used is None:
            return
        now = time.monotonic()
        passed = now - self._busy_at
        self._waited += self._newly_queued()
        if (
            is_waiting
            or used - self._used > _BUSY_SHARE * passed + _CPU_LAG_SECONDS
            or self._waited > _QUEUED_SHARE * passed + _CPU_LAG_SECONDS
        ):
            self._busy_at, self._used, self._waited = now, used, 0.0
        elif passed >= self._seconds:
            raise ServiceUnavailableError(
                f"The work made no progress for {self._seconds:.0f} s, and used no processor time."
            )

    def _newly_queued(self) -> float:
        """Return for how long threads have waited for a processor since the last check, all together."""
        queued = _queued_seconds(self._process)
        newly = sum(max(0.0, seconds - self._queued.get(thread, 0.0)) for thread, seconds in queued.items())
        self._queued = queued
        return newly


def _cpu_seconds(process: Path) -> float | None:
    """Return the processor time that a process has used; None where the system does not report it, or it has ended."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _queued_seconds(process: Path) -> dict[str, float]:
    """Return for how long each thread of a process has waited for a processor; none where that is not reported."""
    queued: dict[str, float] = {}
    for thread in (process / "task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            queued[thread.parent.name] = int(thread.read_text().split()[1]) / 1e9
    return queued
