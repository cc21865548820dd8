"""The run of a job: report progress, detect cancellation, and save checkpoints for a driver that resumes it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from tiltyard.model.refusals import RefusedError


class RunCanceledError(Exception):
    """The job was canceled, or another driver has taken over its lease: stop, and commit nothing."""


class Run(Protocol):
    """The run that a job function receives. `id` is unique, and stays the same when the job is resumed."""

    @property
    def id(self) -> str:
        """Return the unique id; the job's Lance transactions carry it as a property."""

    def progress(self, **figures: object) -> None:
        """Set figures of the run (`rows=…, rows_total=…, fragments=…`). Raises RunCanceledError, after setting them.

        `version` is that of a commit: a job that is canceled after setting it has committed something.
        """

    def check(self) -> None:
        """Raise RunCanceledError once the job has to stop."""

    def checkpoints(self) -> Mapping[str, str]:
        """Return the checkpoints that earlier drivers of this run saved, by key."""

    def save_checkpoint(self, key: str, value: str) -> None:
        """Save a checkpoint durably before this returns; `value` is text, JSON by convention."""


class ColumnRun(Run, Protocol):
    """The run of a job that fills a column, which a registered function may compute."""

    def read_function(self) -> Mapping[str, Any]:
        """Return the registered function that computes the job's column, with its source and its secrets.

        Raises lance_namespace.errors (it was dropped, a lost privilege), RefusedError where no catalog runs the job.
        """

    def record_errors(self, **fields: Any) -> None:
        """Record the rows of a fragment that a function failed on: the fields of RecordFunctionErrors."""


@dataclass(slots=True)
class LocalRun:
    """A run without a server: its checkpoints end with the process."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    figures: dict[str, str] = field(default_factory=dict)
    canceled: threading.Event = field(default_factory=threading.Event)
    errors: list[Mapping[str, Any]] = field(default_factory=list)
    _checkpoints: dict[str, str] = field(default_factory=dict)

    def progress(self, **figures: object) -> None:
        self.figures.update({name: str(value) for name, value in figures.items()})
        self.check()

    def check(self) -> None:
        """Raise RunCanceledError once `canceled` is set."""
        if self.canceled.is_set():
            raise RunCanceledError(self.id)

    def checkpoints(self) -> Mapping[str, str]:
        return dict(self._checkpoints)

    def save_checkpoint(self, key: str, value: str) -> None:
        self._checkpoints[key] = value

    def read_function(self) -> Mapping[str, Any]:
        raise RefusedError("A registered function is run by a job of the catalog: submit it there.")

    def record_errors(self, **fields: Any) -> None:
        self.errors.append(fields)


def describe_canceled(name: str, figures: Mapping[str, str]) -> str:
    """Return the sentence on a run that was canceled; `version` among its figures is that of a commit of its own."""
    version = figures.get("version")
    state = f"what it had committed by then stays (version {version})" if version else "nothing was committed"
    return f"{name} was canceled: {state}."
