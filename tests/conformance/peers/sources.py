"""Find the sources of other projects' tests, at the commits that their lists were made for."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

FOLDER = "PEER_SUITES"
"""The environment variable that names a folder with a checkout of each project."""
CACHE = Path(__file__).parents[3] / ".venv/peers"
PACKAGES = Path(__file__).parent / "packages.txt"
"""What the suites need besides the packages of this project's environment; installed into a folder of its own."""
GIT_SECONDS = 300


class SourcesMissingError(Exception):
    """The sources of a project are not here, and cannot be fetched; the message says so in one line."""


@dataclass(frozen=True, slots=True)
class Project:
    """A project whose tests are run: its name, where its repository is, and the commit that is run."""

    name: str
    repository: str
    commit: str
    version: str

    def checkout(self) -> Path:
        """Return a folder with its sources: below PEER_SUITES, or fetched. Raises SourcesMissingError."""
        if folder := os.environ.get(FOLDER):
            path = Path(folder) / self.name
            if not path.is_dir():
                raise SourcesMissingError(f"{FOLDER} has no folder {self.name}")
            self._check_commit(path)
            return path
        path = CACHE / self.name
        if not (path / ".complete").exists():
            self._fetch(path)
        return path

    def _check_commit(self, path: Path) -> None:
        found = _git(path, "rev-parse", "HEAD")
        if found is not None and found.strip() != self.commit:
            raise SourcesMissingError(f"{path} is at {found.strip()[:9]}, not at {self.commit[:9]} ({self.version})")

    def _fetch(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        for arguments in (
            ("init", "--quiet"),
            ("fetch", "--quiet", "--depth", "1", self.repository, self.commit),
            ("checkout", "--quiet", "--force", "FETCH_HEAD"),
        ):
            if _git(path, *arguments) is None:
                raise SourcesMissingError(f"git cannot fetch {self.repository}, and {FOLDER} names no checkouts")
        (path / ".complete").touch()


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git writes; None where it fails or takes too long."""
    environ = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", "-C", str(folder), "-c", f"safe.directory={folder}", *arguments]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False, env=environ, timeout=GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if run.returncode else run.stdout


def install_packages(python: str) -> Path:
    """Install what the suites need, without dependencies, and return the folder. Raises SourcesMissingError."""
    target = CACHE / "packages"
    stamp = target / ".complete"
    wanted = PACKAGES.read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--upgrade"]
        run = subprocess.run(
            [*command, "--target", str(target), "-r", str(PACKAGES)], capture_output=True, check=False, text=True
        )
        if run.returncode:
            raise SourcesMissingError(f"pip cannot install {PACKAGES.name}: {run.stderr.strip().splitlines()[-1]}")
        stamp.write_text(wanted)
    return target
