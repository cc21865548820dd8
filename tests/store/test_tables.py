"""Tables and views, on both databases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
)
from msgspec.structs import replace

from tiltyard.model.modes import TransactionStatus
from tiltyard.store import ViewRecord

if TYPE_CHECKING:
    from tests.store.conftest import Clock
    from tiltyard.store import ListedTable, Store, UnitOfWork


@pytest.fixture(autouse=True)
def namespaces(store: Store) -> None:
    store.create_namespace(("a",), {})
    store.create_namespace(("a", "b"), {})


def test_insert_table_returns_what_describe_returns(store: Store, clock: Clock) -> None:
    table = store.insert_table(("a", "t"), "mem://t", {"k": "v"}, managed=True, declared=True)
    assert store.describe_table(("a", "t")) == table == store.table_by_id(table.id)
    assert (table.managed, table.declared, table.registered) == (True, True, False)
    assert (table.location, table.properties) == ("mem://t", {"k": "v"})
    assert table.created_at == table.updated_at == clock.now


def test_insert_table_at_the_root(store: Store) -> None:
    assert store.insert_table(("t",), "mem://t", {}).namespace_id == 1
    assert store.list_tables((), None, 10) == ["t"]


def test_insert_table_refuses_a_missing_namespace_a_taken_name_and_a_taken_location(store: Store) -> None:
    with pytest.raises(NamespaceNotFoundError):
        store.insert_table(("x", "t"), "mem://t", {})
    with pytest.raises(InvalidInputError):
        store.insert_table((), "mem://t", {})
    store.insert_table(("a", "t"), "mem://t", {})
    with pytest.raises(TableAlreadyExistsError):
        store.insert_table(("a", "t"), "mem://other", {})
    with pytest.raises(TableAlreadyExistsError):
        store.insert_table(("a", "t"), "mem://t", {})
    with pytest.raises(InvalidInputError):
        store.insert_table(("a", "other"), "mem://t", {})


def test_describe_table_tells_a_missing_table_from_a_missing_namespace(store: Store) -> None:
    with pytest.raises(TableNotFoundError):
        store.describe_table(("a", "t"))
    with pytest.raises(NamespaceNotFoundError):
        store.describe_table(("x", "t"))
    with pytest.raises(TableNotFoundError):
        store.table_by_id(99)


def test_list_tables_pages_by_key_while_others_insert(store: Store) -> None:
    for i in range(0, 100, 2):
        store.insert_table(("a", f"t{i:03}"), f"mem://{i}", {}, declared=i % 4 == 0)
    seen: list[str] = []
    ahead: list[str] = []
    while page := store.list_tables(("a",), seen[-1] if seen else None, 7):
        seen += page
        if len(seen) <= 35:
            store.insert_table(("a", f"before{len(seen):03}"), f"mem://before{len(seen)}", {})
            store.insert_table(("a", f"{page[-1]}+"), f"mem://after{len(seen)}", {})
            ahead.append(f"{page[-1]}+")
    assert len(seen) == len(set(seen))
    assert set(seen) == {f"t{i:03}" for i in range(0, 100, 2)} | set(ahead)
    assert seen == sorted(seen)


def test_list_tables_returns_names_as_they_are_in_the_order_of_their_bytes(store: Store) -> None:
    names = ['"', "\\n", "\t\n", "[]", "\u00e9", "\uffff", "\U0001f600"]
    for i, name in enumerate(names):
        store.insert_table(("a", name), f"mem://{i}", {}, declared=i % 2 == 0)
    in_order = sorted(names, key=str.encode)
    assert store.list_tables(("a",), None, 10) == in_order
    assert store.list_tables(("a",), in_order[1], 3) == in_order[2:5]
    written = [name for name in in_order if names.index(name) % 2]
    assert store.list_tables(("a",), None, 10, include_declared=False) == written


def test_list_tables_can_leave_out_declared_ones(store: Store) -> None:
    declared = store.insert_table(("a", "declared"), "mem://1", {}, declared=True)
    store.insert_table(("a", "written"), "mem://2", {})
    assert store.list_tables(("a",), None, 10) == ["declared", "written"]
    assert store.list_tables(("a",), None, 10, include_declared=False) == ["written"]
    assert [table.name for table in store.list_all_tables(None, 10, include_declared=False)] == ["written"]
    assert not store.mark_written(declared.id).declared
    assert store.list_tables(("a",), None, 10, include_declared=False) == ["declared", "written"]
    with pytest.raises(NamespaceNotFoundError):
        store.list_tables(("x",), None, 10)


def test_list_all_tables_pages_through_the_catalog(store: Store) -> None:
    paths = [(), ("a",), ("a", "b")]
    for path in paths:
        for i in range(5):
            store.insert_table((*path, f"t{i}"), f"mem://{path}{i}", {})
    seen: list[ListedTable] = []
    while page := store.list_all_tables((seen[-1].namespace_id, seen[-1].name) if seen else None, 4):
        seen += page
    assert [(table.namespace, table.name) for table in seen] == [(path, f"t{i}") for path in paths for i in range(5)]


def test_rename_table_moves_the_name_and_nothing_else(store: Store, clock: Clock) -> None:
    table = store.insert_table(("a", "t"), "mem://t", {"k": "v"})
    store.insert_table(("a", "taken"), "mem://taken", {})
    with pytest.raises(TableAlreadyExistsError):
        store.rename_table(("a", "t"), ("a", "taken"))
    with pytest.raises(NamespaceNotFoundError):
        store.rename_table(("a", "t"), ("x", "t"))
    with pytest.raises(NamespaceNotFoundError):
        store.rename_table(("x", "t"), ("a", "t"))
    with pytest.raises(TableNotFoundError):
        store.rename_table(("a", "missing"), ("a", "u"))
    clock.advance(5)
    renamed = store.rename_table(("a", "t"), ("a", "b", "u"))
    home = store.describe_namespace(("a", "b")).id
    assert renamed == replace(table, namespace_id=home, name="u", updated_at=clock.now)
    assert store.describe_table(("a", "b", "u")) == renamed
    with pytest.raises(TableNotFoundError):
        store.describe_table(("a", "t"))


def test_remove_table_schedules_its_folders_deletion_and_cancels_its_work(store: Store) -> None:
    table = store.insert_table(("a", "t"), "mem://t", {})
    work = store.create_transaction("index", table.id, {}, {})
    assert store.remove_table(("a", "t"), delete_folder=True) == table
    assert store.describe_transaction(work.id).status is TransactionStatus.CANCELED
    folder = store.claim_due_deletions(10, 1000)[0]
    assert (folder.location, folder.transaction_id, folder.reason) == ("mem://t", None, "dropped")
    with pytest.raises(TableNotFoundError):
        store.remove_table(("a", "t"), delete_folder=True)


def test_remove_table_without_deleting_its_folder_leaves_the_location_to_be_registered(store: Store) -> None:
    old = store.insert_table(("a", "t"), "mem://t", {})
    store.remove_table(("a", "t"), delete_folder=False)
    assert store.claim_due_deletions(10, 1000) == []
    new = store.insert_table(("a", "t"), "mem://t", {}, registered=True)
    assert new.id > old.id


def test_insert_table_refuses_a_location_that_is_being_deleted(store: Store) -> None:
    store.insert_table(("a", "t"), "mem://t", {})
    store.remove_table(("a", "t"), delete_folder=True)
    with pytest.raises(InvalidInputError):
        store.insert_table(("a", "u"), "mem://t", {}, registered=True)
    assert store.list_tables(("a",), None, 10) == []
    store.complete_deletion("mem://t")
    store.insert_table(("a", "u"), "mem://t", {}, registered=True)


def test_insert_table_in_creation_spares_the_folder_unless_a_sweeper_has_it(store: Store, clock: Clock) -> None:
    for name in ("quick", "slow", "lost"):
        store.schedule_deletion(f"mem://{name}", clock.now + 1000, "creating")
    store.insert_table(("a", "quick"), "mem://quick", {}, in_creation=True)
    store.postpone_deletion("mem://slow", clock.now + 5000)
    clock.advance(2000)
    assert [folder.location for folder in store.claim_due_deletions(10, 1000)] == ["mem://lost"]
    store.insert_table(("a", "slow"), "mem://slow", {}, in_creation=True)
    with pytest.raises(ConcurrentModificationError):
        store.postpone_deletion("mem://lost", clock.now + 5000)
    with pytest.raises(ConcurrentModificationError):
        store.insert_table(("a", "lost"), "mem://lost", {}, in_creation=True)
    store.complete_deletion("mem://lost")
    with pytest.raises(ConcurrentModificationError):
        store.insert_table(("a", "lost"), "mem://lost", {}, in_creation=True)
    assert store.list_tables(("a",), None, 10) == ["quick", "slow"]


def test_replace_registration_makes_another_table_of_it(store: Store) -> None:
    first = store.replace_registration(("a", "t"), "mem://1", {})
    store.insert_table(("a", "u"), "mem://u", {})
    second = store.replace_registration(("a", "t"), "mem://2", {"k": "v"})
    assert second.id > first.id
    assert second == store.describe_table(("a", "t"))
    assert store.claim_due_deletions(10, 1000) == []
    with pytest.raises(InvalidInputError):
        store.replace_registration(("a", "t"), "mem://u", {})
    assert store.describe_table(("a", "t")) == second
    assert store.replace_registration(("a", "t"), "mem://2", {}).location == "mem://2"
    with pytest.raises(NamespaceNotFoundError):
        store.replace_registration(("x", "t"), "mem://3", {})


def test_change_table_properties_leaves_those_of_others(store: Store) -> None:
    table = store.insert_table(("a", "t"), "mem://t", {"k": "v", "gone": "1"})
    changes: list[dict[str, str | None]] = [{"n": "é", "gone": None}, *({f"w{i}": str(i)} for i in range(8))]
    with ThreadPoolExecutor(len(changes)) as writers:
        list(writers.map(lambda change: store.change_table_properties(table.id, change), changes))
    expected = {"k": "v", "n": "é", **{f"w{i}": str(i) for i in range(8)}}
    assert store.describe_table(("a", "t")).properties == expected
    keyed = store.set_primary_key(table, "key", {"p": "1", "n": None})  # of a record that was read before all of them
    assert keyed.properties == {"k": "v", "p": "1", **{f"w{i}": str(i) for i in range(8)}}
    with pytest.raises(TableNotFoundError):
        store.change_table_properties(99, {})
    with pytest.raises(TableNotFoundError):
        store.mark_written(99)


def test_transact_is_all_or_nothing(store: Store) -> None:
    with pytest.raises(TableAlreadyExistsError):
        store.transact(lambda tx: [tx.insert_table(("a", "t"), f"mem://{i}", {}) for i in range(2)])
    assert store.list_tables(("a",), None, 10) == []
    store.transact(lambda tx: [tx.insert_table(("a", f"t{i}"), f"mem://{i}", {}) for i in range(2)])
    assert store.list_tables(("a",), None, 10) == ["t0", "t1"]


def test_transact_sees_what_it_did(store: Store) -> None:
    def swap(tx: UnitOfWork) -> list[str]:
        tx.insert_table(("a", "new"), "mem://new", {})
        tx.rename_table(("a", "new"), ("a", "newer"))
        return tx.list_tables(("a",), None, 10)

    assert store.transact(swap) == ["newer"]


def test_changes_by_name_act_only_on_the_expected_table_and_namespace_id(store: Store) -> None:
    table = store.insert_table(("a", "t"), "mem://t", {})
    home = store.create_namespace(("b",), {}).id
    for call in (
        lambda: store.rename_table(("a", "t"), ("a", "u"), expected_id=table.id + 1),
        lambda: store.remove_table(("a", "t"), delete_folder=True, expected_id=table.id + 1),
        lambda: store.remove_table(("a", "t"), delete_folder=False, expected_id=table.id + 1, keep_ms=1000),
    ):
        with pytest.raises(TableNotFoundError):
            call()
    for call in (
        lambda: store.rename_table(("a", "t"), ("b", "t"), expected_id=table.id, expected_parent_id=home + 100),
        lambda: store.insert_table(("b", "u"), "mem://u", {}, expected_parent_id=home + 100),
        lambda: store.create_namespace(("b", "c"), {}, expected_parent_id=home + 100),
        lambda: store.drop_namespace(("b",), expected_id=home + 100),
        lambda: store.drop_namespace(("b",), cascade=True, expected_id=home + 100),
    ):
        with pytest.raises(NamespaceNotFoundError):
            call()
    assert store.list_removed_tables(None, 10) == [] and store.claim_due_deletions(10, 1000) == []
    assert store.rename_table(("a", "t"), ("b", "t"), expected_id=table.id, expected_parent_id=home).id == table.id
    assert store.remove_table(("b", "t"), delete_folder=True, expected_id=table.id).id == table.id
    store.drop_namespace(("b",), expected_id=home)


def test_find_tables_answers_those_that_are_there(store: Store) -> None:
    deep = tuple(f"n{level}" for level in range(3))
    for depth in range(1, len(deep) + 1):
        store.create_namespace(deep[:depth], {})
    paths = [("t",), ("u",), (*deep, "t")]
    created = {path: store.insert_table(path, f"mem://{'-'.join(path)}", {}) for path in paths}
    assert store.find_tables([*paths, ("gone",), (*deep, "gone"), (), ("a\0",), ("a\0", "t"), ("t",)]) == created


def test_find_tables_finds_more_than_one_statement_holds_however_deep(store: Store) -> None:
    deep = tuple(f"n{level}" for level in range(8))
    for depth in range(1, len(deep) + 1):
        store.create_namespace(deep[:depth], {})
    paths = [(*deep[:7], f"t{number}") for number in range(70)]
    created = {path: store.insert_table(path, f"mem://{path[-1]}", {}) for path in paths}
    assert store.find_tables([*paths, (*deep, "too deep")]) == created


def test_insert_and_rename_table_to_a_decomposed_name_are_refused(store: Store) -> None:
    with pytest.raises(InvalidInputError, match="NFC"):
        store.insert_table(("cafe\u0301",), "/elsewhere", {})
    store.insert_table(("cafe",), "/elsewhere", {})
    with pytest.raises(InvalidInputError, match="NFC"):
        store.rename_table(("cafe",), ("cafe\u0301",))
    assert store.describe_table(("cafe",)).location == "/elsewhere"


def test_set_view_again_replaces_the_record(store: Store) -> None:
    assert store.describe_view(7) is None
    store.set_view(7, ViewRecord("a", "{}"))
    store.set_view(7, ViewRecord("b", '{"name":"ann"}'))
    store.set_view(8, ViewRecord("c", "{}"))
    assert (store.describe_view(7), store.describe_view(8)) == (
        ViewRecord("b", '{"name":"ann"}'),
        ViewRecord("c", "{}"),
    )


def test_views_stay_while_their_table_can_be_restored_and_are_deleted_with_it(store: Store) -> None:
    table = store.insert_table(("t",), "file:///t", {}).id
    store.set_view(table, ViewRecord("a", "{}"))
    store.remove_table(("t",), delete_folder=True, keep_ms=1_000)
    assert store.describe_view(table) is not None
    store.restore_table(("t",), ("t",), None)
    store.remove_table(("t",), delete_folder=True, keep_ms=0)
    assert store.describe_view(table) is None
