"""Roles, grants, and the lists that follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.model.modes import CreateMode
from tiltyard.store import GRANTS_GENERATION, Creator
from tiltyard.store.access.grants import NAMESPACE, SERVER, TABLE

if TYPE_CHECKING:
    from tests.store.conftest import Clock
    from tiltyard.store import Store

ANN, BOB, OPS = "principal:ann", "principal:bob", "role:ops"
READ, WRITE, DROP = 2, 4, 32


def add_table(store: Store, *path: str, creator: Creator | None = None) -> int:
    return store.insert_table(path, "file:///" + "/".join(path), {}, creator=creator).id


@pytest.fixture
def tree(store: Store) -> dict[str, int]:
    """a → (b → (t), t, u), c → (t): ids of namespaces and tables by their paths."""
    ids = {name: store.create_namespace(tuple(name), {}).id for name in ("a", "ab", "c")}
    return ids | {name: add_table(store, *name) for name in ("abt", "at", "au", "ct")}


def test_grant_twice_adds_privileges_and_revoke_leaves_the_rest(store: Store, clock: Clock) -> None:
    store.grant(ANN, TABLE, 7, READ, "root")
    clock.advance(1)
    store.grant(ANN, TABLE, 7, WRITE, "bob")
    (granted,) = store.grants_on(TABLE, 7, None, 10)
    assert (granted.privileges, granted.granted_by, granted.granted_at) == (READ | WRITE, "bob", clock())
    assert store.revoke(ANN, TABLE, 7, WRITE)
    assert store.privileges_on(TABLE, 7, [ANN]) == WRITE
    assert store.revoke(ANN, TABLE, 7, 0)
    assert not store.revoke(ANN, TABLE, 7, 0)
    assert store.grants_on(TABLE, 7, None, 10) == []


def test_grant_and_revoke_and_roles_count_the_generation_up(store: Store) -> None:
    seen = [store.generation(GRANTS_GENERATION)]
    for change in (
        lambda: store.grant(ANN, SERVER, 0, READ, "root"),
        lambda: store.revoke(ANN, SERVER, 0, 0),
        lambda: store.add_role("ops") and store.add_member("ops", ANN),
        lambda: store.drop_member("ops", ANN),
        lambda: store.drop_role("ops"),
    ):
        change()
        seen.append(store.generation(GRANTS_GENERATION))
    assert seen == sorted(set(seen))


def test_privileges_above_come_from_every_namespace_up_to_the_root(store: Store, tree: dict[str, int]) -> None:
    store.grant(ANN, NAMESPACE, 1, READ, "root")
    store.grant(OPS, NAMESPACE, tree["a"], WRITE, "root")
    store.grant(BOB, NAMESPACE, tree["ab"], DROP, "root")
    assert store.privileges_above(tree["ab"], [ANN, OPS]) == READ | WRITE
    assert store.privileges_above(tree["a"], [BOB]) == 0
    assert store.privileges_above(tree["c"], [ANN, OPS, BOB]) == READ
    assert store.privileges_above(4711, [ANN]) == 0


def test_list_grants_pages_by_key(store: Store) -> None:
    for number in range(5):
        store.grant(ANN, TABLE, number + 1, READ, "root")
    store.grant(ANN, NAMESPACE, 3, READ, "root")
    objects, after = [], None
    while page := store.grants_to(ANN, after, 2):
        objects += [(entry.kind, entry.object_id) for entry in page]
        after = objects[-1]
    assert objects == [(NAMESPACE, 3), *((TABLE, number) for number in range(1, 6))]
    store.grant(BOB, TABLE, 1, READ, "root")
    assert [entry.grantee for entry in store.grants_on(TABLE, 1, ANN, 5)] == [BOB]


def test_role_that_is_dropped_takes_its_members_and_grants_along(store: Store) -> None:
    assert store.add_role("ops")
    assert not store.add_role("ops")
    assert store.add_member("ops", ANN)
    assert not store.add_member("ops", ANN)
    store.add_member("ops", "group:night")
    store.grant(OPS, TABLE, 1, READ, "root")
    assert store.members_of("ops") == ["group:night", ANN]
    assert store.roles_of([ANN]) == store.roles_of([BOB, "group:night"]) == ["ops"]
    assert store.drop_role("ops")
    assert not store.drop_role("ops")
    assert store.roles_of([ANN]) == store.list_roles(None, 5) == store.grants_to(OPS, None, 5) == []


def test_add_member_without_the_role_is_refused(store: Store) -> None:
    with pytest.raises(InvalidInputError, match="ops"):
        store.add_member("ops", ANN)


@pytest.mark.parametrize("few_grants", [True, False])
def test_visible_lists_hold_what_was_granted_and_the_way_to_it(
    store: Store, tree: dict[str, int], few_grants: bool
) -> None:
    store.grant(ANN, TABLE, tree["abt"], READ, "root")
    store.grant(OPS, TABLE, tree["abt"], READ, "root")
    both = [ANN, OPS]
    assert store.visible_namespaces(1, both, None, 9, few_grants=few_grants) == ["a"]
    assert store.visible_namespaces(tree["a"], both, None, 9, few_grants=few_grants) == ["b"]
    assert store.visible_tables(tree["a"], both, None, 9) == []
    assert store.visible_tables(tree["ab"], both, None, 9) == ["t"]
    below = [store.has_grant_at_or_below(tree[name], both, few_grants=few_grants) for name in ("a", "ab", "c")]
    assert below == [True, True, False]
    assert store.has_grant_at_or_below(1, both, few_grants=few_grants)
    assert not store.has_grant_at_or_below(1, [BOB], few_grants=few_grants)
    assert not store.has_grant_at_or_below(4711, both, few_grants=few_grants)
    assert [entry.namespace for entry in store.all_visible_tables(both, None, 9)] == [("a", "b")]


def test_visible_namespaces_are_the_same_from_the_grants_and_from_the_children(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tiltyard.store.access.visibility.LOOKED_AT", 3)
    monkeypatch.setattr("tiltyard.store.access.visibility.MOST_LOOKED_AT", 9)
    for number in range(14):
        store.create_namespace((f"n{number:02}",), {})
        table = store.insert_table((f"n{number:02}", "t"), f"file:///{number}", {})
        if number % 3 == 1:
            store.grant(ANN, TABLE, table.id, READ, "root")
    deep = [("n03", "x"), ("n03", "x", "y"), ("n08", "x"), ("n08", "x", "y"), ("n11", "x")]
    ids = {path: store.create_namespace(path, {}).id for path in deep}
    store.grant(ANN, NAMESPACE, ids["n08", "x", "y"], READ, "root")  # too deep to be seen from n08's parent
    store.grant(ANN, NAMESPACE, ids["n11", "x"], READ, "root")
    pages = []
    for few_grants in (True, False):
        names: list[str] = []
        while page := store.visible_namespaces(1, [ANN, BOB], names[-1] if names else None, 2, few_grants=few_grants):
            names += page
        pages.append(names)
    assert pages[0] == pages[1] == ["n01", "n04", "n07", "n08", "n10", "n11", "n13"]
    for few_grants in (True, False):
        found = store.visible_namespaces(1, [ANN], None, 50, few_grants=few_grants)
        assert found == pages[0]


def test_all_visible_tables_pages_through_single_and_inherited_ones(store: Store, tree: dict[str, int]) -> None:
    store.grant(ANN, NAMESPACE, tree["ab"], READ, "root")
    store.grant(ANN, TABLE, tree["abt"], READ, "root")
    store.grant(ANN, TABLE, tree["au"], READ, "root")
    store.grant(BOB, TABLE, tree["ct"], READ, "root")
    names, after = [], None
    while page := store.all_visible_tables([ANN], after, 1):
        names += [(*entry.namespace, entry.name) for entry in page]
        after = page[-1].namespace_id, page[-1].name
    assert names == [("a", "u"), ("a", "b", "t")]


@pytest.mark.parametrize("grantees", [1, 40], ids=["one", "more-than-have-a-select-each"])
def test_visible_tables_follow_a_table_that_moves(store: Store, tree: dict[str, int], grantees: int) -> None:
    names = [ANN, *(f"group:{number}" for number in range(1, grantees))]
    for table in ("at", "au", "ct"):
        store.grant(ANN, TABLE, tree[table], READ, "root")
        store.grant(names[-1], TABLE, tree[table], WRITE, "root")

    def seen() -> list[list[str]]:
        found = [store.visible_tables(tree[namespace], names, None, 9) for namespace in ("a", "c")]
        return [*found, [entry.name for entry in store.all_visible_tables(names, None, 9)]]

    store.rename_table(("a", "t"), ("a", "z"))
    assert seen() == [["u", "z"], ["t"], ["u", "z", "t"]]
    store.rename_table(("a", "u"), ("c", "u"))
    assert seen() == [["z"], ["t", "u"], ["z", "t", "u"]]
    assert store.visible_tables(tree["c"], names, None, 1) == ["t"]
    assert store.visible_tables(tree["c"], names, "t", 1) == ["u"]
    store.remove_table(("c", "t"), delete_folder=True, keep_ms=1000)
    assert seen() == [["z"], ["u"], ["z", "u"]]
    store.insert_table(("c", "t"), "file:///another", {})  # which nobody was granted
    assert seen() == [["z"], ["u"], ["z", "u"]]
    store.restore_table(("c", "t"), ("a", "t"))
    assert seen() == [["t", "z"], ["u"], ["t", "z", "u"]]
    assert not store.has_grant_at_or_below(tree["ab"], names, few_grants=True)


def test_visible_tables_leave_out_declared_ones_if_asked(store: Store) -> None:
    store.create_namespace(("a",), {})
    declared = store.insert_table(("a", "d"), "file:///d", {}, declared=True)
    store.grant(ANN, TABLE, declared.id, READ, "root")
    home = declared.namespace_id
    assert store.visible_tables(home, [ANN], None, 9) == ["d"]
    assert store.visible_tables(home, [ANN], None, 9, include_declared=False) == []
    assert store.all_visible_tables([ANN], None, 9, include_declared=False) == []


def test_creator_is_given_what_creating_gives(store: Store) -> None:
    owner = Creator("ann", READ | WRITE)
    home = store.create_namespace(("a",), {}, creator=owner)
    table = add_table(store, "a", "t", creator=owner)
    assert store.privileges_on(NAMESPACE, home.id, [ANN]) == READ | WRITE
    assert store.privileges_on(TABLE, table, [ANN]) == READ | WRITE
    seen = store.create_namespace(("a",), {}, CreateMode.EXIST_OK, creator=Creator("bob", DROP))
    assert store.privileges_on(NAMESPACE, seen.id, [BOB]) == 0
    replaced = store.replace_registration(("a", "t"), "file:///other", {}, creator=Creator("bob", DROP))
    assert store.privileges_on(TABLE, replaced.id, [ANN, BOB]) == DROP


def test_grants_stay_with_what_is_renamed_or_comes_back(store: Store, tree: dict[str, int]) -> None:
    store.grant(ANN, TABLE, tree["at"], READ, "root")
    renamed = store.rename_table(("a", "t"), ("c", "x"))
    assert store.privileges_on(TABLE, renamed.id, [ANN]) == READ
    store.remove_table(("c", "x"), delete_folder=True, keep_ms=1000)
    new_table_id = add_table(store, "c", "x2")
    assert store.privileges_on(TABLE, new_table_id, [ANN]) == 0
    back = store.restore_table(("c", "x"))
    assert store.privileges_on(TABLE, back.id, [ANN]) == READ


def test_grants_go_with_what_is_gone_for_good(store: Store, tree: dict[str, int], clock: Clock) -> None:
    for name in ("at", "au", "abt", "ct"):
        store.grant(ANN, TABLE, tree[name], READ, "root")
    for name in ("a", "ab", "c"):
        store.grant(ANN, NAMESPACE, tree[name], READ, "root")
    store.remove_table(("a", "t"), delete_folder=False)  # nothing is kept
    store.remove_table(("a", "u"), delete_folder=False, keep_ms=1000)
    store.drop_namespace(("c",), cascade=True)
    store.drop_namespace(("a", "b"), cascade=True, keep_ms=1000)
    remaining = {(entry.kind, entry.object_id) for entry in store.grants_to(ANN, None, 20)}
    assert remaining == {(TABLE, tree["au"]), (TABLE, tree["abt"]), (NAMESPACE, tree["a"]), (NAMESPACE, tree["ab"])}
    store.drop_namespace(("a",))
    clock.advance(2000)
    store.claim_due_deletions(10, 1000)
    assert store.grants_to(ANN, None, 20) == []


def test_removed_are_visible_by_their_own_grant_or_one_above(store: Store, tree: dict[str, int]) -> None:
    store.grant(ANN, TABLE, tree["at"], DROP, "root")
    store.grant(ANN, TABLE, tree["au"], READ, "root")
    store.grant(ANN, NAMESPACE, tree["ab"], DROP, "root")
    store.drop_namespace(("a",), cascade=True, keep_ms=1000)
    names = {entry.name for entry in store.visible_removed_tables([ANN], DROP, None, 10)}
    assert names == {"t"}
    paths = {(*entry.namespace, entry.name) for entry in store.visible_removed_tables([ANN], DROP, None, 10)}
    assert paths == {("a", "t"), ("a", "b", "t")}
    assert store.visible_removed_namespaces([ANN], DROP, None, 10) == []  # the one that was dropped is "a"
    store.grant(ANN, NAMESPACE, 1, DROP, "root")
    assert [entry.path for entry in store.visible_removed_namespaces([ANN], DROP, None, 10)] == [("a",)]
    assert store.privileges_above(tree["ab"], [ANN]) == DROP


def test_namespace_that_comes_back_counts_the_generation_up(store: Store, tree: dict[str, int]) -> None:
    store.drop_namespace(("a",), cascade=True, keep_ms=1000)
    seen = store.generation(GRANTS_GENERATION)
    store.restore_namespace(("a",), ("c", "z"))
    assert store.generation(GRANTS_GENERATION) > seen
    store.grant(ANN, NAMESPACE, tree["c"], READ, "root")
    assert store.privileges_above(tree["ab"], [ANN]) == READ
