"""What is installed: a wheel of these sources in an environment of its own, and how large that is with each extra.

    python -m bench.installed                 # the table of README.md, "What is installed"
    python -m bench.installed spark kafka     # these extras alone

The versions are those of requirements-dev.lock, from uv's cache where they are there, else from the index that pip is
configured with. Sizes are those of all files, without the compiled ones that Python adds (a tenth more).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

HOME = Path(__file__).parents[1]
LOCK = HOME / "requirements-dev.lock"
SELF_BUILT = {"kerberos": "built from source, with Kerberos's headers"}
"""Extras that no wheels are there for, and why."""


def build_wheel(folder: Path) -> Path:
    """Build the wheel by the build backend of this environment, without an index; return it."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=HOME, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    return wheel


def make_environment(folder: Path) -> Path:
    """Make an environment without any package; return its Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin/python"


def install(python: Path, wheel: Path, *extras: str) -> None:
    """Install a wheel with extras, in the locked versions: from uv's cache, or by pip from the index it is set up with.

    Raises CalledProcessError, whose notes say what pip said, where neither has all.
    """
    what = [f"{wheel}[{','.join(extras)}]" if extras else str(wheel), "--constraint", str(_versions(python))]
    offline = [_uv(), "pip", "install", "--quiet", "--offline", "--link-mode", "hardlink", "--python", str(python)]
    if subprocess.run([*offline, *what], check=False, capture_output=True).returncode == 0:
        return
    by_pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", str(python)]
    done = subprocess.run([*by_pip, "install", *what], check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"The wheel's dependencies could not be installed:\n{done.stderr.strip()}")


def _versions(python: Path) -> Path:
    """Write the lock's versions without their hashes, which a wheel of one's own has none of."""
    file = python.parents[1] / "versions.txt"
    lines = (line.partition(" \\")[0] for line in LOCK.read_text().splitlines() if line and line[0].isalnum())
    file.write_text("\n".join(lines))
    return file


def _uv() -> str:
    return str(Path(sys.executable).with_name("uv"))


def size_mb(python: Path) -> float:
    """Return the size of all files of an environment's packages, in MB, without those that Python compiled."""
    files = (path for path in (python.parents[1] / "lib").rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files if "__pycache__" not in path.parts) / 1e6


def extras_of_project() -> Sequence[str]:
    """Return the extras that have packages."""
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    return [name for name, packages in project["optional-dependencies"].items() if packages]


def measure(wheel: Path, *extras: str) -> float:
    """Return the size of an environment with these extras, in MB."""
    with tempfile.TemporaryDirectory(prefix="tiltyard-installed-") as folder:
        python = make_environment(Path(folder) / "environment")
        install(python, wheel, *extras)
        return size_mb(python)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure what an installation takes.")
    parser.add_argument("extras", nargs="*", help="extras to measure [default: all]")
    wanted = parser.parse_args().extras or extras_of_project()
    with tempfile.TemporaryDirectory(prefix="tiltyard-wheel-") as folder:
        wheel = build_wheel(Path(folder))
        base = measure(wheel)
        print(f"| installed | MB |\n|---|---:|\n| `tiltyard` | {base:.0f} |")
        for extra in wanted:
            more = SELF_BUILT.get(extra) or f"+{measure(wheel, extra) - base:.0f}"
            print(f"| `tiltyard[{extra}]` | {more} |", flush=True)


if __name__ == "__main__":
    main()
