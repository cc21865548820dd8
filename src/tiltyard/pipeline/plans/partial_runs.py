"""A part of a run: what it keeps and tells does not mix with the other parts'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tiltyard.pipeline.runs import Run


@dataclass(frozen=True, slots=True)
class PartOfRun:
    """The part `name` of `whole`. What it keeps belongs to one attempt: another one begins with nothing kept."""

    whole: Run
    attempt: int
    name: str

    @property
    def id(self) -> str:
        """Unique, and the same in all attempts: commits and the names of files with rejected rows have it."""
        return f"{self.whole.id}-{self.name}"

    def progress(self, **figures: object) -> None:
        """Set figures of the whole run, without their totals: how far that is, its steps say."""
        told = {name: value for name, value in figures.items() if not name.endswith("_total")}
        stage = f"{self.name}: {told.pop('stage')}" if "stage" in told else self.name
        if "guessed" in told:
            told[f"guessed:{self.name}"] = told.pop("guessed")
        self.whole.progress(**told, stage=stage)

    def check(self) -> None:
        """Raises RunCanceledError once the run has to stop."""
        self.whole.check()

    def checkpoints(self) -> Mapping[str, str]:
        """What this part has kept in this attempt."""
        return {
            key.removeprefix(self._mark): text
            for key, text in self.whole.checkpoints().items()
            if key.startswith(self._mark)
        }

    def save_checkpoint(self, key: str, value: str) -> None:
        """Remember that something is done."""
        self.whole.save_checkpoint(f"{self._mark}{key}", value)

    @property
    def _mark(self) -> str:
        return f"{self.attempt}/{self.name}/"
