"""A catalog in this process, and callers with few rights in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiltyard
from tests.conformance.cases import ROWS
from tests.services.postgres import PostgresServer, postgres_server
from tests.services.wire import stream
from tiltyard.model.principals import EVERYBODY, Principal
from tiltyard.model.privileges import Privilege, parse_privileges
from tiltyard.store.access.grants import NAMESPACE, SERVER, TABLE

ROWS_AS_STREAM = stream(ROWS)


class Catalog:
    """One catalog, seen by any number of principals: `as_("ann")` is the twin that asks as ann."""

    def __init__(self, root: Path, db: str | None = None) -> None:
        self.owner = tiltyard.Namespace(str(root), db, jobs=0)
        self._root, self._db = root, db
        self._services = self.owner._services
        self._twins: dict[Principal, tiltyard.Namespace] = {EVERYBODY: self.owner}

    @property
    def store(self) -> Any:
        return self._services.store

    def as_(self, name: str, *groups: str) -> tiltyard.Namespace:
        principal = Principal(name, groups, "test")
        if principal not in self._twins:
            self._twins[principal] = tiltyard.Namespace(str(self._root), self._db, jobs=0, principal=principal)
        return self._twins[principal]

    def namespace(self, *path: str) -> int:
        self.owner.create_namespace({"id": list(path)})
        number: int = self.store.describe_namespace(path).id
        return number

    def table(self, *path: str) -> int:
        self.owner.create_table({"id": list(path)}, ROWS_AS_STREAM)
        number: int = self.store.describe_table(path).id
        return number

    def grant(self, grantee: str, privileges: str, *, table: Any = None, namespace: Any = None) -> None:
        """Grant at once: on a table or a namespace by its path, else on the server; to `kind:name`, or a principal."""
        kind, number = SERVER, 0
        if table is not None:
            kind, number = TABLE, self.store.describe_table(tuple(table)).id
        elif namespace is not None:
            kind, number = NAMESPACE, self.store.describe_namespace(tuple(namespace)).id
        whom = grantee if ":" in grantee else f"principal:{grantee}"
        self.store.grant(whom, kind, number, parse_privileges(privileges.split(",")), "test")
        self.changed()

    def changed(self) -> None:
        """Let all twins look for changes at their next call, as if a second had passed."""
        for twin in self._twins.values():
            twin._services.rights_cache.refresh_next()

    def close(self) -> None:
        for twin in self._twins.values():
            twin.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.extended)])
def catalog(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Catalog]:
    db = request.getfixturevalue("postgres").new_database() if request.param == "postgres" else None
    found = Catalog(tmp_path / "root", db)
    yield found
    found.close()


__all__ = ["ROWS_AS_STREAM", "Catalog", "Privilege"]
