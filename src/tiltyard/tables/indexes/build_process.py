"""Build an index in a process of its own, which can be ended while Lance is at work, and is if it stands still.

Lance trains and writes in native code that hears of no cancel, and a thread cannot be ended from outside. The process
(`index_builder`) commits through this one, which alone knows the catalog and its secrets.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lance_namespace.errors import ErrorCode, LanceNamespaceError, ServiceUnavailableError, from_error_code

from tiltyard.tables.indexes.builder import COMMIT_CALLS, ProcessOrder

if TYPE_CHECKING:
    from tiltyard.storage.commit_route import CommitRoute

log = logging.getLogger("tiltyard.indexes")

LOOK_SECONDS = 1.0
COMMAND = (sys.executable, "-m", "tiltyard.runtime.lazy_imports", "tiltyard.tables.indexes.builder")
"""What builds an index. To import without `lazy_imports` would take more of the processor than small builds do."""
_END_SECONDS = 10.0
_BUSY = 0.005
"""The share of a processor from which on a process is at work. One in which Lance waits for ever has a third of it: it
looks for signals ten times a second, which is counted as 10 ms of processor time every few seconds."""
_COUNTED = 0.03
"""Seconds of processor time that may be counted late."""
_QUEUED = 0.25
"""The share of its time that threads have waited for a processor from which on a process is slow, and does not stand
still: on a loaded machine a build is run for two thousandths of the time, and waits for its turn for the rest."""
_OWN_VARIABLES = "TILTYARD_"


class IndexProcess:
    """A process that builds one index. Used as a context manager: it has ended behind the block."""

    def __init__(self, order: ProcessOrder, commit_route: CommitRoute | None) -> None:
        """Start it; `road` is how its commits reach a managed table."""
        self._road = commit_route
        variables = {name: value for name, value in os.environ.items() if not name.startswith(_OWN_VARIABLES)}
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, text=True, bufsize=1, env=variables)  # noqa: S603  # this program itself
        self._result: dict[str, Any] = {}
        self._committing = False
        self._ended = threading.Event()
        self._tell(asdict(order))
        self._listener = threading.Thread(target=self._listen, name="index-process", daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()

    def wait(self, report: Callable[[], None], stall_seconds: float) -> None:
        """Wait until the index is committed; call `report` each second, and pass on what it raises.

        Raises ServiceUnavailableError for a process that was killed, or that did nothing for `stall_seconds` (0: that
        is not looked at), and what the build raises.
        """
        stall = _Stall(Path(f"/proc/{self._process.pid}"), stall_seconds)
        while not self._ended.wait(LOOK_SECONDS):
            report()
            stall.check(waits=self._committing)
        if "error" in self._result:
            raise from_error_code(**self._result["error"])
        if "done" not in self._result:
            status = self._exit_status()
            if status < 0:
                raise ServiceUnavailableError(f"The process that built the index was ended by signal {-status}.")
            raise RuntimeError(f"The process that built the index ended with status {status}.")

    def _exit_status(self) -> int:
        """Return it; negative for a signal. A process that has closed its output is about to end."""
        try:
            return self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _listen(self) -> None:
        """Answer what the process asks, until it closes its output."""
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                message = json.loads(line)
                if "call" in message:
                    self._committing = True
                    self._tell(self._answer(message["call"], message["request"]))
                    self._committing = False
                else:
                    self._result = message
        except OSError as error:  # it was ended while it was told something
            log.info("the process that builds an index has gone: %s", error)
        finally:
            self._ended.set()

    def _answer(self, call: str, request: dict[str, Any]) -> dict[str, Any]:
        assert self._road is not None
        assert call in COMMIT_CALLS
        try:
            return {"response": dict(getattr(self._road.client, call)(request))}
        except LanceNamespaceError as error:
            return {"error": {"code": int(error.code), "message": str(error)}}
        except Exception:
            log.exception("a commit of the process that builds an index failed")
            return {"error": {"code": int(ErrorCode.INTERNAL), "message": "The commit failed; the log says why."}}

    def _tell(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")


class _Stall:
    """How long a process has done nothing: neither was run, nor waited for its turn to be."""

    def __init__(self, process: Path, seconds: float) -> None:
        """`process` is its folder in /proc; `seconds` is how long it may do nothing, 0 for any time."""
        self._process, self._seconds = process, seconds
        self._queued: dict[str, float] = {}
        self._busy_at, self._used, self._waited = time.monotonic(), 0.0, 0.0

    def check(self, *, waits: bool) -> None:
        """Look at its times; `waits` says that it waits for us. Raises ServiceUnavailableError."""
        used = _cpu_seconds(self._process)
        if not self._seconds or used is None:
            return
        now = time.monotonic()
        passed = now - self._busy_at
        self._waited += self._newly_queued()
        if waits or used - self._used > _BUSY * passed + _COUNTED or self._waited > _QUEUED * passed + _COUNTED:
            self._busy_at, self._used, self._waited = now, used, 0.0
        elif passed >= self._seconds:
            raise ServiceUnavailableError(
                f"The index's build stood still for {self._seconds:.0f} s, without progress and without processor time."
            )

    def _newly_queued(self) -> float:
        """Return for how long threads have waited for a processor since the last look, all together."""
        queued = _queued_seconds(self._process)
        newly = sum(max(0.0, seconds - self._queued.get(thread, 0.0)) for thread, seconds in queued.items())
        self._queued = queued
        return newly


def _cpu_seconds(process: Path) -> float | None:
    """Return the processor time that a process has used, None where the system does not tell, or it has ended."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _queued_seconds(process: Path) -> dict[str, float]:
    """Return for how long each thread of a process has waited for a processor; none where the system does not tell."""
    queued: dict[str, float] = {}
    for thread in (process / "task").glob("*/schedstat"):
        with suppress(OSError):  # the thread has ended
            queued[thread.parent.name] = int(thread.read_text().split()[1]) / 1e9
    return queued
