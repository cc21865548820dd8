"""The steps of a model that others can see: those of a simulation, and whether the model has a history of a server."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tests.models.spin import SECONDS, Model, prepare

if TYPE_CHECKING:
    from collections.abc import Sequence

STOP = "STOP"
SELDOM = "SELDOM"
"""The switch of simulations: stops are seldom, and what the replayed servers do not do is left out."""
_STEP = re.compile(r"^STEP (\d+) (\w+) (\d+) (\d+)$", re.MULTILINE)
_ACTIONS = re.compile(r"^mtype = \{([\w, \n]+)\}", re.MULTILINE)
_COMPILER = ("gcc", "-w", "-O0", "-DSAFETY", "-DNOREDUCE", "-DMEMLIM=2000", "-o", "find", "pan.c")
"""Partial orders are not reduced: what a step of the history has to follow is no part of the model's state for Spin."""
_MAX_STEPS = 10_000


@dataclass(frozen=True, slots=True)
class Step:
    """An action that one process took: what came of it, and the whole state after it, both as numbers of the model."""

    who: int
    action: str
    outcome: int
    state: int

    def __str__(self) -> str:
        return f"{self.who} {self.action} -> {self.outcome}, state {self.state}"


@dataclass(frozen=True, slots=True)
class Trace:
    """The steps of a simulation; `is_broken` if a promise of the model did not hold at their end."""

    steps: tuple[Step, ...]
    is_broken: bool


def simulate(model: Model, folder: Path, seed: int, twin: str | None = None) -> Trace:
    """Take the steps of a model, or a twin, in an order that the seed decides. Raises ValueError if it is refused."""
    if not (folder / "model.pml").exists():
        prepare(model, folder)
    switches = [] if twin is None else [f"-D{twin}"]
    command = ("spin", "-T", f"-n{seed}", f"-u{_MAX_STEPS}", f"-D{SELDOM}", *switches, "model.pml")
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False).stdout
    is_broken = "assertion violated" in said
    if "processes created" not in said or ("Error" in said and not is_broken):
        raise ValueError(f"{' '.join(command)} failed:\n{said}")
    return Trace(tuple(_read_steps(said)), is_broken)


def refute(model: Model, folder: Path, twin: str) -> Trace:
    """Return the steps by which Spin refutes a twin. Raises ValueError if it does not."""
    if not model.check(folder, twin, SELDOM).broken:
        raise ValueError(f"{twin} is not refuted")
    command = ("spin", "-T", "-t", f"-D{SELDOM}", f"-D{twin}", "model.pml")
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False).stdout
    return Trace(tuple(_read_steps(said)), is_broken=True)


def _read_steps(said: str) -> list[Step]:
    return [Step(int(who), action, int(outcome), int(state)) for who, action, outcome, state in _STEP.findall(said)]


@dataclass(frozen=True)
class HistoryChecker:
    """Tells whether a model has the steps of a history, in their order; `folder` is an empty one to work in."""

    model: Model
    folder: Path

    @cached_property
    def actions(self) -> dict[str, int]:
        """The numbers that Spin gives the actions of the model: the last one that is named has 1."""
        match = _ACTIONS.search(self.model.path.read_text())
        assert match is not None
        names = [name.strip() for name in match[1].split(",")]
        return {name: len(names) - index for index, name in enumerate(names)}

    def has(self, history: Sequence[Step]) -> bool:
        """Return whether some execution of the model takes these steps and no others, as far as they go."""
        if not history:
            return True
        if not (self.folder / "find").exists():
            self._compile()
        numbers = [number for step in history for number in (self._number(step), step.state)]
        (self.folder / "history").write_text(" ".join(map(str, numbers)))
        command = ("./find", "-A", "-E", "-m100000", "-w14")
        said = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=SECONDS, check=False)
        if "ACCEPTED" in said.stdout:
            return True
        if "errors: 0" not in said.stdout or "max search depth too small" in said.stdout:
            raise ValueError(f"{self.model.name} was not looked at to its end:\n{said.stdout}{said.stderr}")
        return False

    def _number(self, step: Step) -> int:
        return (step.who * 64 + self.actions[step.action]) * 16 + step.outcome

    def _compile(self) -> None:
        prepare(self.model, self.folder)
        for command in (("spin", "-a", "-DHISTORY", "model.pml"), _COMPILER):
            done = subprocess.run(
                command, cwd=self.folder, capture_output=True, text=True, timeout=SECONDS, check=False
            )
            if done.returncode != 0:
                raise ValueError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
