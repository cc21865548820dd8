"""The options of `tiltyard index create`: one for each parameter that CreateTableIndex has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tiltyard.model.columns.index_parameters import FLAGS, NUMBERS, PARAMETERS, STOP_WORDS, TEXTS


def parameter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each parameter; the command gets them by their names, None for those that are left out."""
    options = [_option(name, text, type=click.IntRange(min=0), metavar="N") for name, text in NUMBERS.items()]
    options += [
        click.option(f"{_flag(name)}/--no-{_flag(name)[2:]}", name, default=None, help=text)
        for name, text in FLAGS.items()
    ]
    options += [_option(name, text) for name, text in TEXTS.items()]
    options.append(_option(STOP_WORDS, "FTS: words to leave out, besides.", metavar="A,B,…"))
    for add in reversed(options):
        command = add(command)
    return command


def given_parameters(values: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters that were given, as requests have them."""
    given = {name: values[name] for name in PARAMETERS if values[name] is not None}
    if STOP_WORDS in given:
        given[STOP_WORDS] = [word.strip() for word in given[STOP_WORDS].split(",") if word.strip()]
    return given


def _option(name: str, text: str, **attributes: Any) -> Callable[..., Any]:
    return click.option(_flag(name), name, default=None, help=text, **attributes)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
