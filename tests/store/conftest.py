"""The store's suite runs over SQLite and over a real PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

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
    created: list[str] = []

    def make() -> str:
        if database_kind == "sqlite":
            return f"sqlite:///{tmp_path}/catalog-{len(list(tmp_path.iterdir()))}.db"
        created.append(request.getfixturevalue("postgres").new_database())
        return created[-1]

    yield make
    for url in created:
        request.getfixturevalue("postgres").drop_database(url)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.extended)])
def database_kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture
def url(new_url: Callable[[], str]) -> str:
    return new_url()


@pytest.fixture
def store(url: str, clock: Clock) -> Iterator[Store]:
    with open_store(url, clock=clock) as store:
        yield store
