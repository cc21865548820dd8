"""Namespaces, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lance_namespace.errors import (
    InvalidInputError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    TableNotFoundError,
)

from tiltyard.model.modes import CreateMode, TransactionStatus

if TYPE_CHECKING:
    from tests.store.conftest import Clock
    from tiltyard.store import Store

AWKWARD = [
    "a" * 256,
    "😀" * 256,
    "Ünï çødé",
    "a/b",
    "../evil",
    "%2F",
    "$",
    ".",
    "'; DROP TABLE tables; --",
    "%s ? :x /*+ */",
    "\u00e9",
    "Case",
    "case",
    "CASE",
    "ﬀ",
    "\uffff",
    "\U0001f600",  # sorts behind U+FFFF by bytes, before it in UTF-16
]


def test_create_namespace_returns_what_describe_returns(store: Store, clock: Clock) -> None:
    created = store.create_namespace(("a",), {"owner": "me", "q": 'é"\u0000'})
    assert created == store.describe_namespace(("a",))
    assert created.properties == {"owner": "me", "q": 'é"\u0000'}
    assert created.created_at == clock.now


def test_root_exists_and_cannot_be_created_or_dropped(store: Store) -> None:
    assert store.describe_namespace(()).id == 1
    for mode in CreateMode:
        with pytest.raises(InvalidInputError):
            store.create_namespace((), {}, mode)
    with pytest.raises(InvalidInputError):
        store.drop_namespace((), cascade=True)


def test_create_namespace_without_parent_is_not_found(store: Store) -> None:
    for mode in CreateMode:
        with pytest.raises(NamespaceNotFoundError, match="a"):
            store.create_namespace(("a", "b"), {}, mode)


def test_create_namespace_twice_depends_on_the_mode(store: Store) -> None:
    first = store.create_namespace(("a",), {"v": "1"})
    store.create_namespace(("a", "b"), {})
    with pytest.raises(NamespaceAlreadyExistsError):
        store.create_namespace(("a",), {"v": "2"})
    assert store.create_namespace(("a",), {"v": "3"}, CreateMode.EXIST_OK) == first
    fresh = store.create_namespace(("a",), {"v": "4"}, CreateMode.OVERWRITE)
    assert fresh.properties == {"v": "4"}
    assert fresh.id > first.id
    assert store.list_namespaces(("a",), None, 10) == []


def test_create_namespace_overwrite_schedules_the_deletion_of_its_tables_folders(store: Store) -> None:
    store.create_namespace(("a",), {})
    store.create_namespace(("a", "b"), {})
    store.insert_table(("a", "b", "t"), "mem://t", {})
    store.create_namespace(("a",), {}, CreateMode.OVERWRITE)
    assert [folder.location for folder in store.claim_due_deletions(10, 1000)] == ["mem://t"]
    with pytest.raises(NamespaceNotFoundError):
        store.describe_table(("a", "b", "t"))


def test_describe_namespace_missing_is_not_found(store: Store) -> None:
    for path in [("a",), ("a", "b"), ("x",) * 9, ("x",) * 40]:
        with pytest.raises(NamespaceNotFoundError):
            store.describe_namespace(path)
        with pytest.raises(NamespaceNotFoundError):
            store.list_namespaces(path, None, 10)
        with pytest.raises(NamespaceNotFoundError):
            store.drop_namespace(path)


@pytest.mark.parametrize("name", AWKWARD, ids=range(len(AWKWARD)))
def test_names_come_back_as_they_went_in(store: Store, name: str) -> None:
    store.create_namespace((name,), {name: name})
    store.insert_table((name, name), f"mem://{name}", {name: name})
    assert store.describe_namespace((name,)).properties == {name: name}
    assert store.list_namespaces((), None, 10) == [name]
    assert store.list_tables((name,), None, 10) == [name]
    table = store.describe_table((name, name))
    assert (table.name, table.location, table.properties) == (name, f"mem://{name}", {name: name})
    assert store.list_all_tables(None, 10)[0].namespace == (name,)


def test_names_are_distinct_by_code_point_and_sorted_by_bytes(store: Store) -> None:
    for name in AWKWARD:
        store.create_namespace((name,), {})
    expected = sorted(AWKWARD, key=str.encode)
    assert store.list_namespaces((), None, 100) == expected
    paged: list[str] = []
    while page := store.list_namespaces((), paged[-1] if paged else None, 4):
        paged += page
    assert paged == expected


def test_names_no_database_can_hold_are_invalid(store: Store) -> None:
    with pytest.raises(InvalidInputError):
        store.create_namespace(("\ud800",), {})
    with pytest.raises(InvalidInputError):
        store.create_namespace(("nul\x00",), {})
    with pytest.raises(InvalidInputError):
        store.describe_namespace(("\ud800",))


def test_two_hundred_levels(store: Store) -> None:
    path: tuple[str, ...] = ()
    for level in range(200):
        path = (*path, f"level {level}")
        store.create_namespace(path, {})
    table = store.insert_table((*path, "t"), "mem://deep", {})
    assert store.describe_table((*path, "t")) == table
    assert store.describe_namespace(path).name == "level 199"
    assert store.list_namespaces(path[:100], None, 10) == ["level 100"]
    assert store.list_tables(path, None, 10) == ["t"]
    assert store.list_all_tables(None, 10)[0].namespace == path
    with pytest.raises(TableNotFoundError):
        store.describe_table((*path, "other"))
    with pytest.raises(NamespaceNotFoundError):
        store.describe_table((*path, "more", "t"))
    assert store.drop_namespace(path[:1], cascade=True).tables == 1
    assert store.list_namespaces((), None, 10) == []


def test_drop_namespace_restricts_unless_told_to_cascade(store: Store) -> None:
    store.create_namespace(("a",), {"k": "v"})
    store.create_namespace(("a", "b"), {})
    with pytest.raises(NamespaceNotEmptyError):
        store.drop_namespace(("a",))
    store.drop_namespace(("a", "b"))
    store.insert_table(("a", "t"), "mem://t", {})
    with pytest.raises(NamespaceNotEmptyError):
        store.drop_namespace(("a",))
    store.remove_table(("a", "t"), delete_folder=False)
    dropped = store.drop_namespace(("a",))
    assert (dropped.properties, dropped.tables) == ({"k": "v"}, 0)
    with pytest.raises(NamespaceNotFoundError):
        store.drop_namespace(("a",))


def test_drop_namespace_cascade_takes_the_tree_and_nothing_else(store: Store) -> None:
    for path in [("a",), ("a", "b"), ("a", "b", "c"), ("z",), ("z", "b")]:
        store.create_namespace(path, {})
        store.insert_table((*path, "t"), f"mem://{'/'.join(path)}/t", {})
    other_transaction = store.create_transaction("index", store.describe_table(("z", "t")).id, {}, {})
    dropped_transaction = store.create_transaction("index", store.describe_table(("a", "b", "t")).id, {}, {})
    drop = store.create_transaction("drop", None, {}, {}, TransactionStatus.QUEUED)
    assert store.drop_namespace(("a",), cascade=True, transaction_id=drop.id).tables == 3
    assert store.count_pending_deletions(drop.id) == 3
    assert store.list_namespaces((), None, 10) == ["z"]
    assert [table.namespace for table in store.list_all_tables(None, 10)] == [("z",), ("z", "b")]
    assert store.describe_transaction(dropped_transaction.id).status is TransactionStatus.CANCELED
    assert store.describe_transaction(other_transaction.id).status is TransactionStatus.QUEUED
    assert store.describe_transaction(drop.id).status is TransactionStatus.QUEUED


def test_drop_namespace_cascade_of_ten_thousand_tables(store: Store) -> None:
    store.create_namespace(("a",), {})
    for part in range(10):
        store.create_namespace(("a", str(part)), {})
    store.transact(lambda tx: [tx.insert_table(("a", str(i % 10), f"t{i}"), f"mem://{i}", {}) for i in range(10_000)])
    drop = store.create_transaction("drop", None, {}, {})
    assert store.drop_namespace(("a",), cascade=True, transaction_id=drop.id).tables == 10_000
    assert store.count_pending_deletions(drop.id) == 10_000
    assert store.list_all_tables(None, 1) == []


def test_create_namespace_with_a_decomposed_name_is_refused(store: Store) -> None:
    store.create_namespace(("caf\u00e9",), {})
    with pytest.raises(InvalidInputError, match="write it as 'caf\u00e9'"):
        store.create_namespace(("cafe\u0301",), {})
    with pytest.raises(NamespaceNotFoundError):
        store.describe_namespace(("cafe\u0301",))
