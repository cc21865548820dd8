"""The trash: removed tables and namespaces can be restored for a while: once, whole, and never during a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import pytest
from lance_namespace.errors import (
    InvalidInputError,
    NamespaceAlreadyExistsError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
)
from msgspec.structs import replace

from tests.store.test_races import kinds, race, won
from tiltyard.model.modes import CreateMode
from tiltyard.store import NewVersion

if TYPE_CHECKING:
    from tests.store.conftest import Clock
    from tiltyard.store import Store, TableRecord

T = TypeVar("T")
KEEP = 1000
HOUR = 3_600_000


@pytest.fixture
def table(store: Store) -> TableRecord:
    """A managed table `a$t` with two versions."""
    store.create_namespace(("a",), {"k": "v"})
    record = store.insert_table(("a", "t"), "mem://t", {"n": "é"}, managed=True)
    for version in (1, 2):
        store.record_version(NewVersion(record.id, version, f"s{version}", f"m{version}", metadata={"x": "y"}))
    return record


def test_restore_table_restores_all_of_its_records(store: Store, clock: Clock, table: TableRecord) -> None:
    versions = store.list_versions(table.id)
    store.remove_table(("a", "t"), delete_folder=True, keep_ms=KEEP)
    [removed] = store.list_removed_tables(None, 10)
    assert (removed.id, removed.namespace, removed.name, removed.dropped) == (table.id, ("a",), "t", True)
    assert (removed.removed_at, removed.due_at) == (clock.now, clock.now + KEEP)
    assert store.claim_due_deletions(10, HOUR) == []
    clock.advance(5)
    assert store.restore_table(("a", "t")) == replace(table, updated_at=clock.now)
    assert store.list_versions(table.id) == versions
    clock.advance(2 * KEEP)
    assert (store.claim_due_deletions(10, HOUR), store.list_removed_tables(None, 10)) == ([], [])
    with pytest.raises(TableNotFoundError):
        store.restore_table(("a", "t"))


def test_restore_table_restores_manifests_that_are_not_known_to_be_durable(store: Store, table: TableRecord) -> None:
    record, _ = store.record_version(NewVersion(table.id, 3, "s3", "m3", manifest=b"LANC"))
    store.remove_table(("a", "t"), delete_folder=True, keep_ms=KEEP)
    assert store.stored_manifest(record) is None
    store.restore_table(("a", "t"))
    assert store.stored_manifest(record) == b"LANC"


def test_remove_table_for_good_removes_an_earlier_one_at_its_location_for_good(
    store: Store, table: TableRecord
) -> None:
    store.remove_table(("a", "t"), delete_folder=False, keep_ms=KEEP)
    store.insert_table(("again",), table.location, {}, registered=True)
    store.remove_table(("again",), delete_folder=True)
    assert store.list_removed_tables(None, 10) == []
    with pytest.raises(TableNotFoundError):
        store.restore_table(("a", "t"))


def test_remove_table_that_is_kept_frees_the_name_but_not_the_location(store: Store, table: TableRecord) -> None:
    store.remove_table(("a", "t"), delete_folder=True, keep_ms=KEEP)
    with pytest.raises(InvalidInputError, match="undrop"):
        store.insert_table(("a", "t"), "mem://t", {}, registered=True)
    other = store.insert_table(("a", "t"), "mem://u", {})
    assert other.id > table.id
    with pytest.raises(TableAlreadyExistsError):
        store.restore_table(("a", "t"))
    with pytest.raises(NamespaceNotFoundError):
        store.restore_table(("a", "t"), ("x", "t"))
    assert store.restore_table(("a", "t"), ("t2",)).id == table.id
    assert store.describe_table(("t2",)).location == "mem://t"


def test_restore_table_takes_the_newest_without_an_id(store: Store, clock: Clock) -> None:
    ids = []
    for number in range(3):
        ids.append(store.insert_table(("t",), f"mem://{number}", {}).id)
        store.remove_table(("t",), delete_folder=True, keep_ms=KEEP)
        clock.advance(1)
    assert [removed.id for removed in store.list_removed_tables(None, 2)] == [ids[2], ids[1]]
    page = store.list_removed_tables(None, 2)[-1]
    assert [removed.id for removed in store.list_removed_tables((page.removed_at, page.id), 2)] == [ids[0]]
    assert store.restore_table(("t",), ("first",), ids[0]).id == ids[0]
    assert store.restore_table(("t",)).id == ids[2]


def test_an_expired_table_is_swept_and_gone_for_good(store: Store, clock: Clock, table: TableRecord) -> None:
    store.remove_table(("a", "t"), delete_folder=True, keep_ms=KEEP)
    clock.advance(KEEP)
    assert [folder.location for folder in store.claim_due_deletions(10, HOUR)] == ["mem://t"]
    assert store.list_removed_tables(None, 10) == []
    with pytest.raises(TableNotFoundError):
        store.restore_table(("a", "t"))
    store.complete_deletion("mem://t")
    store.insert_table(("a", "t"), "mem://t", {}, registered=True)


def test_a_deregistered_table_is_restored_unless_its_location_is_used(
    store: Store, clock: Clock, table: TableRecord
) -> None:
    store.remove_table(("a", "t"), delete_folder=False, keep_ms=KEEP)
    assert not store.list_removed_tables(None, 10)[0].dropped
    store.insert_table(("a", "u"), "mem://t", {}, registered=True)
    assert store.list_removed_tables(None, 10) == []
    with pytest.raises(InvalidInputError):
        store.restore_table(("a", "t"))
    store.remove_table(("a", "u"), delete_folder=True, keep_ms=KEEP)
    with pytest.raises(InvalidInputError):
        store.restore_table(("a", "t"))
    store.restore_table(("a", "u"))
    store.remove_table(("a", "u"), delete_folder=False)
    assert store.restore_table(("a", "t")).id == table.id
    store.remove_table(("a", "t"), delete_folder=False, keep_ms=KEEP)
    clock.advance(KEEP)
    assert store.claim_due_deletions(10, HOUR) == []
    assert store.list_removed_tables(None, 10) == []


def test_replace_registration_keeps_what_it_replaces(store: Store, table: TableRecord) -> None:
    store.replace_registration(("a", "t"), "mem://other", {}, keep_ms=KEEP)
    assert store.restore_table(("a", "t"), ("a", "old")) == replace(
        table, name="old", updated_at=store.describe_table(("a", "old")).updated_at
    )
    assert len(store.list_versions(table.id)) == 2


@pytest.fixture
def tree(store: Store, table: TableRecord) -> list[int]:
    """More below `a`: the ids of all tables in it."""
    store.create_namespace(("a", "b"), {})
    store.create_namespace(("a", "b", "c"), {"deep": "yes"})
    return [
        table.id,
        store.insert_table(("a", "b", "c", "u"), "mem://u", {}).id,
        store.insert_table(("a", "b", "c", "v"), "mem://v", {}, declared=True).id,
    ]


@pytest.mark.parametrize("overwritten", [False, True])
def test_restore_namespace_restores_all_of_its_contents(
    store: Store, clock: Clock, tree: list[int], overwritten: bool
) -> None:
    if overwritten:
        store.create_namespace(("a",), {}, CreateMode.OVERWRITE, KEEP)
        with pytest.raises(NamespaceAlreadyExistsError):
            store.restore_namespace(("a",))
        store.drop_namespace(("a",))
    else:
        assert store.drop_namespace(("a",), cascade=True, keep_ms=KEEP).tables == 3
    [removed] = store.list_removed_namespaces(None, 10)
    assert (removed.path, removed.properties, removed.due_at) == (("a",), {"k": "v"}, clock.now + KEEP)
    assert len(store.list_removed_tables(None, 10)) == 3
    record, tables = store.restore_namespace(("a",))
    assert (record.name, record.properties, tables) == ("a", {"k": "v"}, 3)
    assert store.describe_namespace(("a", "b", "c")).properties == {"deep": "yes"}
    assert [store.describe_table(path).id for path in (("a", "t"), ("a", "b", "c", "u"), ("a", "b", "c", "v"))] == tree
    assert len(store.list_versions(tree[0])) == 2
    clock.advance(2 * KEEP)
    assert store.claim_due_deletions(10, HOUR) == []
    assert (store.list_removed_tables(None, 10), store.list_removed_namespaces(None, 10)) == ([], [])


def test_restore_namespace_under_another_name_without_tables_restored_before(store: Store, tree: list[int]) -> None:
    store.create_namespace(("z",), {})
    store.drop_namespace(("a",), cascade=True, keep_ms=KEEP)
    with pytest.raises(NamespaceNotFoundError):
        store.restore_table(("a", "t"))
    assert store.restore_table(("a", "t"), ("saved",)).id == tree[0]
    with pytest.raises(NamespaceNotFoundError):
        store.restore_namespace(("a",), ("x", "a"))
    with pytest.raises(NamespaceNotFoundError):
        store.restore_namespace(("a", "b"))
    assert store.restore_namespace(("a",), ("z", "y"))[1] == 2
    assert store.list_tables(("z", "y", "b", "c"), None, 10) == ["u", "v"]


@pytest.fixture
def older_below(store: Store, tree: list[int]) -> list[int]:
    """The same tree as `new$a`, brought back below a namespace that is newer than all of it."""
    store.drop_namespace(("a",), cascade=True, keep_ms=KEEP)
    store.create_namespace(("new",), {})
    store.restore_namespace(("a",), ("new", "a"))
    return tree


@pytest.mark.parametrize("overwritten", [False, True])
def test_restore_namespace_restores_what_is_in_a_newer_one(
    store: Store, older_below: list[int], overwritten: bool
) -> None:
    if overwritten:
        store.create_namespace(("new",), {}, CreateMode.OVERWRITE, KEEP)
        store.drop_namespace(("new",))
    else:
        assert store.drop_namespace(("new",), cascade=True, keep_ms=KEEP).tables == 3
    store.create_namespace(("newest",), {})
    assert store.restore_namespace(("new",), ("newest", "again"))[1] == 3
    tables = [store.describe_table(("newest", "again", "a", *names)).id for names in (("t",), ("b", "c", "u"))]
    assert tables == older_below[:2]
    assert len(store.list_versions(older_below[0])) == 2
    assert store.describe_namespace(("newest", "again", "a", "b", "c")).properties == {"deep": "yes"}
    assert store.drop_namespace(("newest",), cascade=True, keep_ms=KEEP).tables == 3


def test_drop_namespace_for_good_includes_what_is_in_a_newer_one(store: Store, older_below: list[int]) -> None:
    assert store.drop_namespace(("new",), cascade=True).tables == len(older_below)
    assert store.list_namespaces((), None, 10) == []
    with pytest.raises(NamespaceNotFoundError):
        store.restore_namespace(("new",))


def test_a_namespace_whose_tables_are_being_deleted_cannot_be_restored(
    store: Store, clock: Clock, tree: list[int]
) -> None:
    store.drop_namespace(("a",), cascade=True, keep_ms=KEEP)
    clock.advance(KEEP)
    assert len(store.claim_due_deletions(1, HOUR)) == 1
    with pytest.raises(NamespaceNotFoundError):
        store.restore_namespace(("a",))
    assert store.list_removed_namespaces(None, 10) == []
    for removed in store.list_removed_tables(None, 10):  # the sweeper has not come to these
        store.restore_table((*removed.namespace, removed.name), (removed.name,))
    assert len(store.list_tables((), None, 10)) == len(tree) - 1


def test_an_empty_namespace_is_kept_and_expires_by_the_same_clock(store: Store, clock: Clock) -> None:
    store.create_namespace(("e",), {})
    store.drop_namespace(("e",), cascade=True, keep_ms=KEEP)
    assert store.restore_namespace(("e",))[1] == 0
    store.drop_namespace(("e",), cascade=True, keep_ms=KEEP)
    clock.advance(KEEP)
    store.claim_due_deletions(1, HOUR)
    with pytest.raises(NamespaceNotFoundError):
        store.restore_namespace(("e",))


@pytest.mark.parametrize("dropped", [True, False])
def test_restore_table_by_many_one_wins(store: Store, dropped: bool) -> None:
    store.insert_table(("t",), "mem://t", {})
    for _ in range(10):
        store.remove_table(("t",), delete_folder=dropped, keep_ms=KEEP)
        outcomes = race(*[lambda i=i: store.restore_table(("t",), (f"t{i}",)) for i in range(8)])
        assert len(won(outcomes)) == 1
        assert kinds(outcomes) == {TableNotFoundError}
        store.rename_table((won(outcomes)[0].name,), ("t",))


def test_restore_table_against_the_sweeper_has_one_winner(store: Store, clock: Clock) -> None:
    for number in range(20):
        store.insert_table(("t",), f"mem://{number}", {})
        store.remove_table(("t",), delete_folder=True, keep_ms=KEEP)
        clock.advance(KEEP)
        restored, claimed = race(lambda: store.restore_table(("t",)), lambda: store.claim_due_deletions(10, HOUR))
        assert isinstance(restored, TableNotFoundError) == (len(claimed) == 1)
        if not claimed:
            store.remove_table(("t",), delete_folder=False)
        clock.advance(2 * HOUR)
        for folder in store.claim_due_deletions(10, HOUR):
            store.complete_deletion(folder.location)


def test_restore_table_against_a_create_of_the_name_has_one_winner(store: Store) -> None:
    for number in range(20):
        store.insert_table(("t",), f"mem://{number}", {})
        store.remove_table(("t",), delete_folder=True, keep_ms=KEEP)
        outcomes = race(
            lambda: store.restore_table(("t",)), lambda number=number: store.insert_table(("t",), f"new://{number}", {})
        )
        assert len(won(outcomes)) == 1
        assert kinds(outcomes) == {TableAlreadyExistsError}
        store.remove_table(("t",), delete_folder=False)


def test_restore_namespace_against_the_sweeper_is_all_or_nothing(store: Store, clock: Clock) -> None:
    for number in range(10):
        store.create_namespace(("n",), {})
        for name in "abc":
            store.insert_table(("n", name), f"mem://{number}{name}", {})
        store.drop_namespace(("n",), cascade=True, keep_ms=KEEP)
        clock.advance(KEEP)
        restored, claimed = race(lambda: store.restore_namespace(("n",)), lambda: store.claim_due_deletions(2, HOUR))
        if isinstance(restored, NamespaceNotFoundError):
            assert len(claimed) == 2
        else:
            assert (restored[1], claimed) == (3, [])
            store.drop_namespace(("n",), cascade=True)
        clock.advance(2 * HOUR)
        for folder in store.claim_due_deletions(10, HOUR):
            store.complete_deletion(folder.location)


def test_remove_table_that_is_kept_loses_no_version_that_was_told(store: Store) -> None:
    for number in range(10):
        table = store.insert_table(("t",), f"mem://{number}", {})
        *recorded, _ = race(
            *[lambda v=v, id_=table.id: store.record_version(NewVersion(id_, v, f"s{v}", "m")) for v in range(1, 5)],
            lambda: store.remove_table(("t",), delete_folder=True, keep_ms=KEEP),
        )
        store.restore_table(("t",))
        removed = {record.version for record in store.list_versions(table.id)}
        assert removed == {record.version for record, _ in won(recorded)}
        store.remove_table(("t",), delete_folder=False)
