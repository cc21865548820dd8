"""Places where servers live and die: a root folder, a database, and a look at both that goes round the server."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from tests.services.postgres import PostgresServer, postgres_server
from tests.services.server import ServerProcess
from tests.services.wire import Wire

ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "text": [f"row {number}" for number in range(100)]})

MANY_BATCHES = 10_000
"""Rows a batch with which an upload that breaks off has brought some whole ones."""


def wait_until(true: Callable[[], Any], what: str, seconds: float = 90) -> None:
    """Return once something has become true."""
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"waited {seconds} s in vain until {what}"
        time.sleep(0.02)


class Place:
    """One root and one database; any number of servers on them."""

    def __init__(self, root: Path, db: str) -> None:
        self.root, self.db = root, db
        self.servers: list[ServerProcess] = []

    def start(self, *flags: str, **environ: str) -> ServerProcess:
        """One more server."""
        server = ServerProcess(self.root, "--db", self.db, *flags, environ=environ)
        self.servers.append(server)
        return server

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Ask the database, or change it behind the servers' back."""
        if self.db.startswith("sqlite:///"):
            with closing(sqlite3.connect(self.db.removeprefix("sqlite:///"), timeout=20)) as connection, connection:
                return connection.execute(statement).fetchall()
        with psycopg.connect(self.db) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def folders(self) -> set[str]:
        """Folders of tables under the root, by their locations."""
        return {str(path) for path in self.root.iterdir() if path.suffix == ".lance"}

    def files(self) -> set[str]:
        """All files of tables; folders that go while they are looked at have none (`rglob` would raise)."""
        walks = [walk for folder in self.folders() for walk in os.walk(folder)]
        return {str(Path(inside, name)) for inside, _, names in walks for name in names}

    def written(self) -> set[str]:
        """Locations of tables that have data, as the catalog knows them."""
        return {location for (location,) in self.sql("SELECT location FROM tables WHERE NOT declared")}

    def let_leases_end(self) -> None:
        """Let time pass for the catalog: every folder that waits for its deletion is due, every lease over."""
        self.sql("UPDATE doomed_folders SET due_at = 0")
        self.sql("UPDATE transactions SET available_at = 0 WHERE status = 'Running'")

    def wait_until_swept(self) -> None:
        """Return once no folder is marked any more; what is left on the disk then is what the catalog has."""
        self.let_leases_end()
        wait_until(lambda: not self.sql("SELECT location FROM doomed_folders"), "all marked folders are deleted")
        assert self.folders() == self.written()

    def close(self) -> None:
        for server in self.servers:
            if server.process.poll() is None:
                server.kill()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL of this folder's own: some tests stop it."""
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.extended)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A new root, and a new database of each kind."""
    root = tmp_path / "root"
    if request.param == "sqlite":
        found = Place(root, f"sqlite:///{tmp_path / 'catalog.db'}")
        yield found
        found.close()
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    url = postgres.new_database()
    found = Place(root, url)
    yield found
    found.close()
    postgres.drop_database(url)


@pytest.fixture
def small_place(tmp_path: Path) -> Iterator[Place]:
    """A new root with a SQLite file, for what does not depend on the database."""
    found = Place(tmp_path / "root", f"sqlite:///{tmp_path / 'catalog.db'}")
    yield found
    found.close()


@pytest.fixture
def talk() -> Iterator[Callable[[ServerProcess], Wire]]:
    """Clients of servers, closed at the end."""
    wires: list[Wire] = []

    def to(server: ServerProcess) -> Wire:
        wires.append(Wire(server.url))
        return wires[-1]

    yield to
    for wire in wires:
        wire.http.close()
