"""An installation whose state before an operation is put back before each kill."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import psycopg
import pyarrow as pa

import tiltyard
from tests.services.wire import stream
from tiltyard.bootstrap import open_services, register_operations
from tiltyard.config import load_settings
from tiltyard.context import Context
from tiltyard.model.principals import SERVER

MOUNT = "theirs"


@dataclass(frozen=True)
class Installation:
    """A folder with a root, and with whatever else an operation writes to; and a database."""

    folder: Path
    url: str

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of every process of it; the folder `lake` is a mounted catalog."""
        lake = self.folder / "lake"
        mount = {"kind": "dir", "root": str(lake), "mode": "manifest", "max_age": 0.0, "allowed_locations": [str(lake)]}
        return {
            "root": str(self.root),
            "db": self.url,
            "mounts": {MOUNT: mount} if lake.exists() else {},
            "retention_days": 0.0,
            "upkeep": True,
        }

    @contextmanager
    def namespace(self) -> Iterator[tiltyard.Namespace]:
        """Open the catalog in this process, without workers."""
        with tiltyard.Namespace(jobs=0, **self.settings) as opened:
            yield opened

    @contextmanager
    def context(self) -> Iterator[Context]:
        """Open the catalog as a server's own threads have it."""
        register_operations()
        services = open_services(load_settings(self.settings))
        try:
            yield Context(services, "sweep", principal=SERVER)
        finally:
            services.close()

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement on the database directly."""
        if self.url.startswith("sqlite:///"):
            with closing(sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=20)) as connection, connection:
                return connection.execute(statement).fetchall()
        with psycopg.connect(self.url) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def expire_leases(self) -> None:
        """End the leases of the process that was killed."""
        self.sql("UPDATE transactions SET available_at = 0 WHERE status = 'Running'")
        self.sql("UPDATE publications SET lease_until = 0")
        self.sql("UPDATE append_turns SET expires_at = 0")
        self.sql("UPDATE schedules SET rests_until = 0")
        self.sql("UPDATE upkeep SET due_at = 0, rests_until = 0")

    def ids(self, name: str) -> list[int]:
        """Return the ids in a table of the root namespace, by its files alone."""
        [(location,)] = self.sql(f"SELECT location FROM tables WHERE name = '{name}'")
        ids: list[int] = sorted(lance.dataset(location).to_table()["id"].to_pylist())
        return ids

    def save(self, place: Path) -> None:
        shutil.copytree(self.folder, place, symlinks=True)

    def put_back(self, place: Path) -> None:
        """Put back a state that was saved. The database is in the folder, or is put back by whoever has it."""
        shutil.rmtree(self.folder)
        shutil.copytree(place, self.folder, symlinks=True)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "value": pa.array([0] * len(ids), pa.int64())})


def create_table(namespace: tiltyard.Namespace, path: list[str], *ids: int) -> None:
    namespace.call("CreateTable", {"id": path}, stream(rows(*ids)))


def insert(namespace: tiltyard.Namespace, path: list[str], *ids: int) -> None:
    namespace.call("InsertIntoTable", {"id": path}, stream(rows(*ids)))
