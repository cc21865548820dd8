"""Classifications in the catalog: set, inherited, moved with their columns, gone with their objects."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lance_namespace.errors import InvalidInputError
from msgspec.structs import replace

from tiltyard.store import GRANTS_GENERATION
from tiltyard.store.access.classifications import COLUMN, MAX_CLASSIFICATIONS
from tiltyard.store.access.grants import NAMESPACE, TABLE

if TYPE_CHECKING:
    from tiltyard.store import Store


def test_keys_are_set_replaced_and_unset(store: Store) -> None:
    before = store.generation(GRANTS_GENERATION)
    store.set_classification(TABLE, 7, "pii", "email", "root")
    store.set_classification(TABLE, 7, "pii", "phone", "ann")
    (record,) = store.classifications_on(TABLE, [7, 8])
    assert (record.key, record.value, record.set_by) == ("pii", "phone", "ann")
    assert store.has_classifications(["other", "pii"]) and not store.has_classifications(["other"])
    assert [store.unset_classification(TABLE, 7, "pii") for _ in range(2)] == [True, False]
    assert store.generation(GRANTS_GENERATION) == before + 4
    for number in range(MAX_CLASSIFICATIONS):
        store.set_classification(TABLE, 7, f"k{number}", "", "root")
    with pytest.raises(InvalidInputError):
        store.set_classification(TABLE, 7, "more", "", "root")


def test_namespaces_above_are_listed_the_nearest_first(store: Store) -> None:
    outer, inner = (store.create_namespace(path, {}).id for path in (("a",), ("a", "b")))
    table = store.insert_table(("a", "b", "t"), "file:///t", {}).id
    for number, value in ((outer, "far"), (inner, "near")):
        store.set_classification(NAMESPACE, number, "region", value, "root")
    assert store.namespace_of_table(table) == inner
    assert [each.value for each in store.classifications_above(inner)] == ["near", "far"]
    store.remove_table(("a", "b", "t"), delete_folder=True, keep_ms=1_000)
    assert store.namespace_of_table(table) == inner
    store.drop_namespace(("a",), cascade=True)
    assert store.classifications_above(inner) == []


def test_columns_move_all_at_once_and_end_with_their_table(store: Store) -> None:
    table = store.insert_table(("t",), "file:///t", {}).id
    numbers = [store.add_classified_column(table, field, path) for field, path in ((1, "a"), (2, "b"))]
    assert store.add_classified_column(table, 9, "a") == numbers[0]
    store.set_classification(COLUMN, numbers[0], "pii", "email", "root")
    first, second = store.classified_columns(table)
    store.move_classified_columns([replace(first, path="b", earlier=((1, "a"),)), replace(second, path="a")])
    moved = store.classified_columns_by_id(numbers)
    assert [(moved[number].path, moved[number].earlier) for number in numbers] == [("b", ((1, "a"),)), ("a", ())]
    found = store.find_classified("pii", ("", 0), 10)
    assert [(each.kind, each.object_id) for each in found] == [(COLUMN, numbers[0])]
    store.remove_table(("t",), delete_folder=True, keep_ms=0)
    assert (store.classified_columns(table), store.find_classified("pii", ("", 0), 10)) == ([], [])
