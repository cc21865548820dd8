"""Ids below a catalog whose tables are in databases: its levels are fixed, and it folds names to lower case."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from lance_namespace.errors import InvalidInputError

from tiltyard.model.ids import Id
from tiltyard.mounts.catalog_errors import (
    existing_namespace,
    impossible_name,
    missing_namespace,
    missing_table,
    root_dropped,
)


@dataclass(frozen=True, slots=True)
class DatabaseIds:
    """Turn ids into names of databases and tables; `backend` is what messages call the catalog.

    A name that is not `name_pattern`, which `name_rule` says in words, cannot be there under that name: the catalog
    would find another one for it, such as `films` for `Films`. Databases are the last of so many `levels`; `qualified`
    writes their names, which others may stand before.
    """

    backend: str
    name_pattern: re.Pattern[str]
    name_rule: str
    levels: int = 1
    qualified: Callable[[Id], str] = attrgetter("name")

    def database(self, namespace: Id) -> str:
        """Return the name of a database that may exist. Raises NamespaceNotFoundError for what cannot be one."""
        if len(namespace) != self.levels or not all(map(self.name_pattern.fullmatch, namespace)):
            raise missing_namespace(namespace)
        return self.qualified(namespace)

    def table(self, table: Id) -> tuple[str, str]:
        """Return the names of a database and a table that may exist.

        Raises NamespaceNotFoundError, TableNotFoundError for what cannot be one.
        """
        database = self.database(table.parent)
        if not self.name_pattern.fullmatch(table.name):
            raise missing_table(table)
        return database, table.name

    def new_database(self, namespace: Id) -> str:
        """Return the name of a new database. Raises InvalidInputError, NamespaceAlreadyExistsError for the root."""
        if not namespace:
            raise existing_namespace(namespace)
        self._check_levels(namespace, self.levels)
        return namespace.name

    def new_table(self, table: Id) -> tuple[str, str]:
        """Return the plain names of a database and a new table. Raises InvalidInputError."""
        self._check_levels(table, self.levels + 1)
        return table.parent.name, table.name

    def dropped_database(self, namespace: Id) -> str:
        """Return the name of a database to drop. Raises NamespaceNotFoundError, InvalidInputError for the root."""
        if not namespace:
            raise root_dropped(self.backend)
        return self.database(namespace)

    def _check_levels(self, path: Id, names: int) -> None:
        if len(path) != names:
            levels = "1 level" if self.levels == 1 else f"{self.levels} levels"
            raise InvalidInputError(f"{self.backend} has {levels} of namespaces: '{path}' is not at the last of them.")
        for name in path:
            if not self.name_pattern.fullmatch(name):
                raise impossible_name(self.backend, name, f"use {self.name_rule}")
