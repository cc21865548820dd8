"""Install the packages of a client that needs others than this environment has, into a folder beside it."""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
from functools import cache
from pathlib import Path


class NoWheelError(Exception):
    """A package, or the Python that it is for, is not there for this platform."""


@cache
def install(folder: Path, requirements: Path, python: str = sys.executable) -> Path:
    """Install exactly what a file requires, where it is not there; return the folder for PYTHONPATH.

    Raises NoWheelError; RuntimeError, with uv's text, where it fails otherwise.
    """
    folder.mkdir(parents=True, exist_ok=True)
    packages, done = folder / "python", folder / "installed.txt"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.exists() and done.read_text() == requirements.read_text():
            return packages
        command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", python]
        exactly = ["--require-hashes", "--no-deps", "--no-build-isolation", "--requirement", str(requirements)]
        installing = subprocess.run(
            [*command, "--target", str(packages), *exactly], check=False, capture_output=True, text=True
        )
        if installing.returncode and re.search(r"has\s+no\s+(usable\s+)?wheels", installing.stderr):
            raise NoWheelError(f"A package of {requirements.name} has no wheel for this platform.")
        if installing.returncode:
            raise RuntimeError(f"{requirements.name} could not be installed: {installing.stderr}")
        done.write_text(requirements.read_text())
    return packages


@cache
def find_python(version: str) -> str:
    """Return the path of a Python of this version that the machine has. Raises NoWheelError."""
    command = [sys.executable, "-m", "uv", "python", "find", "--no-python-downloads", "--no-project", version]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    if found.returncode:
        raise NoWheelError(f"There is no Python {version} here: `uv python install {version}` installs it.")
    return found.stdout.strip()


def versions(requirements: Path) -> dict[str, str]:
    """Return the version of each package that a file requires."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", requirements.read_text(), re.MULTILINE))
