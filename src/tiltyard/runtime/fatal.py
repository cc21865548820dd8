"""Stop a command or a server process with one sentence for its operator."""

from __future__ import annotations

import sys
from typing import NoReturn

import click


def describe(error: BaseException) -> str:
    """Return an error's message for the operator, with what its cause notes: why a database was not reached, say."""
    notes = [note.partition("\n")[0] for note in getattr(error.__cause__, "__notes__", ())]
    return f"{' '.join([str(error), *notes]).rstrip('.')}."


def refuse(message: str, status: int = 1) -> NoReturn:
    """Print the message to standard error and exit with this status."""
    click.echo(f"tiltyard: {message}", err=True)
    sys.exit(status)
