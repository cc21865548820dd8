"""`tiltyard db upgrade`, and the catalog's database for commands that use nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from tiltyard.cli.options import DATABASE, settings_options
from tiltyard.config import ConfigError, Settings
from tiltyard.runtime.fatal import refuse

if TYPE_CHECKING:
    from tiltyard.store import Store


@contextmanager
def open_database(settings: Settings) -> Iterator[Store]:
    """Yield the store of the catalog's database; its errors end the command with one sentence for the operator."""
    from lance_namespace.errors import LanceNamespaceError

    from tiltyard.store import StoreVersionError, open_store

    try:
        with open_store(settings.database_url) as store:
            yield store
    except (LanceNamespaceError, StoreVersionError, ConfigError, ValueError) as error:
        refuse(str(error))


@click.group("db", short_help="Manage the catalog's database.")
def db() -> None:
    """Manage the catalog's database.

    Example: tiltyard db upgrade --db postgresql://catalog@db/tiltyard
    """


@db.command("upgrade", short_help="Apply the migrations that the database lacks.")
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
