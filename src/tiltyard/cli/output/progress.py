"""Progress of what takes long, on a terminal: nothing is shown where standard error is none."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from tiltyard.runtime.pool import run_in_background

if TYPE_CHECKING:
    from rich.progress import Progress


REFRESH_SECONDS = 0.25
_COUNTS = ("stage", "rows", "fragments", "bytes")


@contextmanager
def progress_bar(name: str, read_figures: Callable[[], Mapping[str, str]]) -> Iterator[None]:
    """Show a job's figures for as long as the block runs. `progress` among them is the share that is done, 0 to 1."""
    if not sys.stderr.isatty():
        yield
        return

    bar = _progress()

    def show(done: threading.Event) -> None:
        with bar:
            task = bar.add_task(name, total=1.0, figures="")
            ended = False
            while not ended:
                figures = read_figures()
                bar.update(task, completed=float(figures.get("progress", "0")), figures=_format_figures(figures))
                ended = done.wait(REFRESH_SECONDS)
            figures = read_figures()
            bar.update(task, completed=float(figures.get("progress", "0")), figures=_format_figures(figures))

    with run_in_background("bar", show):
        yield


@contextmanager
def byte_progress(name: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """Yield a function that adds done bytes, with a word on what is done, and shows them."""
    if not sys.stderr.isatty():
        yield lambda number, figures: None
        return
    with _progress() as progress:
        task = progress.add_task(name, total=total or None, figures="")
        yield lambda number, figures: progress.update(task, advance=number, figures=figures)


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr, highlight=False),
        refresh_per_second=1 / REFRESH_SECONDS,
    )


def _format_figures(figures: Mapping[str, str]) -> str:
    """Format what stands behind the bar."""
    eta = figures.get("eta_seconds")
    counts = [f"{name} {figures[name]}" for name in _COUNTS if name in figures]
    return ", ".join([*counts, *([f"{eta} s left"] if eta else [])])


FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 1.0
"""Between two looks."""


_TIMEOUT: dict[str, Any] = {
    "type": click.FloatRange(min=0), "metavar": "SECONDS", "help": "Wait no longer; the work goes on then."
}  # fmt: skip
TIMEOUT = click.Option(["--timeout"], **_TIMEOUT)
timeout_option = click.option("--timeout", **_TIMEOUT)


def wait_until(
    is_done: Callable[[], bool], name: str, figures: Callable[[], Mapping[str, str]], seconds: float | None
) -> bool:
    """Wait until work has ended, or `seconds` are over; return whether it has ended. Raises what looking raises."""
    deadline = None if seconds is None else time.monotonic() + seconds
    pause = FIRST_PAUSE_SECONDS
    with progress_bar(name, figures):
        while not is_done():
            left = pause if deadline is None else deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
            pause = min(pause * 2, MAX_PAUSE_SECONDS)
    return True
