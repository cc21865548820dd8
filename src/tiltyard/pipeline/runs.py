"""One run of a job: what it tells of its progress, how it hears of a cancel, and what it remembers if it dies."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


class RunCanceledError(Exception):
    """Somebody canceled the job, or another driver took it over: stop, and commit nothing."""


class Run(Protocol):
    """What a job is given besides its work. `id` is unique and stays the same when the job is resumed."""

    @property
    def id(self) -> str:
        """Unique; also written into the Lance transactions that the job commits."""

    def progress(self, **figures: object) -> None:
        """Set figures of the run (`rows=…, rows_total=…, fragments=…`). Raises RunCanceledError, with them set.

        `version` is that of a commit: a job that has told one and is canceled has committed something.
        """

    def check(self) -> None:
        """Raises RunCanceledError once the job has to stop."""

    def kept(self) -> Mapping[str, str]:
        """What earlier drivers of this run kept, by its key."""

    def keep(self, key: str, value: str) -> None:
        """Remember that a part is done, durably, before this returns; `value` is text, JSON by custom."""


@dataclass(slots=True)
class LocalRun:
    """A run that no server knows: its memory ends with the process."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    figures: dict[str, str] = field(default_factory=dict)
    canceled: threading.Event = field(default_factory=threading.Event)
    _kept: dict[str, str] = field(default_factory=dict)

    def progress(self, **figures: object) -> None:
        """Set figures. Raises RunCanceledError, with them set."""
        self.figures.update({name: str(value) for name, value in figures.items()})
        self.check()

    def check(self) -> None:
        """Raises RunCanceledError once `canceled` is set."""
        if self.canceled.is_set():
            raise RunCanceledError(self.id)

    def kept(self) -> Mapping[str, str]:
        """What was kept so far."""
        return dict(self._kept)

    def keep(self, key: str, value: str) -> None:
        """Remember a part for as long as the process lives."""
        self._kept[key] = value
