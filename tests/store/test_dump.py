"""Dumps of a catalog: of one snapshot, and loaded as they were, into either database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.services.postgres import PostgresServer
from tiltyard.store import NewVersion, NotEmptyError, Store, load_dump, open_store, read_header, read_rows
from tiltyard.store.store import open_database


def rows(file: Path) -> list[tuple[str, dict[str, object]]]:
    """Return all rows of a dump, in an order that both databases share."""
    return sorted(read_rows(file), key=lambda pair: (pair[0], sorted(map(str, pair[1].items()))))


@pytest.fixture
def filled(store: Store) -> Store:
    """A catalog with rows of several kinds: texts, flags, nulls, bytes, and ids that were given and are gone."""
    store.create_namespace(("a",), {"owner": "ada\u00fc"})
    store.create_namespace(("a", "b"), {})
    for name in ("one", "two"):
        record = store.insert_table(("a", name), f"/root/{name}.lance", {}, managed=True)
        store.record_version(NewVersion(record.id, 1, f"staged {name}", f"final {name}", manifest=b"LANC\x00\xff"))
    store.remove_table(("a", "two"), delete_folder=True)
    return store


def test_load_restores_every_row_and_gives_no_id_twice(
    filled: Store, new_url: Callable[[], str], tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    filled.dump(first)
    url = new_url()
    load_dump(url, first, lambda table, row: row)
    with open_store(url) as loaded:
        loaded.dump(second)
        assert rows(first) == rows(second)
        assert read_header(first).last_ids == read_header(second).last_ids
        last = read_header(first).last_ids["tables"]
        assert loaded.insert_table(("a", "three"), "/root/three.lance", {}).id == last + 1


def test_load_into_a_database_with_a_catalog_is_refused(filled: Store, catalog_url: str, tmp_path: Path) -> None:
    file = tmp_path / "dump"
    filled.dump(file)
    with pytest.raises(NotEmptyError):
        load_dump(catalog_url, file, lambda table, row: row)


def test_load_that_fails_leaves_the_database_empty(filled: Store, new_url: Callable[[], str], tmp_path: Path) -> None:
    file, url = tmp_path / "dump", new_url()
    filled.dump(file)

    def fail(table: str, row: dict[str, object]) -> dict[str, object]:
        if table == "tables":
            raise RuntimeError("stop")
        return row

    with pytest.raises(RuntimeError, match="stop"):
        load_dump(url, file, fail)
    load_dump(url, file, lambda table, row: row)


def test_dump_has_no_row_that_is_written_while_it_is_taken(filled: Store, catalog_url: str) -> None:
    with closing(open_database(catalog_url)) as database:

        def read(connection: object) -> list[int]:
            counts = []
            for number in range(2):
                [[count]] = connection.rows("SELECT count(*) FROM namespaces")  # type: ignore[attr-defined]
                counts.append(count)
                filled.create_namespace((f"new{number}",), {})
            return counts

        first, second = database.read_snapshot(read)
        assert first == second


@pytest.fixture
def other_url(database_kind: str, tmp_path: Path, postgres: PostgresServer) -> Iterator[str]:
    """An empty database of the other kind."""
    if database_kind == "postgres":
        yield f"sqlite:///{tmp_path}/other.db"
    else:
        url = postgres.new_database()
        yield url
        postgres.drop_database(url)


@pytest.mark.extended
def test_load_into_the_other_kind_of_database_restores_every_row(filled: Store, other_url: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    filled.dump(first)
    load_dump(other_url, first, lambda table, row: row)
    with open_store(other_url) as loaded:
        loaded.dump(second)
    assert rows(first) == rows(second)
