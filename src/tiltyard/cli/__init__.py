"""The command `tiltyard`. Each command imports what it needs when it runs: `--help` answers at once."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click

from tiltyard import __version__
from tiltyard.config import ConfigError, Settings, load_settings

Command = Callable[..., None]

SERVE = ("root", "db", "host", "port", "workers", "jobs", "log_level")
WORKER = ("root", "db", "jobs", "log_level")
DATABASE = ("root", "db")


def settings_options(*names: str) -> Callable[[Command], Command]:
    """Options for these settings; the command gets `settings`, from flags, variables and the settings file."""
    specs = {spec.name: spec for spec in dataclasses.fields(Settings)}

    def decorate(command: Command) -> Command:
        def run(config: Path | None, **flags: Any) -> None:
            try:
                command(load_settings(flags, config))
            except ConfigError as error:
                refuse(str(error))

        run.__doc__ = command.__doc__
        for name in reversed(names):
            spec = specs[name]
            kind = int if isinstance(spec.default, int) else str
            shown = f"  [default: {spec.default}]" if spec.default not in ("", dataclasses.MISSING) else ""
            text = f"{spec.metadata['help']}{shown}"
            run = click.option(f"--{name.replace('_', '-')}", name, type=kind, default=None, help=text)(run)
        shared = click.option(
            "--config", type=click.Path(path_type=Path), help="A TOML file of settings; also TILTYARD_CONFIG."
        )
        return shared(run)

    return decorate


def refuse(message: str) -> NoReturn:
    """Stop with one sentence and status 1."""
    click.echo(f"tiltyard: {message}", err=True)
    sys.exit(1)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tiltyard")
def main() -> None:
    """Tiltyard: the open server for Lance tables.

    Every option is also a variable (TILTYARD_ROOT, …) and a key of the settings file.

    Example: tiltyard serve --root ./data
    """


@main.command("serve", short_help="Run the server.")
@settings_options(*SERVE)
def serve(settings: Settings) -> None:
    """Run the server until SIGTERM or SIGINT.

    \b
    Examples:
      tiltyard serve --root ./data
      tiltyard serve --root s3://lake/tables --db postgresql://catalog@db/tiltyard --workers 4 --host 0.0.0.0
    """
    from tiltyard.cli.serving import run_server

    run_server(settings, refuse)


@main.command("worker", short_help="Run queued work, without a server.")
@settings_options(*WORKER)
def worker(settings: Settings) -> None:
    """Run queued transactions (index builds, deletions) until SIGTERM or SIGINT; any number may run at once.

    \b
    Example:
      tiltyard worker --db postgresql://catalog@db/tiltyard --root s3://lake/tables --jobs 2
    """
    from tiltyard.cli.serving import run_worker

    run_worker(settings, refuse)


@main.group("db", short_help="Look after the catalog's database.")
def db() -> None:
    """Look after the catalog's database.

    Example: tiltyard db upgrade --db postgresql://catalog@db/tiltyard
    """


@db.command("upgrade", short_help="Bring the database to this version of the code.")
@settings_options(*DATABASE)
def upgrade(settings: Settings) -> None:
    """Apply the migrations that the database lacks, and name them.

    \b
    Example:
      tiltyard db upgrade --root ./data
    """
    from lance_namespace.errors import LanceNamespaceError

    from tiltyard import store

    try:
        applied = store.upgrade(settings.database_url)
    except (store.StoreVersionError, LanceNamespaceError) as error:
        refuse(str(error))
    click.echo("\n".join(str(name) for name in applied) or "The database is current.")
