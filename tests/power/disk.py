"""A disk that loses power: a mounted file system in a process of its own, and what its starter may do to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from tests.power.filesystem import CONTROL
from tests.power.kernel import unmount
from tests.power.strengths import Strength

HOME = Path(__file__).resolve().parents[2]


class Disk:
    """A folder that is on such a disk while it is mounted, and on the real one otherwise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[str] | None = None

    def mount(self, source: Path | None = None) -> Self:
        """Mount, empty or with a copy of a folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.power.filesystem", str(self.folder), *([str(source)] if source else [])],
            stdout=subprocess.PIPE,
            text=True,
            cwd=HOME,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", "the file system was not mounted"
        return self

    def unmount(self) -> None:
        """Unmount, if it is mounted; what was on it is gone."""
        if self._process is not None:
            unmount(str(self.folder))
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:  # something still has its folder open
                self._process.kill()
                self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def command(self, text: str) -> None:
        """Give a command of `FileSystem.control`."""
        os.setxattr(self.folder, CONTROL, text.encode())

    def report(self) -> dict[str, Any]:
        """Ask for the number of changes, and whether the power is cut."""
        return dict(json.loads(os.getxattr(self.folder, CONTROL)))

    @property
    def is_cut(self) -> bool:
        return bool(self.report()["cut"])

    def cut(self) -> None:
        """Cut the power: all that comes later fails."""
        self.command("cut")

    def arm(self, changes: int) -> None:
        """Cut the power after so many changes more."""
        self.command(f"arm {changes}")

    def keep(self, strength: Strength, seed: str | int, target: Path) -> Path:
        """Write what a loss of power leaves to a new folder of the real disk."""
        self.command(f"keep {strength} {seed} {target}")
        return target

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.unmount()
