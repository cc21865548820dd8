"""Handle Ctrl-C: it ends a command with the status 130 at any moment, and cancels the job that the command drives.

Nothing but click is imported here: a command can be interrupted while it imports other modules.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import click

INTERRUPTED = 130
"""The exit status of a command that Ctrl-C ended, as shells have it."""


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """End the process with the status 130 and one line where it is interrupted. Raises SystemExit."""
    try:
        yield
    except KeyboardInterrupt:
        exit_interrupted("tiltyard: interrupted.")


def exit_interrupted(message: str) -> NoReturn:
    """Print a line, and end the process as an interrupted one. Raises SystemExit."""
    click.echo(message, err=True)
    raise SystemExit(INTERRUPTED)


@dataclass(slots=True)
class Interruption:
    """Whether SIGINT or SIGTERM came, and what to call then."""

    happened: bool = False
    _cancel: Callable[[], None] | None = None

    def on_signal(self, cancel: Callable[[], None]) -> None:
        """Have `cancel` called once a signal comes; at once, if one came already."""
        self._cancel = cancel
        if self.happened:
            cancel()

    def check(self) -> None:
        """End the command if a signal came before there was anything to cancel. Raises SystemExit."""
        if self.happened:
            exit_interrupted("tiltyard: interrupted.")

    def handle_signal(self) -> None:
        """Note that a signal came, and cancel what can be canceled."""
        self.happened = True
        if self._cancel is not None:
            self._cancel()

    @property
    def is_cancelable(self) -> bool:
        """Whether there is something to cancel by now."""
        return self._cancel is not None


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """Let SIGINT and SIGTERM stop the block at a point where it can stop; a second one ends the command at once.

    Whatever fails after a signal, before there was something to cancel, ends as an interrupted command does.
    """
    interruption = Interruption()

    def stop(number: int, frame: object) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        interruption.handle_signal()

    handlers_before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interruption
    except Exception:
        if not interruption.is_cancelable:
            interruption.check()
        raise
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)
