"""Inject faults at named points, for tests only: kill the process, raise an error, or pause.

`TILTYARD_FAULT` has entries `point[=action][@file]`, separated by commas; without it a point costs one lookup in an
empty dict. The actions are `kill` (SIGKILL, the default), `raise` (an unexpected error), `panic` (as Rust's are raised
in Python), `unavailable` (a ServiceUnavailableError) and `hold` (wait while the file exists, and create
`<file>.reached` to report it). With a file, all but `hold` trigger only if it exists, and delete it first: so a test
chooses the moment, and a fault triggers once, also if the process is restarted. A number in the file is how often its
point is passed before; the place of the fault is then written to `<file>.reached`. `note` appends places to its file.

The point `write` is every write to a database or a disk: what the store, object stores and Lance do passes `reach`, and
what Python does to files is seen by an audit hook, which only a process with that point has.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

VARIABLE = "TILTYARD_FAULT"
_PAUSE_SECONDS = 0.005


class Point(StrEnum):
    """Points where a fault can be injected: of a commit in its order, of other work, and every write."""

    BEFORE_RECORD = "before_record"  # files are written, nothing is committed
    AFTER_RECORD = "after_record"  # the catalog has the commit, storage does not show it yet
    AFTER_FINALIZE = "after_finalize"  # committed for every reader, the caller has no result yet
    BEFORE_OPENING = "before_opening"  # committed on an object store, and about to be opened behind the response
    BETWEEN_CATALOGS = "between_catalogs"  # a table moves: one catalog has changed, the other has not yet
    BEFORE_ANSWER = "before_answer"  # the operation has returned, no byte of the response is sent
    BEFORE_BACKUP_COPY = "before_backup_copy"  # a backup has a snapshot of the catalog, and lacks a file of it
    BEFORE_BACKUP_POINT = "before_backup_point"  # a backup has all files, and is not one yet
    BEFORE_RESTORED_CATALOG = "before_restored_catalog"  # all files are restored, and the catalog is still empty
    BEFORE_SCHEDULED_JOB = "before_scheduled_job"  # a due schedule is claimed, and its job is not queued yet
    EVENT_SENT = "event_sent"  # a sink has an event, which the catalog does not know yet
    WRITE = "write"  # something is about to be written to the database, to a disk, or to an object store


class Action(StrEnum):
    """What a fault does."""

    KILL = "kill"
    RAISE = "raise"
    PANIC = "panic"
    UNAVAILABLE = "unavailable"
    HOLD = "hold"
    NOTE = "note"


class FaultError(RuntimeError):
    """Raised at a point by the action `raise`."""


class PanicException(BaseException):  # named and derived as that of Rust's code
    """Raised at a point by the action `panic`."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at one point: its action, and the file that says when."""

    action: Action
    file: Path | None
    _passed: list[None] = field(default_factory=list, compare=False)
    """As long as the point was passed while the file was there: appending is atomic in all threads."""

    def trigger(self, point: Point) -> None:
        """Perform the action. Raises FaultError, PanicException, ServiceUnavailableError."""
        if getattr(_own, "is_triggering", False):  # a fault writes files itself
            return
        _own.is_triggering = True
        try:
            self._perform(point)
        finally:
            _own.is_triggering = False

    def _perform(self, point: Point) -> None:
        if self.action is Action.HOLD:
            if self.file is not None and self.file.exists():
                self.file.with_name(f"{self.file.name}.reached").touch()
                while self.file.exists():
                    time.sleep(_PAUSE_SECONDS)
            return
        if self.action is Action.NOTE:
            self._note()
            return
        if self.file is not None and not self._claim(self.file):
            return
        if self.action is Action.RAISE:
            raise FaultError(f"a fault at {point}")
        if self.action is Action.PANIC:
            raise PanicException(f"a panic at {point}")
        if self.action is Action.UNAVAILABLE:
            from lance_namespace.errors import ServiceUnavailableError  # noqa: PLC0415  # not for tasks: it takes a second

            raise ServiceUnavailableError(f"A fault at {point}.")
        os.kill(os.getpid(), signal.SIGKILL)

    def _note(self) -> None:
        if self.file is not None and self.file.exists():
            with self.file.open("a") as notes:
                notes.write(f"{_place()}\n")

    def _claim(self, file: Path) -> bool:
        """Delete the fault's file once its number is reached; return whether it was: of several processes, one is."""
        try:
            number = file.read_text()
            if number:
                self._passed.append(None)
                if len(self._passed) <= int(number):
                    return False
            file.unlink()
        except FileNotFoundError:
            return False
        if number:
            file.with_name(f"{file.name}.reached").write_text(_place())
        return True


def parse(text: str) -> Mapping[Point, Fault]:
    """Parse the variable to faults by point. Raises ValueError for an unknown point or action."""
    faults = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        point_and_action, _, file = entry.partition("@")
        point, _, action = point_and_action.partition("=")
        faults[Point(point)] = Fault(Action(action or Action.KILL), Path(file) if file else None)
    return faults


def arm(text: str) -> None:
    """Inject the faults of a text, and no others, from now on. Raises as `parse` does."""
    global _faults  # noqa: PLW0603  # faults are of the process
    _faults = parse(text)
    if Point.WRITE in _faults:
        sys.addaudithook(_see_write)


def reach(point: Point) -> None:
    """Trigger the fault at a point, if the variable has one. Raises what the fault raises."""
    if (fault := _faults.get(point)) is not None:
        fault.trigger(point)


def _see_write(event: str, arguments: tuple[object, ...]) -> None:
    """Reach the point of writes before Python changes a file or a folder."""
    if event in _FILE_CHANGES or (event == "open" and _opens_for_writing(*arguments)):
        reach(Point.WRITE)


def _opens_for_writing(file: object, _mode: object, flags: object, *_: object) -> bool:
    is_opened_already = isinstance(file, int)
    return not is_opened_already and isinstance(flags, int) and bool(flags & _WRITING)


def _place() -> str:
    """Return the functions of this package that the calling thread is in, the innermost first, as `module:function`."""
    frame, names = sys._getframe(1), list[str]()  # there is no other way to a thread's frames
    caller: FrameType | None = frame
    while caller is not None:
        module = caller.f_globals.get("__name__", "")
        if module.startswith("tiltyard.") and module != __name__:
            names.append(f"{module.removeprefix('tiltyard.')}:{caller.f_code.co_qualname}")
        caller = caller.f_back
    return " < ".join(names)


_FILE_CHANGES = frozenset({"os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.truncate"})
"""Events of `sys.audit` before which nothing is changed yet."""
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_own = threading.local()
"""Whether a thread is triggering a fault."""
_faults: Mapping[Point, Fault] = {}
arm(os.environ.get(VARIABLE, ""))
