"""`tiltyard db …`, and the catalog's database for commands that use nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from tiltyard.cli.command_groups import CommandGroup
from tiltyard.cli.options import DATABASE, settings_options
from tiltyard.cli.session.failures import ExitStatus, status_of
from tiltyard.config import ConfigError, Settings
from tiltyard.model.settings.storages import SecretError
from tiltyard.runtime.process import describe, refuse

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import Store


@contextmanager
def open_database(settings: Settings) -> Iterator[Store]:
    """Yield the store of the catalog's database; its errors end the command with one sentence for the operator.

    A database that does not exist is not made: a mistyped root would look like an empty one.
    """
    from lance_namespace.errors import LanceNamespaceError

    from tiltyard.store import StoreVersionError, open_store

    require_database(settings)
    try:
        with open_store(settings.database_url) as store:
            yield store
    except (LanceNamespaceError, StoreVersionError, ConfigError, ValueError) as error:
        refuse(describe(error))


@contextmanager
def open_context(settings: Settings) -> Iterator[Context]:
    """Yield a context of the server's own principal on an existing catalog, for maintenance.

    No catalog is created: there would be nothing to maintain, and a mistyped root would look like a sound one.
    """
    from lance_namespace.errors import LanceNamespaceError

    from tiltyard.context import Context
    from tiltyard.model.principals import SERVER
    from tiltyard.server.process import open_services_or_refuse

    require_database(settings)
    services = open_services_or_refuse(settings)
    try:
        yield Context(services, "cli", principal=SERVER)
    except LanceNamespaceError as error:
        refuse(str(error), status_of(error))
    finally:
        services.close()


def require_database(settings: Settings) -> None:
    """End the command with one sentence for the operator where the settings name no database that exists."""
    from tiltyard.store import database_exists

    try:
        url = settings.database_url
    except ConfigError as error:
        refuse(str(error))
    if not database_exists(url):
        refuse(f"There is no catalog at {url}: look at --root and --db.", ExitStatus.NOT_FOUND)


@click.group("db", cls=CommandGroup, short_help="Manage the catalog's database.")
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
    except (store.StoreVersionError, LanceNamespaceError, ConfigError, ValueError) as error:
        refuse(describe(error))
    click.echo("\n".join(str(name) for name in applied) or "The database is current.")


@db.command("reencrypt-secrets", short_help="Encrypt all secrets with the first of the keys.")
@settings_options(*DATABASE)
def reencrypt_secrets(settings: Settings) -> None:
    """Encrypt the values of all secrets with the first key of the setting `secret_keys`.

    To replace a key: put the new one in front of it, restart the servers, run this, then remove the old key.

    \b
    Example:
      tiltyard db reencrypt-secrets --config tiltyard.toml
    """
    from tiltyard.catalog.functions.secrets import reencrypt
    from tiltyard.model.settings.secret_keys import DecryptionError, read_secret_keys

    try:
        keys = read_secret_keys(settings.secret_keys)
    except SecretError as error:
        refuse(str(error))
    if keys.first_id is None:
        refuse("The setting secret_keys is empty: it names the key that encrypts.")
    with open_database(settings) as store:
        try:
            count = reencrypt(store, keys)
        except DecryptionError as error:
            refuse(f"A secret cannot be decrypted: {error}.")
    click.echo(f"Encrypted again: {count} secrets.")
