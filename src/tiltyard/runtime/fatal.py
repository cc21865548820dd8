"""Stop a command or a server process with one sentence for its operator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

import click

Refuse = Callable[[str], NoReturn]
"""The type of `refuse`, for commands whose tests replace it."""


def describe(error: BaseException) -> str:
    """Return an error's message for the operator, with what its cause notes: why a database was not reached, say."""
    notes = [note.partition("\n")[0] for note in getattr(error.__cause__, "__notes__", ())]
    return f"{' '.join([str(error), *notes]).rstrip('.')}."


def refuse(message: str) -> NoReturn:
    """Print the message to standard error and exit with status 1."""
    click.echo(f"tiltyard: {message}", err=True)
    sys.exit(1)
