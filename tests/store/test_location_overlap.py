"""No table's folder contains another's, whatever is inserted, dropped and restored, also concurrently."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lance_namespace.errors import InvalidInputError

from tests.store.test_races import race, won

if TYPE_CHECKING:
    from tests.store.conftest import Clock
    from tiltyard.store import Store

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
