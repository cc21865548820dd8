"""Seconds from an empty environment to the first search: `python -m bench.first_minutes`.

What a newcomer does, each step timed: an environment, `pip install` of the wheel, `tiltyard demo` until a search of it
is answered; and a file of one's own: a server, `tiltyard import`, an index of its words, a search in the console. By
default pip downloads everything (`--no-cache-dir`), in the newest versions; `--cached` takes the locked ones from the
caches of this machine. Nothing else should run meanwhile: the load is printed.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

from tests.services.ports import reserve_two_ports

from bench.installed import HOME, build_wheel, install, make_environment

WORDS = "harbour"
ROWS = 1_000


class Steps:
    """Steps that were timed, one after the other."""

    def __init__(self) -> None:
        self.seconds: list[tuple[str, float]] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a block."""
        start = time.perf_counter()
        yield
        self.seconds.append((name, time.perf_counter() - start))

    def table(self, title: str, part: Sequence[tuple[str, float]]) -> str:
        """Return steps as Markdown, with their sum."""
        lines = [f"| {name} | {seconds:.1f} |" for name, seconds in part]
        total = sum(seconds for _, seconds in part)
        return "\n".join([f"| {title} | s |", "|---|---:|", *lines, f"| **together** | **{total:.1f}** |"])


def main() -> None:
    """Do all steps, and print what each took."""
    parser = argparse.ArgumentParser(description="Time a newcomer's first minutes.")
    parser.add_argument("--cached", action="store_true", help="take packages from the caches of this machine")
    is_cached = parser.parse_args().cached
    print(f"Load of the machine before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors.")
    steps = Steps()
    with tempfile.TemporaryDirectory(prefix="tiltyard-minutes-") as name:
        folder = Path(name)
        wheel = build_wheel(folder)  # a newcomer downloads it
        python = _install(steps, folder, wheel, is_cached=is_cached)
        installed = list(steps.seconds)
        _demo(steps, python.with_name("tiltyard"), folder)
        print(steps.table("to the first search of the demo", steps.seconds), end="\n\n")
        own = len(steps.seconds)
        _own_file(steps, python.with_name("tiltyard"), folder)
        print(steps.table("to the first search of a file of one's own", installed + steps.seconds[own:]))


def _install(steps: Steps, folder: Path, wheel: Path, *, is_cached: bool) -> Path:
    environment = folder / "environment"
    if is_cached:
        with steps.step("an environment"):
            python = make_environment(environment)
        with steps.step("install the wheel, from this machine's cache"):
            install(python, wheel)
        return python
    with steps.step("`python -m venv`"):
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    with steps.step("`pip install`, all of it downloaded"):
        pip = [str(environment / "bin/python"), "-m", "pip", "install", "--quiet", "--no-cache-dir", str(wheel)]
        subprocess.run(pip, check=True)
    return environment / "bin/python"


def _demo(steps: Steps, program: Path, folder: Path) -> None:
    port, _reserved = reserve_two_ports()
    with steps.step("`tiltyard demo`, until its searches can be clicked"):
        command = [str(program), "demo", "--no-browser", "--port", str(port)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            if line.startswith("Ctrl-C"):
                break
    address = next(line.strip() for line in said.splitlines() if "mode=vector" in line)
    with steps.step("the first search in the console"):
        _expect(address, "WALL·E")
    process.terminate()
    process.wait()


def _own_file(steps: Steps, program: Path, folder: Path) -> None:
    _write_rows(folder / "notes.csv")
    port, _reserved = reserve_two_ports()
    url = f"http://127.0.0.1:{port}"
    with steps.step("`tiltyard serve`, until it answers"):
        command = [str(program), "serve", "--root", "data", "--port", str(port)]
        process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
        _wait(f"{url}/health/ready", process)

    def run(*arguments: str) -> None:
        subprocess.run([str(program), *arguments, "--server", url], cwd=folder, check=True, stdout=subprocess.DEVNULL)

    with steps.step(f"`tiltyard import notes.csv notes` ({ROWS:,} rows)"):
        run("import", "notes.csv", "notes")
    with steps.step("`tiltyard index create notes text FTS --wait`"):
        run("index", "create", "notes", "text", "FTS", "--wait")
    with steps.step("the first search in the console"):
        _expect(f"{url}/console/search/notes?mode=text&text={WORDS}", f"{WORDS} 7")
    process.terminate()
    process.wait()


def _write_rows(file: Path) -> None:
    """Write notes, one of which in a hundred is of a harbour."""
    with file.open("w", newline="") as sink:
        rows = csv.writer(sink)
        rows.writerow(["id", "text"])
        rows.writerows([n, f"a {WORDS} {n} of boats" if n % 100 == 7 else f"note {n} of a day"] for n in range(ROWS))


def _expect(address: str, text: str) -> None:
    """Load a page, which has to have a text."""
    with urlopen(address, timeout=60) as response:
        assert text in response.read().decode(), f"{address} does not show {text}"


def _wait(address: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server answers."""
    while process.poll() is None:
        try:
            with urlopen(address, timeout=60):
                return
        except OSError:
            time.sleep(0.02)
    sys.exit(f"The server of {HOME.name} has ended with status {process.returncode}.")


if __name__ == "__main__":
    main()
