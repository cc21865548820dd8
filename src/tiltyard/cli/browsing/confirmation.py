"""Ask before a command changes what may matter to others."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from tiltyard.cli.session.failures import CommandError, ExitStatus


def yes_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --yes."""
    return click.option("-y", "--yes", "is_confirmed", is_flag=True, help="Do not ask.")(command)


def confirm(question: str, *, is_confirmed: bool) -> None:
    """Ask, unless it is confirmed already. Raises CommandError for a no, or where nobody can be asked."""
    if is_confirmed:
        return
    if not sys.stdin.isatty():
        raise CommandError("This asks first, and there is no terminal to ask on: add --yes.", ExitStatus.USAGE)
    if not click.confirm(question, err=True):
        raise CommandError("Nothing was changed.")
