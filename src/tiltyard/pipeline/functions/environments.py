"""Environments of functions: a virtual environment for each set of packages, built once on a machine.

The driver resolves a function's requirements to exact versions (`lock_packages`), and every worker of the job installs
these. pip takes its index from its own settings (`pip.conf`, `PIP_INDEX_URL`), which are the operator's. An environment
also has the worker's own packages, behind those that it was built with: pyarrow is one of them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import site
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tiltyard.pipeline.task_errors import RefusedError

FOLDER_VARIABLE = "TILTYARD_FUNCTION_ENVIRONMENTS"
"""The variable that names the folder of the environments; without it, one below the system's temporary folder."""
BUILD_SECONDS = 900.0
_MESSAGE_LINES = 3
_PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.+!_-]+")


def python_for(python_version: str, packages: Sequence[str]) -> str:
    """Return the Python of an environment with exactly these packages; build it if the machine has it not yet.

    Raises RefusedError (another Python, packages that cannot be installed).
    """
    check_python(python_version)
    if not packages:
        return sys.executable
    folder = _folder() / _digest(packages)
    with _locked(folder):
        if not (folder / "bin" / "python").exists():
            _build(folder, ["--no-deps", *packages])
    return str(folder / "bin" / "python")


def lock_packages(python_version: str, requirements: Sequence[str]) -> tuple[str, ...]:
    """Resolve requirements; return all packages that they need, with their versions. Raises RefusedError."""
    check_python(python_version)
    if not requirements:
        return ()
    folder = _folder() / f"resolved-{_digest(requirements)}"
    with _locked(folder):
        if not (folder / "bin" / "python").exists():
            _build(folder, list(requirements))
        listed = _run([str(folder / "bin" / "python"), "-m", "pip", "--isolated", "freeze", "--local"])
    return tuple(sorted(line for line in listed.splitlines() if _PINNED.fullmatch(line)))


def check_python(python_version: str) -> None:
    """Raise RefusedError if a function asks for another Python than this one."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python_version != here:
        raise RefusedError(
            f"The function asks for Python {python_version}, and this worker has {here}: register it for that version."
        )


def _build(folder: Path, arguments: list[str]) -> None:
    """Build an environment beside its place, and move it there when it is whole."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--no-input", "--quiet", *arguments])
        [packages] = (folder / "lib").glob("python*/site-packages")
        (packages / "zz_worker.pth").write_text("\n".join(_own_packages()) + "\n")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _own_packages() -> list[str]:
    return [path for path in {*site.getsitepackages(), *sys.path} if path.endswith(("site-packages", "dist-packages"))]


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - our own Python, with names and versions that were checked
            command, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise RefusedError(f"The packages of the function were not installed within {BUILD_SECONDS:.0f} s.") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise RefusedError(f"The packages of the function cannot be installed: {' '.join(lines[-_MESSAGE_LINES:])}")
    return done.stdout


def _digest(packages: Sequence[str]) -> str:
    parts = [sys.version_info[:2], sys.prefix, sorted(packages)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _folder() -> Path:
    """Return the folder of the environments, which this user alone can write."""
    named = os.environ.get(FOLDER_VARIABLE)
    folder = Path(named) if named else Path(tempfile.gettempdir()) / f"tiltyard-functions-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise RefusedError(f"The folder {folder} belongs to another user: name one by {FOLDER_VARIABLE}.")
    return folder


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of an environment, so that one process builds it."""
    with folder.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
