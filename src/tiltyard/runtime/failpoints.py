"""Inject faults at named points, for tests only: kill the process, raise an error, or pause.

`TILTYARD_FAULT` has entries `point[=action][@file]`, separated by commas; without it a point costs one lookup in an
empty dict. The actions are `kill` (SIGKILL, the default), `raise` (an unexpected error), `panic` (as Rust's are raised
in Python), `unavailable` (a ServiceUnavailableError) and `hold` (wait while the file exists, and create
`<file>.reached` to report it). With a file, all but `hold` trigger only if it exists, and delete it first: so a test
chooses the moment, and a fault triggers once, also if the process is restarted.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from lance_namespace.errors import ServiceUnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE = "TILTYARD_FAULT"
_PAUSE_SECONDS = 0.005


class Point(StrEnum):
    """Points where a fault can be injected: of a write in the order it reaches them, of a backup, of a snapshot."""

    BEFORE_RECORD = "before_record"  # files are written, nothing is committed
    AFTER_RECORD = "after_record"  # the catalog has the commit, storage does not show it yet
    AFTER_FINALIZE = "after_finalize"  # committed for every reader, the caller has no result yet
    BEFORE_OPENING = "before_opening"  # committed on an object store, and about to be opened behind the response
    BETWEEN_CATALOGS = "between_catalogs"  # a table moves: one catalog has changed, the other has not yet
    BEFORE_ANSWER = "before_answer"  # the operation has returned, no byte of the response is sent
    BEFORE_BACKUP_COPY = "before_backup_copy"  # a backup has a snapshot of the catalog, and lacks a file of it
    BEFORE_BACKUP_POINT = "before_backup_point"  # a backup has all files, and is not one yet
    BEFORE_RESTORED_CATALOG = "before_restored_catalog"  # all files are restored, and the catalog is still empty
    BEFORE_TAGS = "before_tags"  # a snapshot is recorded as incomplete, to be made or dropped; its tags are as before
    BETWEEN_TAGS = "between_tags"  # the tag of a table is made or deleted, another table's is not yet
    AFTER_TAGS = "after_tags"  # all tags are made or deleted, the snapshot is still recorded as incomplete
    BEFORE_SCHEDULED_JOB = "before_scheduled_job"  # a due schedule is claimed, and its job is not queued yet


class Action(StrEnum):
    """What a fault does."""

    KILL = "kill"
    RAISE = "raise"
    PANIC = "panic"
    UNAVAILABLE = "unavailable"
    HOLD = "hold"


class FaultError(RuntimeError):
    """Raised at a point by the action `raise`."""


class PanicException(BaseException):  # named and derived as that of Rust's code
    """Raised at a point by the action `panic`."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault at one point: its action, and the file that says when."""

    action: Action
    file: Path | None

    def trigger(self, point: Point) -> None:
        """Perform the action. Raises FaultError, PanicException, ServiceUnavailableError."""
        if self.action is Action.HOLD:
            if self.file is not None and self.file.exists():
                self.file.with_name(f"{self.file.name}.reached").touch()
                while self.file.exists():
                    time.sleep(_PAUSE_SECONDS)
            return
        if self.file is not None and not _claim(self.file):
            return
        if self.action is Action.RAISE:
            raise FaultError(f"a fault at {point}")
        if self.action is Action.PANIC:
            raise PanicException(f"a panic at {point}")
        if self.action is Action.UNAVAILABLE:
            raise ServiceUnavailableError(f"A fault at {point}.")
        os.kill(os.getpid(), signal.SIGKILL)


def parse(text: str) -> Mapping[Point, Fault]:
    """Parse the variable to faults by point. Raises ValueError for an unknown point or action."""
    faults = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        point_and_action, _, file = entry.partition("@")
        point, _, action = point_and_action.partition("=")
        faults[Point(point)] = Fault(Action(action or Action.KILL), Path(file) if file else None)
    return faults


def reach(point: Point) -> None:
    """Trigger the fault at a point, if the variable has one. Raises what the fault raises."""
    if (fault := _faults.get(point)) is not None:
        fault.trigger(point)


def _claim(file: Path) -> bool:
    """Delete a fault's file; return whether it existed: of several processes, one succeeds."""
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


_faults = parse(os.environ.get(VARIABLE, ""))
