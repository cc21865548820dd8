"""Options that several commands take: settings, where a catalog is, whom and what privileges are about."""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import click

from tiltyard.cli.session.failures import CommandError, ExitStatus, exit_on_failure
from tiltyard.cli.session.target import CatalogTarget, choose_target, defer_imports, named_server, server_options
from tiltyard.config import NAMES, ConfigError, Settings, load_settings
from tiltyard.model.settings.setting_names import unknown_variables
from tiltyard.runtime.process import refuse

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
                settings = load_settings(flags, config)
                for warning in unknown_variables(settings, NAMES):
                    click.echo(f"tiltyard: {warning}", err=True)
                command(settings, **arguments)
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
    """Add options for the catalog to work on: a server's, by URL or profile, or the database of the settings.

    Where neither options nor variables name one, it is the server of the current profile, as for `tiltyard ls`; without
    a profile it is the database. The command gets a CatalogTarget, and fails in one sentence.
    """

    @settings_options(*DATABASE)
    @functools.wraps(command)
    def with_settings(settings: Settings, place: CatalogTarget, **arguments: Any) -> None:
        defer_imports()
        with exit_on_failure():
            command(place if place.url else CatalogTarget(settings=settings), **arguments)

    @functools.wraps(with_settings)
    def run(server: str, profile: str, key: str, **arguments: Any) -> None:
        is_database_named = any(arguments[name] for name in (*DATABASE, "config"))
        with exit_on_failure():
            place = _choose_server(server, profile, key, is_database_named=is_database_named)
        with_settings(place=place, **arguments)

    return server_options(run)


def _choose_server(server: str, profile: str, key: str, *, is_database_named: bool) -> CatalogTarget:
    """Return the server to use; one without a URL for the database of the settings. Raises CommandError."""
    from tiltyard.cli.session.profiles import read_profiles

    if is_database_named and (server or profile):
        raise CommandError("A server and a database both say where: leave one out.", ExitStatus.USAGE)
    if not (is_database_named or server or profile):
        is_server_named = named_server(os.environ) or os.environ.get("TILTYARD_PROFILE")
        is_database_set = any(os.environ.get(f"TILTYARD_{name}") for name in ("ROOT", "DB", "CONFIG"))
        is_database_named = not is_server_named and (is_database_set or not read_profiles().current)
    if not is_database_named:
        return choose_target(server, "", "", profile, key)
    if key:
        raise CommandError("--key is for a server: name it by --server, or --profile.", ExitStatus.USAGE)
    return CatalogTarget()


def typed_options(options: type) -> Callable[[Command], Command]:
    """Add an option for each field of a TypedDict of texts and lists of texts; one that is absent is None or empty."""

    def decorate(command: Command) -> Command:
        for name, hint in reversed(get_type_hints(options, include_extras=True).items()):
            kind, text, *_ = get_args(hint)
            is_list = any(get_origin(each) is list for each in get_args(kind))
            command = click.option(f"--{name.replace('_', '-')}", name, multiple=is_list, help=text)(command)
        return command

    return decorate


def parse_pairs(texts: tuple[str, ...]) -> dict[str, str]:
    """Parse values of an option NAME=VALUE. Raises click.UsageError."""
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not equals:
            raise click.UsageError(f"'{name}' is not NAME=VALUE.")
    return {name: value for name, _, value in pairs}


def limit_option(text: str = "How many rows.", default: int | None = None, *, least: int = 0) -> Callable[[Any], Any]:
    """Add -n, --limit."""
    shown = default is not None
    kind = click.IntRange(min=least)
    return click.option("-n", "--limit", type=kind, metavar="N", default=default, show_default=shown, help=text)


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
