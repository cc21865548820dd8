"""Check a model, or a broken twin of it, by Spin: `spin` writes a verifier in C, which looks at every state."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

MODELS = Path(__file__).parents[2] / "models"
SECONDS = 300
MAX_DEPTH = 100_000
_COMPILER = ("gcc", "-w", "-DSAFETY", "-DMEMLIM=2000", "-o", "verify", "pan.c")
"""A model's promises are of every state (`SAFETY`); it may take 2,000 MiB."""
_RESULT = re.compile(r"^State-vector .* errors: (\d+)$", re.MULTILINE)
_STATES = re.compile(r"^ *(\d+) states, stored", re.MULTILINE)
_CAUSE = re.compile(r"^pan:1: (.*) \(at depth (\d+)\)$", re.MULTILINE)
_TWIN = re.compile(r"\bBROKEN_\w+")
_ACTION = re.compile(r"\b(\w+) \(([\w/]+\.py)\)")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What Spin says of a model: how many states it has looked at, and the promise that does not hold, if one is found.

    `steps` leads from the beginning to where it is broken.
    """

    states: int
    broken: str = ""
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Model:
    """A model: a file of `models/`."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def twins(self) -> list[str]:
        """The names of its broken twins, which are switches of the preprocessor."""
        return sorted(set(_TWIN.findall(self.path.read_text())))

    @property
    def actions(self) -> list[tuple[str, str]]:
        """The functions whose actions it has: the name of each, and its file below `src/tiltyard`."""
        return sorted(set(_ACTION.findall(self.path.read_text())))

    def check(self, folder: Path, twin: str | None = None, *switches: str) -> Verdict:
        """Look at every state of the model, or of a twin. `folder` is an empty one to work in.

        `switches` are further ones of the preprocessor.

        Raises ValueError if Spin or the compiler refuses it, or not every state was looked at.
        """
        prepare(self, folder)
        named = [f"-D{switch}" for switch in (twin, *switches) if switch is not None]
        _run(folder, "spin", "-a", *named, "model.pml")
        _run(folder, *_COMPILER, "-O1" if twin is None else "-O0")  # a twin is refuted early: what costs is to compile
        said = _run(folder, "./verify", f"-m{MAX_DEPTH}")
        result, states = _RESULT.search(said), _STATES.search(said)
        if result is None or states is None or "max search depth too small" in said or "out of memory" in said:
            raise ValueError(f"{self.name} was not looked at to its end:\n{said}")
        if result[1] == "0":
            return Verdict(int(states[1]))
        cause = _CAUSE.search(said)
        if cause is None:
            raise ValueError(f"{self.name} is broken, and Spin does not say where:\n{said}")
        return Verdict(int(states[1]), cause[1], int(cause[2]))


def models() -> list[Model]:
    """Return all models."""
    return [Model(path) for path in sorted(MODELS.glob("*.pml"))]


def is_installed() -> bool:
    """Return whether this machine has Spin, and a compiler for its verifiers."""
    return shutil.which("spin") is not None and shutil.which("gcc") is not None


def prepare(model: Model, folder: Path) -> None:
    """Copy a model to a folder to work in, with what it includes."""
    shutil.copy(model.path, folder / "model.pml")
    for header in MODELS.glob("*.h"):
        shutil.copy(header, folder)


def _run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS, check=False)
    said = done.stdout + done.stderr
    if done.returncode != 0 or "Error:" in said:
        raise ValueError(f"{' '.join(command)} failed:\n{said}")
    return said
