"""Syncs of publications that end anywhere: the next one comes to the same entries, and touches nobody else's.

Here a sync ends at each of its calls to a catalog in memory. A server that is killed is in `test_publications_kills`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from lance_namespace.errors import (
    InternalError,
    NamespaceNotFoundError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.catalog.mounts import mirror_sync
from tiltyard.catalog.mounts.mirror_sync import CHECK_MS, FIRST_PAUSE_MS, VERIFY_MS, is_due, sync
from tiltyard.context import Context
from tiltyard.model.ids import Id
from tiltyard.mounts import MountedTable
from tiltyard.runtime.lease import LEASE_MS
from tiltyard.store import MirrorRecord, Store, open_store

PUBLICATION = "lake"
START = 1_700_000_000_000
FOREIGN = MountedTable(Id(("films", "taken")), "/somewhere/else")


class Crash(BaseException):
    """The end of a process."""


@dataclass
class MemoryCatalog:
    """A catalog that keeps properties and renames, or does not; it ends the process at the call `crash_at`.

    That is before the call has done anything (`.0`), or after it has (`.5`).
    """

    keeps_properties: bool
    renames: bool
    tables: dict[Id, MountedTable] = field(default_factory=lambda: {FOREIGN.id: FOREIGN})
    namespaces: set[Id] = field(default_factory=lambda: {Id(("films",))})
    changes: list[str] = field(default_factory=list)
    crash_at: float | None = None
    failure: Exception | None = None
    broken: set[Id] = field(default_factory=set)
    kind: str = "memory"
    levels: int | None = None

    def get_namespace(self, namespace: Id) -> Mapping[str, str]:
        if namespace not in self.namespaces:
            raise NamespaceNotFoundError(str(namespace))
        return {}

    def create_namespace(self, namespace: Id, properties: Mapping[str, str]) -> None:
        self._change("create_namespace", lambda: self.namespaces.add(namespace))

    def get_table(self, table: Id) -> MountedTable:
        if self.failure is not None:
            raise self.failure
        if table in self.broken:
            raise InternalError(f"{table} has failed")
        if table not in self.tables:
            raise TableNotFoundError(str(table))
        return self.tables[table]

    def declare_table(self, table: Id, location: str | None, properties: Mapping[str, str]) -> MountedTable:
        if properties and not self.keeps_properties:
            raise UnsupportedOperationError("no properties")
        if table in self.tables:
            raise TableAlreadyExistsError(str(table))
        assert location is not None and table.parent in self.namespaces
        self._change("declare", lambda: self.tables.update({table: MountedTable(table, location, dict(properties))}))
        return self.tables[table]

    def update_table_properties(self, table: Id, changes: Mapping[str, str | None]) -> MountedTable:
        raise UnsupportedOperationError("no change of properties")

    def rename_table(self, table: Id, new_id: Id) -> MountedTable:
        if not self.renames:
            raise UnsupportedOperationError("no renames")
        assert new_id not in self.tables

        def rename() -> None:
            before = self.tables.pop(table)
            self.tables[new_id] = MountedTable(new_id, before.location, before.properties)

        self._change("rename", rename)
        return self.tables[new_id]

    def deregister_table(self, table: Id) -> MountedTable:
        assert table != FOREIGN.id
        found = self.get_table(table)
        self._change("deregister", lambda: self.tables.pop(table))
        return found

    def close(self) -> None:
        pass

    def _change(self, name: str, change: Callable[[], object]) -> None:
        number = len(self.changes)
        if self.crash_at == number:
            raise Crash
        self.changes.append(name)
        change()
        if self.crash_at == number + 0.5:
            raise Crash


@dataclass
class World:
    """A catalog of ours that publishes to one in memory."""

    store: Store
    theirs: MemoryCatalog
    now: int

    def create(self, *path: str) -> None:
        self.store.insert_table(path, f"/root/{'_'.join(path)}_{self.now}", {})
        self.now += 1

    def drop(self, *path: str) -> None:
        self.store.remove_table(path, delete_folder=False)
        self.now += 1

    def rename(self, path: tuple[str, ...], new: tuple[str, ...]) -> None:
        self.store.rename_table(path, new)
        self.now += 1

    def publication(self) -> MirrorRecord:
        found = self.store.find_mirror(PUBLICATION)
        assert found is not None
        return found

    def sync(self, *, verify: bool = False) -> None:
        """Sync as a process that has just started: leases of the one before have ended."""
        self.now += LEASE_MS
        claimed = self.store.claim_mirror(self.publication().id, "owner", LEASE_MS)
        assert claimed is not None
        services = SimpleNamespace(store=self.store, clock=lambda: self.now)
        sync(Context(cast(Any, services)), claimed, "owner", lambda: False, verify=verify)

    def expected(self) -> dict[Id, str]:
        """Return where each entry should be, of ours and of others."""
        ours = {
            Id((*namespace, name)): self.store.describe_table((*namespace, name)).location
            for namespace in ((), ("films",), ("films", "old"))
            for name in self.store.list_tables(namespace, None, 100)
            if namespace
        }
        return ours | {FOREIGN.id: FOREIGN.location}

    def found(self) -> dict[Id, str]:
        return {path: table.location for path, table in self.theirs.tables.items()}


@pytest.fixture
def new_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bool, bool], World]]:
    numbers = itertools.count()
    worlds: list[World] = []

    def make(keeps_properties: bool, renames: bool) -> World:
        store = open_store(
            f"sqlite:///{tmp_path}/catalog-{next(numbers)}.db", clock=lambda: worlds[-1].now if worlds else START
        )
        worlds.append(World(store, MemoryCatalog(keeps_properties, renames), START))
        world = worlds[-1]
        monkeypatch.setattr(mirror_sync, "open_catalog", lambda kind, settings: worlds[-1].theirs)
        for path in (("films",), ("films", "old")):
            store.create_namespace(path, {})
        store.add_mirror(PUBLICATION, "memory", {}, None, namespace=("films",), target=(), has_columns=False)
        return world

    yield make
    for world in worlds:
        world.store.close()


def first_tables(world: World) -> None:
    for name in ("a", "b", "c", "d"):
        world.create("films", name)
    world.create("films", "old", "e")


def many_changes(world: World) -> None:
    """Rename, swap, move, drop, replace, create."""
    world.rename(("films", "a"), ("films", "renamed"))
    world.rename(("films", "b"), ("films", "x"))
    world.rename(("films", "c"), ("films", "b"))
    world.rename(("films", "x"), ("films", "c"))
    world.rename(("films", "old", "e"), ("films", "e"))
    world.drop("films", "d")
    world.create("films", "d")
    world.create("films", "old", "f")


def synced_twice(world: World, crash_at: float | None = None, *, in_second: bool = False) -> bool:
    """Sync after the first tables, and after the changes; return whether one of both crashed on its way."""
    crashed = False
    for change, has_crash in ((first_tables, not in_second), (many_changes, in_second)):
        change(world)
        world.theirs.changes.clear()
        world.theirs.crash_at = crash_at if has_crash else None
        try:
            world.sync()
        except Crash:
            crashed = True
            world.theirs.crash_at = None
            world.sync()
        assert world.found() == world.expected()
    return crashed


@pytest.mark.parametrize(
    ("keeps_properties", "renames"),
    [
        (True, True),
        (False, False),
        pytest.param(True, False, marks=pytest.mark.extended),
        pytest.param(False, True, marks=pytest.mark.extended),
    ],
)
@pytest.mark.parametrize("in_second", [False, True])
def test_a_sync_that_ends_at_any_call_is_completed_by_the_next(
    new_world: Callable[[bool, bool], World], keeps_properties: bool, renames: bool, in_second: bool
) -> None:
    number = 0
    for step in itertools.count():
        if not synced_twice(new_world(keeps_properties, renames), step / 2, in_second=in_second):
            break
        number += 1
    assert number >= 10


def test_a_sync_without_differences_calls_nobody(new_world: Callable[[bool, bool], World]) -> None:
    world = new_world(True, True)
    first_tables(world)
    world.sync()
    world.theirs.failure = ServiceUnavailableError("it is away")
    world.sync()
    assert world.publication().error is None
    assert not is_due(world.publication(), world.store.tables_fingerprint(), world.now + CHECK_MS)
    assert is_due(world.publication(), world.store.tables_fingerprint(), world.now + VERIFY_MS)
    world.create("films", "g")
    assert is_due(world.publication(), world.store.tables_fingerprint(), world.now)


def test_a_sync_that_has_no_more_time_is_gone_on_with_and_verifies_all(
    new_world: Callable[[bool, bool], World],
) -> None:
    world = new_world(True, True)
    first_tables(world)
    world.sync()
    del world.theirs.tables[Id(("films", "d"))]
    looks = itertools.count()
    world.now += LEASE_MS
    claimed = world.store.claim_mirror(world.publication().id, "request", LEASE_MS)
    assert claimed is not None
    services = SimpleNamespace(store=world.store, clock=lambda: world.now)
    sync(Context(cast(Any, services)), claimed, "request", lambda: next(looks) >= 2, verify=True)
    stopped = world.publication()
    assert stopped.error is None and is_due(stopped, world.store.tables_fingerprint(), world.now)
    assert Id(("films", "d")) not in world.theirs.tables
    world.sync()
    assert world.found() == world.expected()


def test_a_catalog_that_is_away_is_tried_less_and_less_often(new_world: Callable[[bool, bool], World]) -> None:
    world = new_world(True, True)
    first_tables(world)
    world.theirs.failure = ServiceUnavailableError("it is away")
    pauses = []
    for _ in range(4):
        world.sync()
        publication = world.publication()
        assert publication.error == "it is away"
        assert not is_due(publication, world.store.tables_fingerprint(), world.now)
        pauses.append(publication.due_at - world.now)
    assert pauses == [FIRST_PAUSE_MS * factor for factor in (1, 2, 4, 8)]
    world.theirs.failure = None
    world.sync()
    assert world.publication().error is None and world.found() == world.expected()


@pytest.mark.parametrize("is_dropped", [False, True])
def test_an_entry_that_cannot_be_read_keeps_no_other_from_being_synced(
    new_world: Callable[[bool, bool], World], is_dropped: bool
) -> None:
    world = new_world(True, True)
    first_tables(world)
    world.sync()
    world.theirs.broken = {Id(("films", "a"))}
    if is_dropped:
        world.drop("films", "a")
    world.create("films", "g")
    world.sync(verify=True)
    assert Id(("films", "g")) in world.theirs.tables
    count, problems = world.store.mirror_problems(world.publication().id, 10)
    assert count == 1 and problems[0].path == ("films", "a") and "films$a has failed" in problems[0].problem
    world.theirs.broken = set()
    world.sync()
    assert world.found() == world.expected()


def test_an_owner_that_has_lost_its_lease_changes_nothing_more(new_world: Callable[[bool, bool], World]) -> None:
    world = new_world(True, True)
    first_tables(world)
    claimed = world.store.claim_mirror(world.publication().id, "slow", LEASE_MS)
    assert claimed is not None
    assert world.store.claim_mirror(claimed.id, "other", LEASE_MS) is None
    world.now += LEASE_MS
    assert world.store.claim_mirror(claimed.id, "other", LEASE_MS) is not None
    services = SimpleNamespace(store=world.store, clock=lambda: world.now)
    sync(Context(cast(Any, services)), claimed, "slow", lambda: False)
    assert world.theirs.changes == []
    assert world.publication().lease_owner == "other"


def test_an_entry_of_ours_whose_table_is_gone_gives_way(new_world: Callable[[bool, bool], World]) -> None:
    """Tables that are replaced while a publication does not exist, which left its entries there."""
    world = new_world(True, True)
    first_tables(world)
    world.sync()
    world.store.delete_mirror(world.publication().id)
    world.drop("films", "a")
    world.create("films", "a")
    world.store.add_mirror(PUBLICATION, "memory", {}, None, namespace=("films",), target=(), has_columns=False)
    world.sync()
    assert world.found() == world.expected()


def test_two_tables_of_one_name_there_are_reported_and_one_is_published(
    new_world: Callable[[bool, bool], World],
) -> None:
    world = new_world(True, True)
    world.store.delete_mirror(world.publication().id)
    world.store.add_mirror(PUBLICATION, "memory", {}, 1, namespace=(), target=(), has_columns=False)
    world.store.create_namespace(("old",), {})
    world.create("top")
    world.create("films", "old", "t")
    world.create("old", "t")
    world.sync()
    first = world.store.describe_table(("films", "old", "t"))
    assert world.theirs.tables[Id(("old", "t"))].location == first.location
    count, problems = world.store.mirror_problems(world.publication().id, 10)
    assert count == 2
    assert {each.path: each.problem.split(",")[0] for each in problems} == {
        ("old", "t"): "The table films$old$t has the same name there",
        ("top",): "The other catalog has tables below 1 levels of namespaces",
    }
