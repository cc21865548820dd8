"""A catalog in process, and callers with few privileges on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiltyard
from tests.services.postgres import PostgresServer, postgres_server
from tests.services.wire import stream
from tiltyard.model.principals import EVERYBODY, Principal, Privilege, parse_privileges
from tiltyard.store.access.grants import NAMESPACE, SERVER, TABLE
from tiltyard_conformance.cases import ROWS

ROWS_AS_STREAM = stream(ROWS)


class Catalog:
    """One catalog, opened by any object_id of principals: `as_("ann")` is the namespace client of ann."""

    def __init__(self, root: Path, db: str | None = None) -> None:
        self.owner = tiltyard.Namespace(str(root), db, jobs=0)
        self._root, self._db = root, db
        self._services = self.owner._services
        self._clients: dict[Principal, tiltyard.Namespace] = {EVERYBODY: self.owner}

    @property
    def store(self) -> Any:
        return self._services.store

    def as_(self, name: str, *groups: str) -> tiltyard.Namespace:
        principal = Principal(name, groups, "test")
        if principal not in self._clients:
            self._clients[principal] = tiltyard.Namespace(str(self._root), self._db, jobs=0, principal=principal)
        return self._clients[principal]

    def namespace(self, *path: str) -> int:
        self.owner.create_namespace({"id": list(path)})
        object_id: int = self.store.describe_namespace(path).id
        return object_id

    def table(self, *path: str) -> int:
        self.owner.create_table({"id": list(path)}, ROWS_AS_STREAM)
        object_id: int = self.store.describe_table(path).id
        return object_id

    def grant(self, grantee: str, privileges: str, *, table: Any = None, namespace: Any = None) -> None:
        """Grant privileges on a table or a namespace by its path, else the server; to `kind:name`, or a principal."""
        kind, object_id = SERVER, 0
        if table is not None:
            kind, object_id = TABLE, self.store.describe_table(tuple(table)).id
        elif namespace is not None:
            kind, object_id = NAMESPACE, self.store.describe_namespace(tuple(namespace)).id
        grantee_text = grantee if ":" in grantee else f"principal:{grantee}"
        self.store.grant(grantee_text, kind, object_id, parse_privileges(privileges.split(",")), "test")
        self.refresh_rights()

    def refresh_rights(self) -> None:
        """Let all clients check for changes at their next call, as if a second had passed."""
        for client in self._clients.values():
            client._services.rights_cache.refresh_next()
            client._services.protections.refresh_next()

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.extended)])
def catalog(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Catalog]:
    db = request.getfixturevalue("postgres").new_database() if request.param == "postgres" else None
    catalog = Catalog(tmp_path / "root", db)
    yield catalog
    catalog.close()


__all__ = ["ROWS_AS_STREAM", "Catalog", "Privilege"]
