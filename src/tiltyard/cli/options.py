"""What commands share: options for settings."""

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


def settings_options(*names: str) -> Callable[[Command], Command]:
    """Options for these settings; the command gets `settings`, from flags, variables and the settings file.

    What the command itself takes besides is handed on as it is.
    """
    specs = {spec.name: spec for spec in dataclasses.fields(Settings)}

    def decorate(command: Command) -> Command:
        def run(config: Path | None, **flags: Any) -> None:
            own = {name: flags.pop(name) for name in list(flags) if name not in specs}
            try:
                command(load_settings(flags, config), **own)
            except ConfigError as error:
                refuse(str(error))

        run.__doc__ = command.__doc__
        for name in reversed(names):
            spec = specs[name]
            kind = type(spec.default) if isinstance(spec.default, int | float) else str
            shown = f"  [default: {spec.default}]" if spec.default not in ("", dataclasses.MISSING) else ""
            text = f"{spec.metadata['help']}{shown}"
            flag = f"--{name.replace('_', '-')}"
            if kind is bool:
                run = click.option(flag, name, is_flag=True, default=None, help=spec.metadata["help"])(run)
            else:
                run = click.option(flag, name, type=kind, default=None, help=text)(run)
        shared = click.option(
            "--config", type=click.Path(path_type=Path), help="A TOML file of settings; also TILTYARD_CONFIG."
        )
        return shared(run)

    return decorate
