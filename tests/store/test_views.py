"""Views in the catalog: who made them of what, and gone with their table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.store import ViewRecord

if TYPE_CHECKING:
    from tiltyard.store import Store


def test_set_view_again_replaces_what_was_known(store: Store) -> None:
    assert store.describe_view(7) is None
    store.set_view(7, ViewRecord("a", "{}"))
    store.set_view(7, ViewRecord("b", '{"name":"ann"}'))
    store.set_view(8, ViewRecord("c", "{}"))
    assert (store.describe_view(7), store.describe_view(8)) == (
        ViewRecord("b", '{"name":"ann"}'),
        ViewRecord("c", "{}"),
    )


def test_views_stay_while_a_table_can_come_back_and_end_with_it(store: Store) -> None:
    table = store.insert_table(("t",), "file:///t", {}).id
    store.set_view(table, ViewRecord("a", "{}"))
    store.remove_table(("t",), delete_folder=True, keep_ms=1_000)
    assert store.describe_view(table) is not None
    store.restore_table(("t",), ("t",), None)
    store.remove_table(("t",), delete_folder=True, keep_ms=0)
    assert store.describe_view(table) is None
