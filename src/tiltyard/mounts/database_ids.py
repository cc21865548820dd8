"""Ids below a catalog whose only namespaces are databases: one level, and names that it folds to lower case."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
    would find another one for it, such as `films` for `Films`.
    """

    backend: str
    name_pattern: re.Pattern[str]
    name_rule: str

    def database(self, namespace: Id) -> str:
        """Return the name of a database that may exist. Raises NamespaceNotFoundError for what cannot be one."""
        if len(namespace) != 1 or not self.name_pattern.fullmatch(namespace.name):
            raise missing_namespace(namespace)
        return namespace.name

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
        self._check_levels(namespace, 1)
        return namespace.name

    def new_table(self, table: Id) -> tuple[str, str]:
        """Return the names of a database and a new table. Raises InvalidInputError."""
        self._check_levels(table, 2)
        return table.parent.name, table.name

    def dropped_database(self, namespace: Id) -> str:
        """Return the name of a database to drop. Raises NamespaceNotFoundError, InvalidInputError for the root."""
        if not namespace:
            raise root_dropped(self.backend)
        return self.database(namespace)

    def _check_levels(self, path: Id, names: int) -> None:
        if len(path) != names:
            raise InvalidInputError(f"{self.backend} has 1 level of namespaces: '{path}' is not at it.")
        for name in path:
            if not self.name_pattern.fullmatch(name):
                raise impossible_name(self.backend, name, f"use {self.name_rule}")
