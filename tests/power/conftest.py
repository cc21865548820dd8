"""Fixtures of tests with a disk that loses power: skipped, with the reason, where none can be mounted."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.power.disk import Disk
from tests.power.kernel import has_fuse
from tests.power.postgres import prepare_cluster
from tests.services.postgres import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def fuse() -> None:
    """What a mount needs."""
    if not has_fuse():
        pytest.skip("mounting a file system needs /dev/fuse, and root")


@pytest.fixture
def disk(fuse: None, tmp_path: Path) -> Iterator[Disk]:
    """A mounted disk, empty."""
    with Disk(tmp_path / "disk").mount() as disk:
        yield disk


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL that keeps its power."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A folder that others may enter, as PostgreSQL's user has to."""
    with tempfile.TemporaryDirectory(prefix="power-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def cluster(postgres: PostgresServer, folder: Path) -> Path:
    """A cluster for disks that lose power."""
    return prepare_cluster(postgres, folder / "cluster")
