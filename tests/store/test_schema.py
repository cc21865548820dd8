"""Migrations: from nothing, from every earlier version, by several at once, and from the future."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from lance_namespace.errors import ServiceUnavailableError

from tiltyard.store import StoreVersionError, open_store, upgrade, wall_clock
from tiltyard.store.schema import migrate, migrations
from tiltyard.store.store import open_database

if TYPE_CHECKING:
    from pathlib import Path

NAMES = [migration.name for migration in migrations()]


@pytest.mark.parametrize("version", range(len(NAMES)))
def test_upgrade_from_each_earlier_version(url: str, version: int) -> None:
    database = open_database(url)
    assert migrate(database, wall_clock, upto=version) == NAMES[:version]
    database.close()
    with pytest.raises(StoreVersionError, match="upgrade"):
        open_store(url, migrate=False)
    assert upgrade(url) == NAMES[version:]
    assert upgrade(url) == []
    with open_store(url, migrate=False) as store:
        assert store.list_namespaces((), None, 10) == []
        assert store.describe_namespace(()).id == 1


def test_migrations_are_numbered_without_gaps() -> None:
    assert [migration.version for migration in migrations()] == list(range(1, len(NAMES) + 1))


def test_open_store_refuses_a_database_newer_than_the_code(url: str) -> None:
    upgrade(url)
    database = open_database(url)
    database.write(lambda connection: connection.change("INSERT INTO schema_migrations VALUES (?, ?)", 9999, 0))
    database.close()
    for attempt in (lambda: open_store(url), lambda: open_store(url, migrate=False), lambda: upgrade(url)):
        with pytest.raises(StoreVersionError, match="9999"):
            attempt()


def test_open_store_by_many_at_once_migrates_once(url: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(lambda _: open_store(url), range(8)))
    for i, store in enumerate(stores):
        store.create_namespace((f"n{i}",), {})
    assert stores[0].list_namespaces((), None, 10) == [f"n{i}" for i in range(8)]
    for store in stores:
        store.close()


@pytest.mark.parametrize("wrong", ["", "sqlite://", "sqlite:///", "mysql://x", "/a/file.db"])
def test_open_store_with_another_url_is_a_value_error(wrong: str) -> None:
    with pytest.raises(ValueError, match="database URL"):
        open_store(wrong)


def test_open_store_that_cannot_be_reached_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "text.db").write_text("not a database, but longer than the header of one would be" * 20)
    for url in (f"sqlite:///{tmp_path}/file/x.db", f"sqlite:///{tmp_path}/text.db", f"sqlite:///{tmp_path}"):
        with pytest.raises(ServiceUnavailableError):
            open_store(url)
