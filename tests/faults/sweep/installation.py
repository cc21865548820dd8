"""An installation whose state before an operation is put back before each kill."""

from __future__ import annotations

import fnmatch
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lance
import psycopg
import pyarrow as pa

import tiltyard
from tests.services.s3 import S3Server
from tests.services.wire import stream
from tiltyard.bootstrap import open_services, register_operations
from tiltyard.config import load_settings
from tiltyard.context import Context
from tiltyard.model.principals import SERVER
from tiltyard.tables.opening import find_table
from tiltyard.tables.upkeep.garbage import CollectOptions, collect
from tiltyard.worker import Worker

MOUNT = "theirs"
BUCKET = "SWEEP_BUCKET"
"""The variable with the bucket of an installation on an object store."""


@dataclass(frozen=True)
class Installation:
    """A folder with whatever an operation writes to; a database; and a root, in the folder or on an object store."""

    folder: Path
    url: str
    bucket: str = ""

    @property
    def root(self) -> str:
        return f"s3://{self.bucket}/root" if self.bucket else str(self.folder / "root")

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of every process of it; the folder `lake` is a mounted catalog."""
        lake = self.folder / "lake"
        mount = {"kind": "dir", "root": str(lake), "mode": "manifest", "max_age": 0.0, "allowed_locations": [str(lake)]}
        return {
            "root": self.root,
            "db": self.url,
            "mounts": {MOUNT: mount} if lake.exists() else {},
            "retention_days": 0.0,
            "upkeep": True,
        }

    @contextmanager
    def namespace(self, **settings: Any) -> Iterator[tiltyard.Namespace]:
        """Open the catalog in this process, without workers, with further settings."""
        with tiltyard.Namespace(jobs=0, **{**self.settings, **settings}) as opened:
            yield opened

    @contextmanager
    def context(self, **settings: Any) -> Iterator[Context]:
        """Open the catalog as a server's own threads have it, with further settings."""
        register_operations()
        services = open_services(load_settings({**self.settings, **settings}))
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

    def location(self, name: str) -> str:
        """Return where a table is."""
        [(location,)] = self.sql(f"SELECT location FROM tables WHERE name = '{name}'")
        return str(location)

    def ids(self, name: str) -> list[int]:
        """Return the ids in a table, by its files alone."""
        ids: list[int] = sorted(lance.dataset(self.location(name)).to_table()["id"].to_pylist())
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


def work_off(namespace: tiltyard.Namespace) -> None:
    """Run what is queued for workers."""
    worker = Worker(namespace._services, 0)
    while worker.run_one():
        pass


def list_files(place: str) -> Mapping[str, Callable[[], bytes]]:
    """Return the files below a folder, or a URI of the object store, by their paths in it, and how each is read."""
    if not place.startswith("s3://"):
        folder = Path(place)
        return {str(file.relative_to(folder)): file.read_bytes for file in folder.rglob("*") if file.is_file()}
    server = S3Server(os.environ["AWS_ENDPOINT"])
    bucket, _, prefix = place.removeprefix("s3://").partition("/")

    def read(key: str) -> bytes:
        content: bytes = server.client.get_object(Bucket=bucket, Key=key)["Body"].read()
        return content

    keys = server.list_keys(bucket, f"{prefix}/")
    return {key.removeprefix(f"{prefix}/"): partial(read, key) for key in keys}


def unneeded_files(location: str) -> Iterator[str]:
    """Iterate over the files of a table that none of its versions needs, as Lance tells them."""
    files, dataset, needed = list_files(location), lance.dataset(location), set[str]()
    versions = [dataset.checkout_version(entry["version"]) for entry in dataset.versions()]
    for version in versions:
        for fragment in version.get_fragments():
            needed |= {f"data/{file.path}" for file in fragment.data_files()}
            needed |= {fragment.deletion_file() or ""}
        needed |= {f"_indices/{part.uuid}" for index in version.describe_indices() for part in index.segments}
    for path in files:
        parts = path.split("/")
        if "/".join(parts[:2]) not in needed and parts[0] not in ("_versions", "_transactions"):
            yield path
    for pattern in ("_versions/*.manifest", "_transactions/*"):
        if (count := len(fnmatch.filter(files, pattern))) > len(versions):
            yield f"{count} files {pattern} of {len(versions)} versions"


def check_collected(installation: Installation, name: str) -> None:
    """Check that a collection leaves of a table what its versions need, all of that, and nothing else."""
    location = installation.location(name)
    before = lance.dataset(location).count_rows()
    with installation.context(gc_safety_days=0.0) as ctx:
        collect(ctx, find_table(ctx, [name]), CollectOptions())
    assert not (unneeded := list(unneeded_files(location))), unneeded
    assert lance.dataset(location).to_table().num_rows == before
