"""Faults at named points, for tests alone: a process dies, an error comes up, or time stands still.

`TILTYARD_FAULT` holds entries `point[=action][@file]`, parted by commas; without it a point costs one look into an
empty dict. The actions are `kill` (SIGKILL, the default), `raise` (an error that nobody foresaw), `unavailable` (a
ServiceUnavailableError) and `hold` (wait for as long as the file is there, and make one named `<file>.reached` to say
so). With a file, `kill`, `raise` and `unavailable` strike only if it is there, and delete it first: so a test chooses
the moment, and a fault strikes once, whatever is started again.
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
    """Where a write may be struck, in the order in which it passes."""

    BEFORE_RECORD = "before_record"  # files are written, nothing is committed
    AFTER_RECORD = "after_record"  # the catalog has the commit, storage does not show it yet
    AFTER_FINALIZE = "after_finalize"  # committed for every reader, nobody was told
    BEFORE_ANSWER = "before_answer"  # the operation has returned, no byte of the answer is sent


class Action(StrEnum):
    """What happens at a point."""

    KILL = "kill"
    RAISE = "raise"
    UNAVAILABLE = "unavailable"
    HOLD = "hold"


class FaultError(RuntimeError):
    """Raised at a point on purpose."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at one point, and the file that says when."""

    action: Action
    file: Path | None

    def strike(self, point: Point) -> None:
        """Do it. Raises FaultError, ServiceUnavailableError."""
        if self.action is Action.HOLD:
            if self.file is not None and self.file.exists():
                self.file.with_name(f"{self.file.name}.reached").touch()
                while self.file.exists():
                    time.sleep(_PAUSE_SECONDS)
            return
        if self.file is not None and not _taken(self.file):
            return
        if self.action is Action.RAISE:
            raise FaultError(f"a fault at {point}")
        if self.action is Action.UNAVAILABLE:
            raise ServiceUnavailableError(f"A fault at {point}.")
        os.kill(os.getpid(), signal.SIGKILL)


def parse(text: str) -> Mapping[Point, Fault]:
    """Faults by point. Raises ValueError for a point or an action that does not exist."""
    faults = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        what, _, file = entry.partition("@")
        point, _, action = what.partition("=")
        faults[Point(point)] = Fault(Action(action or Action.KILL), Path(file) if file else None)
    return faults


def reach(point: Point) -> None:
    """Pass a point: nothing happens unless the variable names it. Raises what the fault raises."""
    if (fault := _faults.get(point)) is not None:
        fault.strike(point)


def _taken(file: Path) -> bool:
    """Whether this process deleted the file: of several one does."""
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


_faults = parse(os.environ.get(VARIABLE, ""))
