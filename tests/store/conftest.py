"""The store's suite runs over SQLite and over a real PostgreSQL."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest

from tests.services.catalogs import prepare_catalog
from tests.services.postgres import PostgresServer, postgres_server
from tiltyard.store import Store, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Clock:
    """A clock that only `advance` moves."""

    def __init__(self) -> None:
        self.now = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now

    def advance(self, ms: int) -> None:
        """Add to the time."""
        self.now += ms


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def new_url(tmp_path: Path, request: pytest.FixtureRequest, database_kind: str) -> Iterator[Callable[[], str]]:
    """Make empty databases of the kind under test."""
    if database_kind == "sqlite":
        numbers = count(1)
        yield lambda: f"sqlite:///{tmp_path}/catalog-{next(numbers)}.db"
        return
    created: list[str] = []
    postgres: PostgresServer = request.getfixturevalue("postgres")

    def make() -> str:
        created.append(postgres.new_database())
        return created[-1]

    yield make
    for url in created:
        postgres.drop_database(url)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.extended)])
def database_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def url(new_url: Callable[[], str]) -> str:
    return new_url()


@pytest.fixture
def catalog_url(tmp_path: Path, request: pytest.FixtureRequest, database_kind: str) -> Iterator[str]:
    """Create a catalog of the kind under test, with the schema of this code."""
    if database_kind == "sqlite":
        url = f"sqlite:///{tmp_path}/catalog.db"
        prepare_catalog(url)
        yield url
        return
    postgres: PostgresServer = request.getfixturevalue("postgres")
    url = postgres.new_catalog()
    yield url
    postgres.drop_database(url)


@pytest.fixture
def store(catalog_url: str, clock: Clock) -> Iterator[Store]:
    with open_store(catalog_url, clock=clock) as store:
        yield store
