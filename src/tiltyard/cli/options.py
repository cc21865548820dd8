"""Options that several commands take: settings, where a catalog is, whom and what privileges are about."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tiltyard.config import ConfigError, Settings, load_settings
from tiltyard.runtime.fatal import refuse

Command = Callable[..., None]

DATABASE = ("root", "db")
"""Settings of commands that open the catalog's database."""


def settings_options(*names: str) -> Callable[[Command], Command]:
    """Add an option for each of these settings, and --config.

    The command gets `settings`, from flags, variables and the settings file; its own arguments are passed on as they
    are, also one that has the name of a setting which is not among these.
    """
    specs = {spec.name: spec for spec in dataclasses.fields(Settings)}

    def decorate(command: Command) -> Command:
        def run(config: Path | None, **flags: Any) -> None:
            arguments = {name: flags.pop(name) for name in list(flags) if name not in names}
            try:
                command(load_settings(flags, config), **arguments)
            except ConfigError as error:
                refuse(str(error))

        run.__doc__ = command.__doc__
        for name in reversed(names):
            spec = specs[name]
            kind = type(spec.default) if isinstance(spec.default, int | float) else str
            default = f"  [default: {spec.default}]" if spec.default not in ("", dataclasses.MISSING) else ""
            flag = f"--{name.replace('_', '-')}"
            if kind is bool and spec.default:
                run = click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=spec.metadata["help"])(run)
            elif kind is bool:
                run = click.option(flag, name, is_flag=True, default=None, help=spec.metadata["help"])(run)
            else:
                text = f"{spec.metadata['help']}{default}"
                run = click.option(flag, name, type=kind, default=None, help=text)(run)
        config_option = click.option(
            "--config", type=click.Path(path_type=Path), help="A TOML file of settings; also TILTYARD_CONFIG."
        )
        return config_option(run)

    return decorate


def catalog_options(command: Command) -> Command:
    """Add options for the catalog to work on: a server's --url and --key, or the database of the settings.

    The command gets `settings`, `url` and `key`; `url` is empty where no server is named.
    """
    command = settings_options(*DATABASE)(command)
    for name, text in (
        ("key", "An API key for the server; the variable TILTYARD_KEY is safer."),
        ("url", "URL of the server to use."),
    ):
        command = click.option(f"--{name}", envvar=f"TILTYARD_{name.upper()}", default="", help=text)(command)
    return command


def parse_pairs(texts: tuple[str, ...]) -> dict[str, str]:
    """Parse values of an option NAME=VALUE. Raises click.UsageError."""
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not equals:
            raise click.UsageError(f"'{name}' is not NAME=VALUE.")
    return {name: value for name, _, value in pairs}
