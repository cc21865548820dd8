"""Environments of functions: a virtual environment for each set of packages, built once on a machine.

The driver resolves a function's requirements to exact versions and the hashes of their files (`lock_packages`), and
every worker of the job installs these files, or none. pip takes its index from its own settings (`pip.conf`,
`PIP_INDEX_URL`), which are the operator's. An environment also has the worker's own packages, behind those that it was
built with: pyarrow is one of them.

Environments are kept for later jobs in a folder of bounded size: those that were used least recently are removed. A
process holds a shared lock on each environment that it uses, and an exclusive one to build or to remove it.
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
from typing import IO

from tiltyard.model.refusals import RefusedError
from tiltyard.runtime.child_process import run_command

FOLDER_VARIABLE = "TILTYARD_FUNCTION_ENVIRONMENTS"
"""The variable that names the folder of the environments; without it, one below the system's temporary folder."""
MAX_BYTES = 20 << 30
"""Bytes of all environments that are kept; those in use are kept in any case."""
BUILD_SECONDS = 900.0
_MESSAGE_LINES = 3
_SIZE_FILE = ".bytes"
_HASH = re.compile(r" --hash=sha256:([0-9a-f]{64})")

_in_use: dict[Path, IO[str]] = {}
"""The environments that this process uses, with the files whose shared locks it holds until it ends."""


def python_for(python_version: str, packages: Sequence[str]) -> str:
    """Return the Python of an environment with exactly these locked packages; build it if the machine has it not yet.

    Raises RefusedError (another Python, packages that cannot be installed, a file with another hash).
    """
    check_python(python_version)
    if not packages:
        return sys.executable
    folder = _folder() / _digest(packages)
    python = folder / "bin" / "python"
    is_new = False
    while folder not in _in_use:
        file = _lock_file(folder).open("a")
        fcntl.flock(file, fcntl.LOCK_SH)
        if python.exists():
            _in_use[folder] = file
            os.utime(file.name)
            break
        file.close()
        with _locked(folder):
            if not python.exists():
                _build(folder, packages)
                is_new = True
    if is_new:
        _remove_unused(folder.parent)
    return str(python)


def lock_packages(python_version: str, requirements: Sequence[str]) -> tuple[str, ...]:
    """Resolve requirements; return all packages that they need, with their versions and the hashes of their files.

    A requirement may name the hashes that its file may have. Resolutions are kept for later jobs. Raises RefusedError.
    """
    check_python(python_version)
    if not requirements:
        return ()
    resolution = _folder() / f"resolved-{_digest(requirements)}.json"
    with _locked(resolution):
        if not resolution.exists():
            locked = _resolve(requirements)
            temporary = resolution.with_suffix(".part")
            temporary.write_text(json.dumps(locked))
            temporary.replace(resolution)
        return tuple(json.loads(resolution.read_text()))


def _resolve(requirements: Sequence[str]) -> list[str]:
    """Ask pip what it would install into an empty environment. Raises RefusedError."""
    names = [_HASH.sub("", requirement) for requirement in requirements]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--no-input", "--quiet", "--dry-run", "--ignore-installed", "--report", str(report)]
        _run([*_pip(_folder()), "install", *options, *names])
        entries = json.loads(report.read_text())["install"]
    allowed = {_name(requirement): _HASH.findall(requirement) for requirement in requirements}
    return sorted(_locked_entry(entry, allowed) for entry in entries)


def _pip(root: Path) -> list[str]:
    """Return the command of the pip that resolves and installs for all environments, which have none themselves."""
    python = root / "installer" / "bin" / "python"
    with _locked(root / "installer"):
        if not python.exists():
            _run([sys.executable, "-m", "venv", str(root / "installer")])
    return [str(python), "-m", "pip"]


def _locked_entry(entry: dict[str, dict[str, dict[str, dict[str, str]]]], allowed: dict[str, list[str]]) -> str:
    """Return a package of pip's report as a locked requirement. Raises RefusedError for a hash that is not allowed."""
    name, version = str(entry["metadata"]["name"]), str(entry["metadata"]["version"])
    digest = entry["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
    if digest is None:
        raise RefusedError(f"The package {name} comes from no file, so that it has no hash: name a released version.")
    wanted = allowed.get(_name(name))
    if wanted and digest not in wanted:
        raise RefusedError(f"The file of {name} {version} has the hash sha256:{digest}, and not one that is asked for.")
    return f"{name}=={version} --hash=sha256:{digest}"


def _name(requirement: str) -> str:
    """Return the name of a requirement in the form in which names are compared."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[\s<>=!~]", requirement, maxsplit=1)[0]).lower()


def check_python(python_version: str) -> None:
    """Raise RefusedError if a function asks for another Python than this one."""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if python_version != here:
        raise RefusedError(
            f"The function asks for Python {python_version}, and this worker has {here}: register it for that version."
        )


def _build(folder: Path, packages: Sequence[str]) -> None:
    """Build an environment of locked packages; nothing is left of one that fails. Raises RefusedError."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        lock = folder / "packages.txt"
        lock.write_text("\n".join(packages) + "\n")
        options = ["--no-input", "--quiet", "--no-deps", "--require-hashes", "-r", str(lock)]
        _run([*_pip(folder.parent), "--python", str(folder / "bin" / "python"), "install", *options])
        [site_packages] = (folder / "lib").glob("python*/site-packages")
        (site_packages / "zz_worker.pth").write_text("\n".join(_own_packages()) + "\n")
        files = (path.lstat() for path in folder.rglob("*"))
        (folder / _SIZE_FILE).write_text(str(sum(status.st_size for status in files)))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _remove_unused(root: Path) -> None:
    """Remove the environments that were used least recently, until the others take `MAX_BYTES` at most."""
    sizes = {path.parent: int(path.read_text()) for path in root.glob(f"*/{_SIZE_FILE}")}
    used = {folder: _lock_file(folder).stat().st_mtime for folder in sizes if _lock_file(folder).exists()}
    total = sum(sizes.values())
    for folder in sorted(used, key=used.__getitem__):
        if total <= MAX_BYTES:
            return
        with _lock_file(folder).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # a process uses it
            shutil.rmtree(folder, ignore_errors=True)
        total -= sizes[folder]


def _own_packages() -> list[str]:
    return [path for path in {*site.getsitepackages(), *sys.path} if path.endswith(("site-packages", "dist-packages"))]


def _run(command: list[str]) -> str:
    try:
        done = run_command(command, BUILD_SECONDS, text=True)
    except subprocess.TimeoutExpired as error:
        raise RefusedError(f"The packages of the function were not installed within {BUILD_SECONDS:.0f} s.") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
        raise RefusedError(f"The packages of the function cannot be installed: {' '.join(lines[-_MESSAGE_LINES:])}")
    output: str = done.stdout
    return output


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


def _lock_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of an environment or a resolution, so that one process makes it."""
    with _lock_file(path).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
