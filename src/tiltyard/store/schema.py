"""Numbered SQL files, applied once each and in order."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.store.backend import Connection, Database

LEDGER = "CREATE TABLE IF NOT EXISTS schema_migrations (version BIGINT PRIMARY KEY, applied_at BIGINT NOT NULL)"


class StoreVersionError(Exception):
    """The database's schema is not the one this code works with."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of `migrations/`: its number, its name, its statements before substitution."""

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
    """Apply what is missing (no further than version `upto`) in one transaction; return the names of the applied.

    Several servers may start at once: one of them applies, the others find it done.
    Raises StoreVersionError for a database that newer code has migrated.
    """

    def apply(connection: Connection) -> list[str]:
        connection.rows(database.dialect["lock_migrations"])
        connection.change(LEDGER)
        seen = _version(connection)
        _refuse_newer(seen)
        missing = [one for one in migrations() if one.version > seen and (upto is None or one.version <= upto)]
        for migration in missing:
            for statement in migration.statements:
                connection.change(_substitute(statement, database))
            connection.change("INSERT INTO schema_migrations VALUES (?, ?)", migration.version, clock())
        return [migration.name for migration in missing]

    if _current(database) == migrations()[-1].version:
        return []
    return database.write(apply)


def require_current(database: Database) -> None:
    """Raise StoreVersionError unless the database has exactly the migrations of this code."""
    seen = _current(database)
    _refuse_newer(seen)
    if seen < migrations()[-1].version:
        raise StoreVersionError(
            f"The database has schema version {seen}, this code needs {migrations()[-1].version}: upgrade it first."
        )


def _current(database: Database) -> int:
    def look(connection: Connection) -> int:
        row = connection.row(database.dialect["has_migrations"])
        return _version(connection) if row and row[0] else 0

    return database.read(look)


def _version(connection: Connection) -> int:
    row = connection.row("SELECT COALESCE(MAX(version), 0) FROM schema_migrations")
    return int(row[0]) if row else 0


def _refuse_newer(seen: int) -> None:
    if seen > (known := migrations()[-1].version):
        raise StoreVersionError(f"The database has schema version {seen}, newer than this code, which knows {known}.")


def _substitute(statement: str, database: Database) -> str:
    for token, meaning in database.dialect.items():
        statement = statement.replace(f"{{{token}}}", meaning)
    return statement
