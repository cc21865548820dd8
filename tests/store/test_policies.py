"""Policies in the catalog: set, replaced, dropped, and gone with their table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.store import GRANTS_GENERATION, PolicyRecord

if TYPE_CHECKING:
    from tests.store.conftest import Clock
    from tiltyard.store import Store


def test_set_policy_again_replaces_it_and_counts_a_generation(store: Store, clock: Clock) -> None:
    before = store.generation(GRANTS_GENERATION)
    store.set_policy(7, "b", "{}", "root")
    store.set_policy(7, "a", "{}", "root")
    clock.advance(1)
    store.set_policy(7, "b", '{"filter":"true"}', "ann")
    assert store.policies(7) == [
        PolicyRecord("a", "{}", "root", clock() - 1),
        PolicyRecord("b", '{"filter":"true"}', "ann", clock()),
    ]
    assert store.policies(8) == []
    assert store.generation(GRANTS_GENERATION) == before + 3


def test_drop_policy_tells_whether_there_was_one(store: Store) -> None:
    store.set_policy(7, "a", "{}", "root")
    before = store.generation(GRANTS_GENERATION)
    assert (store.drop_policy(7, "a"), store.drop_policy(7, "a")) == (True, False)
    assert store.policies(7) == []
    assert store.generation(GRANTS_GENERATION) > before


def test_policies_stay_while_their_table_can_be_restored_and_are_deleted_with_it(store: Store) -> None:
    table = store.insert_table(("t",), "file:///t", {}).id
    store.set_policy(table, "a", "{}", "root")
    store.remove_table(("t",), delete_folder=True, keep_ms=1_000)
    assert len(store.policies(table)) == 1
    store.restore_table(("t",), ("t",), None)
    assert len(store.policies(table)) == 1
    store.remove_table(("t",), delete_folder=True, keep_ms=0)
    assert store.policies(table) == []


def test_policies_of_tables_end_with_their_namespace(store: Store) -> None:
    store.create_namespace(("a",), {})
    table = store.insert_table(("a", "t"), "file:///a/t", {}).id
    store.set_policy(table, "a", "{}", "root")
    store.drop_namespace(("a",), cascade=True)
    assert store.policies(table) == []


def test_policies_by_classifications_are_set_listed_and_dropped(store: Store, clock: Clock) -> None:
    before = store.generation(GRANTS_GENERATION)
    store.set_classification_policy("b", "{}", "root")
    store.set_classification_policy("a", "{}", "root")
    store.set_classification_policy("b", '{"key":"pii"}', "ann")
    assert store.classification_policies() == [
        PolicyRecord("a", "{}", "root", clock()),
        PolicyRecord("b", '{"key":"pii"}', "ann", clock()),
    ]
    assert (store.drop_classification_policy("a"), store.drop_classification_policy("a")) == (True, False)
    assert store.generation(GRANTS_GENERATION) == before + 5
