"""Installations for tests with faults: a root folder, a database, and access to both without the server."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import lance
import psycopg
import pyarrow as pa
import pytest

from tests.services.postgres import PostgresServer, postgres_server
from tests.services.s3 import CREDENTIALS, S3Server, s3_server
from tests.services.server import ServerProcess
from tests.services.wire import Wire

ROWS = pa.table({"id": pa.array(range(100), pa.int64()), "text": [f"row {number}" for number in range(100)]})

BUCKETS = count(1)
MANY_BATCHES = 10_000
"""Rows a batch, so that an interrupted upload has sent several complete batches."""


def wait_until(condition: Callable[[], Any], description: str, seconds: float = 90) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s in vain until {description}"
        time.sleep(0.02)


class Installation:
    """One root and one database, and the servers that use them; `options` open a root that is no folder."""

    def __init__(self, root: Path | str, db: str, options: Mapping[str, str] | None = None) -> None:
        self.root, self.db, self.options = root, db, dict(options or {})
        self.servers: list[ServerProcess] = []

    def start(self, *flags: str, **environ: str) -> ServerProcess:
        """Start another server."""
        environ = {"TILTYARD_STORAGE_OPTIONS": json.dumps(self.options), **environ}
        server = ServerProcess(self.root, "--db", self.db, *flags, environ=environ)
        self.servers.append(server)
        return server

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement on the database directly."""
        if self.db.startswith("sqlite:///"):
            with closing(sqlite3.connect(self.db.removeprefix("sqlite:///"), timeout=20)) as connection, connection:
                return connection.execute(statement).fetchall()
        with psycopg.connect(self.db) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def dataset(self, name: str) -> lance.LanceDataset:
        """Open a table of the root namespace, without a server."""
        [(location,)] = self.sql(f"SELECT location FROM tables WHERE name = '{name}'")
        return lance.dataset(location, storage_options=self.options)

    def folders(self) -> set[str]:
        """List the locations of all table folders below the root."""
        return {str(path) for path in Path(self.root).iterdir() if path.suffix == ".lance"}

    def files(self) -> set[str]:
        """List all files of tables; ignore folders that are deleted meanwhile (`rglob` would raise)."""
        walks = [walk for folder in self.folders() for walk in os.walk(folder)]
        return {str(Path(folder, name)) for folder, _, names in walks for name in names}

    def written(self) -> set[str]:
        """List the locations of tables with data in the catalog."""
        return {location for (location,) in self.sql("SELECT location FROM tables WHERE NOT declared")}

    def expire_leases(self) -> None:
        """Make every folder that is marked for deletion due, and every lease expired."""
        self.sql("UPDATE doomed_folders SET due_at = 0")
        self.sql("UPDATE transactions SET available_at = 0 WHERE status = 'Running'")

    def wait_until_swept(self) -> None:
        """Wait until all marked folders are deleted; check that the disk has exactly the catalog's tables then."""
        self.expire_leases()
        wait_until(lambda: not self.sql("SELECT location FROM doomed_folders"), "all marked folders are deleted")
        assert self.folders() == self.written()

    def close(self) -> None:
        for server in self.servers:
            if server.process.poll() is None:
                server.kill()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL for the tests of this folder: some stop it."""
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.extended)])
def installation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Installation]:
    """A new root with a new database, of each kind."""
    root = tmp_path / "root"
    if request.param == "sqlite":
        installation = Installation(root, f"sqlite:///{tmp_path / 'catalog.db'}")
        yield installation
        installation.close()
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    url = postgres.new_database()
    installation = Installation(root, url)
    yield installation
    installation.close()
    postgres.drop_database(url)


@pytest.fixture(scope="session")
def objects() -> Iterator[S3Server]:
    """An object store for the tests of this folder."""
    with s3_server() as server:
        yield server


@pytest.fixture
def lake(postgres: PostgresServer, objects: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    """An object store with PostgreSQL."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)  # clients that read and write files themselves bring their own
    url, bucket = postgres.new_database(), f"faults-{next(BUCKETS)}"
    installation = Installation(f"{objects.new_bucket(bucket)}/tables", url, objects.options)
    yield installation
    installation.close()
    postgres.drop_database(url)


@pytest.fixture
def disk_or_lake(request: pytest.FixtureRequest) -> Installation:
    """A folder with SQLite (`disk`), or an object store with PostgreSQL (`lake`), by its parameter."""
    found: Installation = request.getfixturevalue("small_installation" if request.param == "disk" else "lake")
    return found


@pytest.fixture
def small_installation(tmp_path: Path) -> Iterator[Installation]:
    """A new root with a SQLite database, for tests that do not depend on the kind of database."""
    installation = Installation(tmp_path / "root", f"sqlite:///{tmp_path / 'catalog.db'}")
    yield installation
    installation.close()


@pytest.fixture
def talk() -> Iterator[Callable[[ServerProcess], Wire]]:
    """Connect clients to servers; they are closed at the end."""
    wires: list[Wire] = []

    def to(server: ServerProcess) -> Wire:
        wires.append(Wire(server.url))
        return wires[-1]

    yield to
    for wire in wires:
        wire.http.close()
