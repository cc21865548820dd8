"""Migrations: numbered SQL files, applied once each and in order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from tiltyard.store.earlier_names import pin_names
from tiltyard.store.events.triggers import create_triggers
from tiltyard.store.sqlite.connection import SqliteConnection

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tiltyard.store.backend import Connection, Database

CREATE_LEDGER = "CREATE TABLE IF NOT EXISTS schema_migrations (version BIGINT PRIMARY KEY, applied_at BIGINT NOT NULL)"

DEFINITIONS = "SELECT type, sql FROM sqlite_master WHERE tbl_name = 'table_versions' AND sql IS NOT NULL"


def keep_versions_by_key(connection: Connection) -> None:
    """Let SQLite store versions by their key (`WITHOUT ROWID`); in PostgreSQL, which has no such choice, do nothing.

    A version comes with its manifest, which goes as soon as its file is durable. In a table by row ids that left two or
    three rows in a page, which nothing fills again: 1,800 bytes for a row of 250.
    """
    if not isinstance(connection, SqliteConnection):
        return
    definitions = connection.rows(DEFINITIONS)
    [table] = [sql for kind, sql in definitions if kind == "table"]
    connection.change("ALTER TABLE table_versions RENAME TO earlier_versions")
    connection.change(f"{table} WITHOUT ROWID")
    connection.change("INSERT INTO table_versions SELECT * FROM earlier_versions ORDER BY table_id, branch, version")
    connection.change("DROP TABLE earlier_versions")
    for index in (sql for kind, sql in definitions if kind == "index"):
        connection.change(index)


COMPLETED_BY: Mapping[int, Callable[[Connection], None]] = {
    29: pin_names,
    36: keep_versions_by_key,
    44: create_triggers,
}
"""What SQL of both databases cannot do, by the number of the migration: run in its transaction, after its file."""


class StoreVersionError(Exception):
    """The database has not the schema version that this code needs."""


class StoreNewerError(StoreVersionError):
    """Newer code has migrated the database: this code must not open it."""


@dataclass(frozen=True, slots=True)
class Migration:
    """A file of `migrations/`: its number, its name, its statements before the dialect's substitutions."""

    version: int
    name: str
    statements: tuple[str, ...]


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations, oldest first."""
    files = resources.files("tiltyard.store").joinpath("migrations").iterdir()
    return tuple(_parse(file.name, file.read_text("utf-8")) for file in sorted(files, key=lambda file: file.name))


def _parse(file_name: str, text: str) -> Migration:
    name = file_name.removesuffix(".sql")
    text = re.sub(r"^--.*\n", "", text, flags=re.MULTILINE)
    statements = tuple(part.strip() for part in re.split(r";\s*$", text, flags=re.MULTILINE) if part.strip())
    return Migration(int(name.split("_")[0]), name, statements)


def migrate(database: Database, clock: Callable[[], int], upto: int | None = None) -> list[str]:
    """Apply the missing migrations (up to version `upto`) in one transaction; return their names.

    Several servers may start at once: one of them applies them, the others find them applied.
    Raises StoreVersionError for a database that newer code has migrated.
    """

    if current_version(database) == migrations()[-1].version:
        return []
    return database.write(lambda connection: apply_missing(connection, database, clock, upto))


def apply_missing(connection: Connection, database: Database, clock: Callable[[], int], upto: int | None) -> list[str]:
    """Apply the missing migrations in the transaction of a connection. See `migrate`."""
    connection.rows(database.dialect["lock_migrations"])
    connection.change(CREATE_LEDGER)
    current = _version(connection)
    refuse_newer(current)
    missing = [
        migration
        for migration in migrations()
        if migration.version > current and (upto is None or migration.version <= upto)
    ]
    for migration in missing:
        for statement in migration.statements:
            connection.change(_substitute(statement, database))
        if complete := COMPLETED_BY.get(migration.version):
            complete(connection)
        connection.change("INSERT INTO schema_migrations VALUES (?, ?)", migration.version, clock())
    return [migration.name for migration in missing]


def require_current(database: Database) -> None:
    """Raise StoreVersionError unless the database has exactly the migrations of this code."""
    current = current_version(database)
    refuse_newer(current)
    if current < migrations()[-1].version:
        raise StoreVersionError(
            f"The database has schema version {current}, this code needs {migrations()[-1].version}: upgrade it first."
        )


def current_version(database: Database) -> int:
    """Return the number of the last migration that a database has; 0 for an empty one."""

    def read(connection: Connection) -> int:
        row = connection.row(database.dialect["has_migrations"])
        return _version(connection) if row and row[0] else 0

    return database.read(read)


def table_names(version: int) -> dict[str, bool]:
    """Return the tables of a schema version in the order of their creation, and whether their ids are given by the
    database.
    """
    created = re.compile(r"^CREATE TABLE (\w+) \(\s*(id \{id\})?")
    statements = (text for migration in migrations() if migration.version <= version for text in migration.statements)
    return {match[1]: bool(match[2]) for match in map(created.match, statements) if match}


def _version(connection: Connection) -> int:
    row = connection.row("SELECT COALESCE(MAX(version), 0) FROM schema_migrations")
    return int(row[0]) if row else 0


def refuse_newer(current: int) -> None:
    """Raise StoreNewerError for a number that this code has no migration of."""
    if current > (latest := migrations()[-1].version):
        raise StoreNewerError(f"The database has schema version {current}, newer than this code, which knows {latest}.")


def _substitute(statement: str, database: Database) -> str:
    for placeholder, text in database.dialect.items():
        statement = statement.replace(f"{{{placeholder}}}", text)
    return statement
