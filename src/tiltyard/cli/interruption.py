"""Ctrl-C: it ends a command with the status 130 at any moment, and cancels the job that the command drives.

Nothing but click is imported here: a command can be interrupted while it imports the rest.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import click

INTERRUPTED = 130
"""The status of a command that Ctrl-C ended, as shells have it."""


class Commands(click.Group):
    """The root of commands; an interrupt that no command handles itself ends them with the status 130."""

    def make_context(self, *given: Any, **named: Any) -> click.Context:
        """As click does. Raises SystemExit for an interrupt."""
        with told_in_a_line():
            return super().make_context(*given, **named)

    def invoke(self, ctx: click.Context) -> Any:
        """As click does. Raises SystemExit for an interrupt."""
        with told_in_a_line():
            return super().invoke(ctx)


@contextmanager
def told_in_a_line() -> Iterator[None]:
    """End the process with the status 130 and one line where it is interrupted. Raises SystemExit."""
    try:
        yield
    except KeyboardInterrupt:
        end("tiltyard: interrupted.")


def end(told: str) -> NoReturn:
    """Say a line, and end the process as an interrupted one. Raises SystemExit."""
    click.echo(told, err=True)
    raise SystemExit(INTERRUPTED)


@dataclass(slots=True)
class Interruption:
    """Whether SIGINT or SIGTERM came; `cancel` is what is called then, or later, as soon as it is known."""

    happened: bool = False
    _cancel: Callable[[], None] | None = None

    def call(self, cancel: Callable[[], None]) -> None:
        """Let this be called once a signal comes; now, if one came."""
        self._cancel = cancel
        if self.happened:
            cancel()

    def check(self) -> None:
        """End the command if a signal came before there was anything to cancel. Raises SystemExit."""
        if self.happened:
            end("tiltyard: interrupted.")

    def note(self) -> None:
        """A signal came."""
        self.happened = True
        if self._cancel is not None:
            self._cancel()


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """SIGINT and SIGTERM stop what runs here at a point where it can stop; a second one ends the command at once.

    Whatever fails after a signal, before there was something to cancel, ends as an interrupted command does.
    """
    found = Interruption()

    def stop(number: int, frame: object) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_DFL)
        found.note()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield found
    except Exception:
        if found._cancel is None:
            found.check()
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
