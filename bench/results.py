"""Verdicts, and the table in RESULTS.md that keeps them."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

FILE = Path(__file__).parent / "RESULTS.md"
ROWS = ("<!-- rows -->", "<!-- end of rows -->")
RUN = ("<!-- run -->", "<!-- end of run -->")
HEAD = [
    "| row | what | at least | Tiltyard | against | ratio | met | seen |",
    "|---|---|---|---|---|---|---|---|",
]


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table: target and measurement, and whether it is met (None without a target)."""

    row: str
    what: str
    target: str
    ours: str
    against: str
    ratio: str
    met: bool | None

    @property
    def verdict(self) -> str:
        """Return whether the target is met, as a word."""
        return "—" if self.met is None else "yes" if self.met else "**no**"

    def line(self, seen: str) -> str:
        """The line as Markdown."""
        cells = self.row, self.what, self.target, self.ours, self.against, self.ratio, self.verdict, seen
        return f"| {' | '.join(cells)} |"


def at_least(row: str, what: str, sides: tuple[str, str], ratio: float, target: float | None) -> Result:
    """A result for 'so many times as fast', with the figures in words; for information without a target."""
    if target is None:
        return Result(row, what, "—", *sides, f"{ratio:.2f}x", None)
    return Result(row, what, f"{target:g}x", *sides, f"{ratio:.2f}x", ratio >= target)


def at_most(row: str, what: str, sides: tuple[str, str], value: float, limit: tuple[float, str]) -> Result:
    """A result for 'no more than'; the limit comes with its unit."""
    most, unit = limit
    return Result(row, what, f"≤ {most:g} {unit}", *sides, f"{value:.2f} {unit}", value <= most)


@dataclass(frozen=True, slots=True)
class Run:
    """The run of results; `seen` has its start and commit."""

    command: str
    settings: str
    seen: str


def begin(command: str, settings: str) -> Run:
    """A run that begins now."""
    return Run(command, settings, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {_commit()}")


def record(results: list[Result], run: Run, order: Sequence[str], file: Path = FILE) -> None:
    """Put the results in the place of older ones of the same rows, in the order of the rows, and say how they came."""
    text = file.read_text()
    new = {result.row for result in results}
    lines = [line for line in _between(text, ROWS).splitlines()[2:] if line and _row(line) not in new]
    lines += [result.line(run.seen) for result in results]
    lines.sort(key=lambda line: order.index(_row(line)) if _row(line) in order else len(order))
    text = replaced(text, ROWS, "\n".join([*HEAD, *lines]))
    text = replaced(text, RUN, _about(run))
    file.write_text(text)


def _row(line: str) -> str:
    return line.strip("| ").partition(" | ")[0].strip()


def _between(text: str, marks: tuple[str, str]) -> str:
    return text.partition(marks[0])[2].partition(marks[1])[0].strip()


def replaced(text: str, marks: tuple[str, str], content: str) -> str:
    """A text with other content between two marks."""
    head, _, rest = text.partition(marks[0])
    return f"{head}{marks[0]}\n{content}\n{marks[1]}{rest.partition(marks[1])[2]}"


def _about(run: Run) -> str:
    packages = "pylance", "pyarrow", "uvicorn", "uvloop", "httptools", "msgspec"
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    facts = {
        "Last run": run.seen,
        "Command": f"`{run.command}` ({run.settings})",
        "Machine": f"{os.cpu_count()} cores ({_processor()}), {memory:.0f} GiB, {platform.system()}",
        "Versions": f"Python {platform.python_version()}, " + ", ".join(f"{name} {version(name)}" for name in packages),
    }
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str:
    """The commit that is measured, and whether anything but this table has changed since."""
    changed = _git("status", "--porcelain", "--", ":/", f":(exclude){FILE.name}")
    return (_git("describe", "--always", "--exclude=*") or "unknown") + ("-dirty" if changed else "")


def _git(*arguments: str) -> str:
    process = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, cwd=FILE.parent)
    return process.stdout.strip()
