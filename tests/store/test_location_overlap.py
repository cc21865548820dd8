"""No table's folder contains another's, whatever is inserted, dropped and restored, also concurrently."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lance_namespace.errors import InvalidInputError

from tests.store.test_grants import rows_read
from tests.store.test_races import race, won
from tiltyard.store import DROPPED, LocationDroppedError, LocationTakenError, MountRecord
from tiltyard.store.tables.location_overlap import foreign_overlaps

if TYPE_CHECKING:
    from tests.store.conftest import Clock
    from tiltyard.store import Store, UnitOfWork

INSIDE_OR_AROUND = ("s3://b/x", "s3://b/x/t/data", "s3://b/x/t/a/b/c", "s3://b", "s3://b/x/t/ ")
SIBLINGS = (
    "s3://b/x/t2",
    "s3://b/x/t-old",
    "s3://b/x/t.lance",
    "s3://b/x/t0",
    "s3://b/x/T",
    "s3://b/x/tt/t",
    "s3://b2/x/t/u",
)


def test_insert_table_inside_or_around_another_is_refused_and_siblings_are_not(store: Store) -> None:
    store.insert_table(("t",), "s3://b/x/t", {}, registered=True)
    for location in INSIDE_OR_AROUND:
        with pytest.raises(InvalidInputError, match="inside or around"):
            store.insert_table(("u",), location, {}, registered=True)
    for number, location in enumerate(SIBLINGS):
        store.insert_table((f"s{number}",), location, {}, registered=True)
    assert len(store.list_tables((), None, 100)) == 1 + len(SIBLINGS)


def test_insert_table_inside_or_around_one_that_the_server_placed_is_refused(store: Store) -> None:
    store.insert_table(("t",), "/data/t-1.lance", {})
    for location in ("/data", "/data/t-1.lance/x"):
        with pytest.raises(InvalidInputError, match="inside or around"):
            store.insert_table(("u",), location, {}, declared=True, registered=True)


def test_insert_table_around_or_inside_a_folder_that_is_being_deleted_is_refused(store: Store) -> None:
    store.insert_table(("t",), "s3://b/x/t", {}, registered=True)
    store.remove_table(("t",), delete_folder=True)
    for location in INSIDE_OR_AROUND:
        with pytest.raises(InvalidInputError, match="inside or around"):
            store.insert_table(("u",), location, {}, registered=True)
    store.complete_deletion("s3://b/x/t")
    store.insert_table(("u",), "s3://b/x", {}, registered=True)


def test_replace_registration_inside_another_is_refused_and_changes_nothing(store: Store) -> None:
    store.insert_table(("t",), "s3://b/t", {}, registered=True)
    old = store.insert_table(("u",), "s3://b/u", {}, registered=True)
    with pytest.raises(InvalidInputError, match="inside or around"):
        store.replace_registration(("u",), "s3://b/t/u", {})
    assert store.describe_table(("u",)) == old


def test_insert_table_around_or_inside_a_deregistered_one_is_refused_while_that_is_kept(
    store: Store, clock: Clock
) -> None:
    store.insert_table(("t",), "s3://b/x/t", {}, registered=True)
    store.remove_table(("t",), delete_folder=False, keep_ms=1000)
    for location in INSIDE_OR_AROUND:
        with pytest.raises(InvalidInputError, match=r"inside or around .* deregistered.* undrop"):
            store.insert_table(("u",), location, {}, declared=True, registered=True)
    for number, location in enumerate(SIBLINGS):
        store.insert_table((f"s{number}",), location, {}, registered=True)
    registered = store.insert_table(("t",), "s3://b/x/t", {}, registered=True)
    store.remove_table(("t",), delete_folder=False)
    assert store.restore_table(("t",)).id < registered.id
    store.remove_table(("t",), delete_folder=False, keep_ms=1000)
    clock.advance(1000)
    store.claim_due_deletions(1, 1000)  # which forgets what is kept no longer
    store.insert_table(("u",), "s3://b/x/t/data", {}, registered=True)


def test_restore_table_into_the_folder_of_another_is_refused(store: Store) -> None:
    store.insert_table(("t",), "s3://b/x/t", {}, registered=True)
    store.remove_table(("t",), delete_folder=False, keep_ms=1000)
    store.insert_table(("u",), "s3://b/x", {})  # the server's own places are not looked at
    with pytest.raises(InvalidInputError, match="inside or around"):
        store.restore_table(("t",))
    store.remove_table(("u",), delete_folder=False)
    assert store.restore_table(("t",)).location == "s3://b/x/t"


def test_insert_table_by_many_at_once_one_inside_the_other_one_wins(store: Store) -> None:
    for i in range(10):
        folders = ["/".join((f"s3://b/{i}", *"abcdefgh"[:depth])) for depth in range(8)]
        inserts = [
            lambda i=i, k=k, at=at: store.insert_table((f"t{i}-{k}",), at, {}, registered=True)
            for k, at in enumerate(folders)
        ]
        outcomes = race(*inserts)
        assert len(won(outcomes)) == 1
        assert {type(result) for result in outcomes if result not in won(outcomes)} == {InvalidInputError}


def test_location_of_an_entry_of_another_catalog_is_checked_against_all_that_is_and_was_here(store: Store) -> None:
    store.add_mount(MountRecord(0, ("lake",), "dir", {}, (), 0, False, False, "api", 0, 0), {})
    mount = store.list_mounts()[0].id
    store.insert_table(("live",), "s3://b/x/t", {}, registered=True)
    for location in INSIDE_OR_AROUND:
        with pytest.raises(LocationTakenError):
            store.check_foreign_location(mount, location)
        with pytest.raises(LocationTakenError):
            store.keep_mounted_table(mount, ("a", "t"), location, None, managed=False)
    store.check_foreign_location(mount, "s3://b/x/t")  # the record's location is unique
    for location in SIBLINGS:
        store.check_foreign_location(mount, location)
    store.remove_table(("live",), delete_folder=True, keep_ms=1000)
    for location in (*INSIDE_OR_AROUND, "s3://b/x/t"):
        with pytest.raises(LocationDroppedError):
            store.check_foreign_location(mount, location)
    for location in SIBLINGS:
        store.check_foreign_location(mount, location)


def test_check_of_a_foreign_location_reads_no_other_tables(store: Store, database_kind: str) -> None:
    def fill(catalog: UnitOfWork) -> None:
        for number in range(1000):
            catalog.insert_table((f"t{number}",), f"s3://b/{number:04}/t", {})
            catalog.schedule_deletion(f"s3://doomed/{number:04}/t", 1, DROPPED)

    store.transact(fill)
    for number in range(100):
        store.remove_table((f"t{number}",), delete_folder=True, keep_ms=1000)
    sql, values = foreign_overlaps("s3://b/0500/t/data")
    if database_kind == "sqlite":
        plan = store._database.read(lambda connection: connection.rows(f"EXPLAIN QUERY PLAN {sql}", *values))
        steps = [row[-1] for row in plan]
        assert not [step for step in steps if step.startswith("SCAN") and "CONSTANT" not in step], steps
        searched = [step for step in steps if step.startswith("SEARCH")]
        assert len(searched) == 9
        assert all("location" in step or "id=?" in step for step in searched), searched
        return
    store._database.write(lambda connection: connection.change("ANALYZE"))
    explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}"
    ((found,),) = store._database.read(lambda connection: connection.rows(explain, *values))
    assert 0 < rows_read(found[0]["Plan"]) <= 3  # of 2,000
