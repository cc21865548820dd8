"""Snapshots of a lake's tables, on a server and a folder: made, read, kept, compared, restored and dropped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from lance_namespace.errors import (
    InvalidInputError,
    TableNotFoundError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
)

import tiltyard
from tests.services.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Start a server for the whole file."""
    server = ServerProcess(tmp_path_factory.mktemp("snapshots"))
    yield server
    assert server.stop() == 0


@pytest.fixture(params=["server", "folder"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tiltyard.Lake]:
    """Return a lake with the tables `films` (two versions) and `shop.orders` (one)."""
    is_folder = request.param == "folder"
    lake = tiltyard.connect(tmp_path / "root" if is_folder else request.getfixturevalue("server").url)
    shop = lake.namespace("shop").create(exist_ok=True)
    films, orders = lake.table("films"), shop.table("orders")
    films.ingest([{"id": 1}, {"id": 2}])
    films.write([{"id": 3}])
    orders.ingest([{"id": 10}])
    yield lake
    for snapshot in lake.snapshots():
        snapshot.drop()
    for table in (films, orders):
        if table.exists():
            table.drop()


def test_snapshot_of_a_moment_has_the_versions_of_then(lake: tiltyard.Lake) -> None:
    films, orders = lake.table("films"), lake.table("shop.orders")
    between = datetime.now(UTC)
    time.sleep(0.002)  # times of versions are in milliseconds
    films.delete("id = 1")
    orders.write([{"id": 11}])
    made = lake.snapshot("then", ["films", "shop.orders"], at=between)
    assert made.tables == {"films": 2, "shop.orders": 1} and lake.at("then").table("films").count() == 3
    then = lake.at(between)
    assert (then.table("films").count(), then.table("shop.orders").to_arrow()["id"].to_pylist()) == (3, [10])
    before, later = between - timedelta(days=9), between + timedelta(days=9)
    with pytest.raises(TableVersionNotFoundError, match="films has no version"):
        lake.snapshot("none", ["films"], at=before)
    with pytest.raises(TableVersionNotFoundError, match="films has no version"):
        lake.at(before).table("films")
    with pytest.raises(InvalidInputError, match="is to come"):
        lake.snapshot("none", ["films"], at=later)
    for moment, message in ((datetime(2026, 1, 1), "has no zone"), (12, "give a time")):  # noqa: DTZ001  # without a zone
        with pytest.raises(InvalidInputError, match=message):
            lake.at(moment)  # type: ignore[arg-type]  # as somebody may call it
        with pytest.raises(InvalidInputError, match=message):
            lake.snapshot("none", ["films"], at=moment)  # type: ignore[arg-type]  # as somebody may call it
    assert [snapshot.name for snapshot in lake.snapshots()] == ["then"]


def test_snapshot_is_read_by_its_name_and_keeps_its_versions(lake: tiltyard.Lake) -> None:
    made = lake.snapshot("release", ["films", "shop.orders"])
    assert made.tables == {"films": 2, "shop.orders": 1} and made.created_at.year > 2000
    films, orders = lake.table("films"), lake.table("shop.orders")
    films.dataset().delete("id > 0")
    orders.write([{"id": 11}])
    at = lake.at("release")
    assert (at.table("films").count(), at.table("films").version, films.count()) == (3, 2, 0)
    assert at.table("shop.orders").to_arrow()["id"].to_pylist() == [10]
    assert films.count(tag="release") == 3 and orders.count(tag="release") == 1  # as any tag is read
    assert at.table("films").changes(1).counts() == {2: {"insert": 1}}
    films.dataset().cleanup_old_versions(retain_versions=1, delete_unverified=True, error_if_tagged_old_versions=False)
    lake.catalog.caller(5).call("CollectTableGarbage", id=["films"], keep_versions_days=0, dry_run=True)
    assert lake.at("release").table("films").count() == 3
    assert [snapshot.name for snapshot in lake.snapshots()] == ["release"]
    assert "<td>shop.orders</td><td>1</td>" in at._repr_html_() and "2 tables" in repr(at)


def test_snapshot_is_immutable_until_it_is_dropped(lake: tiltyard.Lake) -> None:
    assert lake.snapshot("release", "films").tables.keys() == {"films"}  # one name is a list of one
    films, calls = lake.table("films"), lake.catalog.caller(5)
    films.dataset().tags.create("mine", 1)
    refusals: dict[str, tuple[Any, type[Exception], str]] = {
        "the same name": (lambda: lake.snapshot("release", ["shop.orders"]), TableTagAlreadyExistsError, "immutable"),
        "a tag's name": (lambda: lake.snapshot("mine", ["films"]), TableTagAlreadyExistsError, "has a tag 'mine'"),
        "no table": (lambda: lake.snapshot("b", []), InvalidInputError, "1 to 1000 tables, each of them once"),
        "one twice": (lambda: lake.snapshot("b", ["films", "films"]), InvalidInputError, "each of them once"),
        "a missing one": (lambda: lake.snapshot("b", ["films", "none"]), TableNotFoundError, "none"),
        "a name that is none": (lambda: lake.snapshot("a/b", ["films"]), InvalidInputError, "alphanumeric"),
        "moving its tag": (
            lambda: calls.call("UpdateTableTag", id=["films"], tag="release", version=1),
            InvalidInputError,
            "which is immutable: drop the snapshot instead",
        ),
        "deleting its tag": (
            lambda: calls.call("DeleteTableTag", id=["films"], tag="release"),
            InvalidInputError,
            "drop the snapshot instead",
        ),
        "writing": (lambda: lake.at("release").table("films").write([{"id": 9}]), InvalidInputError, "is immutable"),
        "another version": (
            lambda: lake.at("release").table("films").count(version=1),
            InvalidInputError,
            "has version 2 of films",
        ),
        "another table": (lambda: lake.at("release").table("shop.orders"), InvalidInputError, "it has films"),
        "no such snapshot": (lambda: lake.at("b"), TableTagNotFoundError, "There is no snapshot 'b'"),
    }
    for what, (call, error, sentence) in refusals.items():
        with pytest.raises(error, match=sentence):
            call()
        assert [snapshot.name for snapshot in lake.snapshots()] == ["release"], what
    lake.at("release").drop()
    assert set(films.dataset().tags.list()) == {"mine"} and lake.snapshots() == []
    assert lake.snapshot("release", ["shop.orders"]).tables == {"shop.orders": 1}


def test_snapshot_is_restored_at_once_and_compared_with_another(lake: tiltyard.Lake) -> None:
    first = lake.snapshot("first", ["films", "shop.orders"])
    films, orders = lake.table("films"), lake.table("shop.orders")
    films.dataset().delete("id = 1")
    second = lake.snapshot("second", ["films"])
    compared = first.diff(second)
    assert (compared.added, compared.removed) == ((), ("shop.orders",))
    assert {name: changes.counts() for name, changes in compared.changed.items()} == {"films": {3: {"delete": 1}}}
    assert "table removed" in compared._repr_html_()
    with pytest.raises(InvalidInputError, match="'first' has an older version of films than 'second'"):
        second.diff(first)
    orders.write([{"id": 11}])
    assert first.restore() == {"films": 4, "shop.orders": 3}
    assert (films.count(), orders.count()) == (3, 1)
    assert second.restore() == {"films": 5} and films.count() == 2
    assert second.diff(lake.snapshot("third", ["films"])).changed["films"].counts().keys() <= {4, 5}
    orders.drop()
    with pytest.raises(TableNotFoundError):
        first.restore()
    assert films.count() == 2  # nothing was restored


def test_what_a_killed_server_left_is_no_snapshot_and_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tiltyard.connect(tmp_path / "root")  # in this process, which stops where a server would be killed
    lake.namespace("shop").create().table("orders").ingest([{"id": 10}])
    lake.table("films").ingest([{"id": 1}])
    lake.table("films").write([{"id": 3}])
    store = lake.catalog.client()._services.store  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "complete_snapshot", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            lake.snapshot("release", ["films", "shop.orders"])
    films, orders = lake.table("films"), lake.table("shop.orders")
    assert lake.snapshots() == [] and "release" in films.dataset().tags.list()
    with pytest.raises(TableTagNotFoundError):
        lake.at("release")
    films.write([{"id": 4}])
    assert lake.snapshot("release", ["films"]).tables == {"films": 3}
    assert films.dataset().tags.list()["release"]["version"] == 3
    assert orders.dataset().tags.list() == {}
    with monkeypatch.context() as patch:
        patch.setattr(type(store), "drop_snapshot", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            lake.at("release").drop()
    assert lake.snapshots() == [] and films.dataset().tags.list() == {}
    assert lake.snapshot("release", ["films"]).tables == {"films": 3}
