"""Protections in the catalog: checked in the transaction that removes, and kept by a dump; extended: on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lance_namespace.errors import LanceNamespaceError, PermissionDeniedError

from tests.store.test_races import race
from tiltyard.model.modes import CreateMode
from tiltyard.store import Protection, TableRecord, load_dump, open_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.store.conftest import Clock
    from tiltyard.store import Store

KEEP, HOUR = 1000, 3_600_000


@pytest.fixture
def table(store: Store) -> TableRecord:
    """The table a.b.t."""
    store.create_namespace(("a",), {})
    store.create_namespace(("a", "b"), {})
    return store.insert_table(("a", "b", "t"), "mem://t", {}, managed=True)


def protect(store: Store, kind: str, object_kind: str, object_id: int, operation: str = "") -> None:
    store.set_protection(Protection(object_kind, object_id, kind, operation, "why", "ann", 0))


def test_what_is_above_and_what_is_below_refuses_a_removal(store: Store, table: TableRecord) -> None:
    top = store.describe_namespace(("a",)).id
    for object_kind, object_id in (("server", 0), ("namespace", 1), ("namespace", top), ("table", table.id)):
        for kind in ("deletion", "hold", "read_only"):
            protect(store, kind, object_kind, object_id)
            for remove in (
                lambda: store.remove_table(("a", "b", "t"), delete_folder=True, keep_ms=KEEP),
                lambda: store.drop_namespace(("a",), cascade=True, keep_ms=KEEP),
                lambda: store.drop_namespace(("a", "b"), cascade=True),
                lambda: store.create_namespace(("a",), {}, CreateMode.OVERWRITE),
                lambda: store.replace_registration(("a", "b", "t"), "mem://u", {}),
            ):
                with pytest.raises(PermissionDeniedError, match="ann: why"):
                    remove()
            assert store.lift_protection(object_kind, object_id, kind)
    assert store.drop_namespace(("a",), cascade=True, keep_ms=KEEP).tables == 1
    assert store.list_protections(None, 10) == []


def test_what_was_dropped_stays_while_it_is_held_or_its_namespace_is(
    store: Store, clock: Clock, table: TableRecord
) -> None:
    top = store.describe_namespace(("a",)).id
    store.insert_table(("a", "free"), "mem://free", {})
    store.remove_table(("a", "free"), delete_folder=False, keep_ms=KEEP)
    store.drop_namespace(("a", "b"), cascade=True, keep_ms=KEEP)
    protect(store, "hold", "namespace", top)
    clock.advance(2 * KEEP)
    assert store.claim_due_deletions(10, HOUR) == []
    assert {each.name for each in store.list_removed_tables(None, 10)} == {"free", "t"}
    store.lift_protection("namespace", top, "hold")
    protect(store, "hold", "table", table.id)
    assert store.claim_due_deletions(10, HOUR) == []  # the deregistered one is gone by now
    assert [each.name for each in store.list_removed_tables(None, 10)] == ["t"]
    protect(store, "read_only", "server", 0)
    store.lift_protection("table", table.id, "hold")
    assert store.claim_due_deletions(10, HOUR) == []
    with pytest.raises(PermissionDeniedError, match="read-only"):
        store.restore_namespace(("a", "b"))
    store.lift_protection("server", 0, "read_only")
    assert [each.location for each in store.claim_due_deletions(10, HOUR)] == ["mem://t"]


def test_files_that_a_held_table_shares_are_not_deleted(store: Store, clock: Clock, table: TableRecord) -> None:
    store.remove_table(("a", "b", "t"), delete_folder=False, keep_ms=KEEP)
    protect(store, "hold", "table", table.id)
    store.insert_table(("again",), table.location, {}, registered=True)
    source = store.insert_table(("source",), "mem://source", {})
    clone = store.insert_table(("clone",), "mem://clone", {})
    store.add_clone(clone.id, source.location)
    protect(store, "hold", "table", clone.id)
    for name in ("again", "source"):
        with pytest.raises(PermissionDeniedError, match="legal hold"):
            store.remove_table((name,), delete_folder=True)
    store.create_namespace(("ns",), {})
    store.rename_table(("source",), ("ns", "source"))
    with pytest.raises(PermissionDeniedError, match="legal hold"):
        store.drop_namespace(("ns",), cascade=True)


def test_a_dump_keeps_protections_and_approvals(
    store: Store, table: TableRecord, tmp_path: Path, new_url: Callable[[], str]
) -> None:
    protect(store, "hold", "table", table.id)
    protect(store, "approval", "table", table.id, "DropTable")
    store.dump(tmp_path / "dump")
    url = new_url()
    load_dump(url, tmp_path / "dump", lambda name, row: row)
    with open_store(url) as loaded:
        assert loaded.list_protections(None, 10) == store.list_protections(None, 10)
        with pytest.raises(PermissionDeniedError):
            loaded.remove_table(("a", "b", "t"), delete_folder=True)


@pytest.mark.extended
def test_of_a_protection_and_a_removal_at_once_one_is_first(store: Store, table: TableRecord) -> None:
    """Either the removal is refused, or the object of the protection is gone: never both done."""
    top = store.describe_namespace(("a",)).id
    for number in range(20):
        name = ("a", "b", f"t{number}")
        record = store.insert_table(name, f"mem://{number}", {})

        def protect_it(name: tuple[str, ...] = name, record: TableRecord = record, number: int = number) -> str:
            kind = ("table", record.id) if number % 2 else ("namespace", top)
            try:
                protect(store, "deletion", *kind)
            except LanceNamespaceError:
                return "gone"
            return "protected" if store_has(store, name) else "late"

        def drop_it(name: tuple[str, ...] = name) -> str:
            try:
                store.remove_table(name, delete_folder=True)
            except PermissionDeniedError:
                return "refused"
            return "dropped"

        outcomes = set(race(protect_it, drop_it))
        assert outcomes in ({"gone", "dropped"}, {"protected", "refused"}, {"late", "dropped"}), outcomes
        store.lift_protection("namespace", top, "deletion")


def store_has(store: Store, path: tuple[str, ...]) -> bool:
    try:
        store.describe_table(path)
    except LanceNamespaceError:
        return False
    return True
