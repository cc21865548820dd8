"""Wait for work that goes on elsewhere: with a progress bar, and up to a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from tiltyard.cli.output.progress import progress_bar

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
