"""A bar on the terminal that shows how far a job is."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import click

from tiltyard.runtime.background_thread import meanwhile

LOOK_SECONDS = 0.25
STEPS = 1_000


@contextmanager
def progress_bar(name: str, told: Callable[[], Mapping[str, str]]) -> Iterator[None]:
    """Show the figures that `told` returns, for as long as the block runs; nothing where nobody looks."""
    if not sys.stderr.isatty():
        yield
        return

    def show(done: threading.Event) -> None:
        shown = 0
        with click.progressbar(length=STEPS, label=name, file=sys.stderr, show_eta=False, item_show_func=_line) as bar:
            ended = False
            while not ended:
                ended = done.wait(LOOK_SECONDS)
                figures = told()
                reached = int(float(figures.get("progress", "0")) * STEPS)
                bar.update(max(0, reached - shown), figures)
                shown = max(shown, reached)

    with meanwhile("bar", show):
        yield


def _line(figures: object) -> str:
    """What stands behind the bar."""
    if not isinstance(figures, Mapping):
        return ""
    eta = figures.get("eta_seconds")
    counts = [f"{name} {figures[name]}" for name in ("stage", "rows", "fragments", "bytes") if name in figures]
    return ", ".join([*counts, *([f"{eta} s left"] if eta else [])])
