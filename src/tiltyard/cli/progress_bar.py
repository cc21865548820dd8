"""A progress bar for a job, on a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import click

from tiltyard.runtime.background_thread import run_in_background

REFRESH_SECONDS = 0.25
STEPS = 1_000


@contextmanager
def progress_bar(name: str, read_figures: Callable[[], Mapping[str, str]]) -> Iterator[None]:
    """Show a job's figures for as long as the block runs; show nothing where standard error is no terminal.

    `progress` among the figures is the share that is done, 0 to 1.
    """
    if not sys.stderr.isatty():
        yield
        return

    def show(done: threading.Event) -> None:
        position = 0
        with click.progressbar(
            length=STEPS, label=name, file=sys.stderr, show_eta=False, item_show_func=_format_figures
        ) as bar:
            ended = False
            while not ended:
                ended = done.wait(REFRESH_SECONDS)
                figures = read_figures()
                reached = int(float(figures.get("progress", "0")) * STEPS)
                bar.update(max(0, reached - position), figures)
                position = max(position, reached)

    with run_in_background("bar", show):
        yield


def _format_figures(figures: object) -> str:
    """Format what stands behind the bar."""
    if not isinstance(figures, Mapping):
        return ""
    eta = figures.get("eta_seconds")
    counts = [f"{name} {figures[name]}" for name in ("stage", "rows", "fragments", "bytes") if name in figures]
    return ", ".join([*counts, *([f"{eta} s left"] if eta else [])])
