"""Roles, grants, and the lists that follow from them."""

from __future__ import annotations

import random
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from lance_namespace.errors import InvalidInputError

from tiltyard.model.modes import CreateMode
from tiltyard.store import GRANTS_GENERATION, Creator
from tiltyard.store.access.grants import NAMESPACE, SERVER, TABLE
from tiltyard.store.access.visibility import _page_of_all_tables, _page_of_namespaces
from tiltyard.store.schema import migrations

if TYPE_CHECKING:
    from tests.store.conftest import Clock
    from tiltyard.store import Store
    from tiltyard.store.backend import Connection
    from tiltyard.store.repository import Path

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


def test_visible_lists_hold_what_was_granted_and_the_way_to_it(store: Store, tree: dict[str, int]) -> None:
    store.grant(ANN, TABLE, tree["abt"], READ, "root")
    store.grant(OPS, TABLE, tree["abt"], READ, "root")
    both = [ANN, OPS]
    assert store.visible_namespaces(1, both, None, 9) == ["a"]
    assert store.visible_namespaces(tree["a"], both, None, 9) == ["b"]
    assert store.visible_tables(tree["a"], both, None, 9) == []
    assert store.visible_tables(tree["ab"], both, None, 9) == ["t"]
    below = [store.has_grant_at_or_below(tree[name], both) for name in ("a", "ab", "c")]
    assert below == [True, True, False]
    assert store.has_grant_at_or_below(1, both)
    assert not store.has_grant_at_or_below(1, [BOB])
    assert not store.has_grant_at_or_below(4711, both)
    assert [entry.namespace for entry in store.all_visible_tables(both, None, 9)] == [("a", "b")]


class History:
    """Random changes of a catalog, and what of it was granted to ANN."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store, self.random = store, random.Random(seed)
        self.namespaces: dict[Path, int] = {(): 1}
        self.tables: dict[Path, int] = {}
        self.granted: set[tuple[str, int]] = set()
        self.removed_tables: list[tuple[Path, int]] = []
        self.removed_namespaces: list[tuple[Path, dict[Path, int], dict[Path, int]]] = []
        self.locations = count()

    def step(self) -> None:
        """Make a change."""
        changes = [
            *[self.add_namespace] * 4, *[self.add_table] * 4, *[self.grant] * 4, *[self.revoke] * 2, self.move_table,
            self.drop_table, self.restore_table, self.drop_namespace, self.restore_namespace,
        ]  # fmt: skip
        self.random.choice(changes)()

    def free_path(self, taken: dict[Path, int]) -> Path | None:
        parent = self.random.choice([path for path in self.namespaces if len(path) < 4])
        path = (*parent, self.random.choice("abc"))
        return None if path in taken else path

    def creator(self, kind: str, id_: int, creator: Creator | None) -> None:
        if creator is not None:
            self.granted.add((kind, id_))

    def add_namespace(self) -> None:
        creator = self.random.choice([None, None, Creator("ann", READ)])
        if path := self.free_path(self.namespaces):
            self.namespaces[path] = self.store.create_namespace(path, {}, creator=creator).id
            self.creator(NAMESPACE, self.namespaces[path], creator)

    def add_table(self) -> None:
        creator = self.random.choice([None, None, Creator("ann", READ)])
        if path := self.free_path(self.tables):
            location = f"file:///{next(self.locations)}"
            self.tables[path] = self.store.insert_table(path, location, {}, creator=creator).id
            self.creator(TABLE, self.tables[path], creator)

    def objects(self) -> list[tuple[str, int]]:
        return [
            *((NAMESPACE, id_) for id_ in self.namespaces.values() if id_ != 1),
            *((TABLE, id_) for id_ in self.tables.values()),
        ]

    def grant(self) -> None:
        if objects := self.objects():
            chosen = self.random.choice(objects)
            self.store.grant(self.random.choice([ANN, OPS]), *chosen, READ, "root")
            self.granted.add(chosen)

    def revoke(self) -> None:
        if self.granted:
            chosen = self.random.choice(sorted(self.granted))
            for grantee in ANN, OPS:
                self.store.revoke(grantee, *chosen, 0)
            self.granted.remove(chosen)

    def move_table(self) -> None:
        if self.tables and (new_path := self.free_path(self.tables)):
            path = self.random.choice(sorted(self.tables))
            self.store.rename_table(path, new_path)
            self.tables[new_path] = self.tables.pop(path)

    def drop_table(self) -> None:
        if self.tables:
            path, keep_ms = self.random.choice(sorted(self.tables)), self.random.choice([0, 1000])
            self.store.remove_table(path, delete_folder=True, keep_ms=keep_ms)
            id_ = self.tables.pop(path)
            if keep_ms:
                self.removed_tables.append((path, id_))
            else:
                self.granted.discard((TABLE, id_))

    def restore_table(self) -> None:
        if self.removed_tables and (new_path := self.free_path(self.tables)):
            path, id_ = self.removed_tables.pop(self.random.randrange(len(self.removed_tables)))
            self.store.restore_table(path, new_path, id_)
            self.tables[new_path] = id_

    def drop_namespace(self) -> None:
        if len(self.namespaces) > 1:
            top, keep_ms = self.random.choice(sorted(self.namespaces)[1:]), self.random.choice([0, 1000, 1000])
            self.store.drop_namespace(top, cascade=True, keep_ms=keep_ms)
            namespaces, tables = self.take_below(self.namespaces, top, 0), self.take_below(self.tables, top, 1)
            if keep_ms:
                self.removed_namespaces.append((top, namespaces, tables))
            else:
                self.granted -= {(NAMESPACE, id_) for id_ in namespaces.values()}
                self.granted -= {(TABLE, id_) for id_ in tables.values()}

    @staticmethod
    def take_below(paths: dict[Path, int], top: Path, depth: int) -> dict[Path, int]:
        """Take the paths that begin with `top` and have so many names more at least."""
        below = [path for path in paths if path[: len(top)] == top and len(path) >= len(top) + depth]
        return {path[len(top) :]: paths.pop(path) for path in below}

    def restore_namespace(self) -> None:
        if self.removed_namespaces and (new_path := self.free_path(self.namespaces)):
            top, namespaces, tables = self.removed_namespaces.pop(self.random.randrange(len(self.removed_namespaces)))
            self.store.restore_namespace(top, new_path, namespaces[()])
            self.namespaces |= {(*new_path, *path): id_ for path, id_ in namespaces.items()}
            self.tables |= {(*new_path, *path): id_ for path, id_ in tables.items()}

    def visible(self) -> set[Path]:
        """Return the namespaces with a grant on them or on anything in them."""
        granted = [path for path, id_ in self.namespaces.items() if (NAMESPACE, id_) in self.granted]
        granted += [path[:-1] for path, id_ in self.tables.items() if (TABLE, id_) in self.granted]
        return {path[:depth] for path in granted for depth in range(len(path) + 1)}


def check_tables(store: Store, history: History, grantees: list[str], size: int) -> None:
    """Check the list of all tables, by pages of a size, against a filter of all tables."""
    namespaces = {path for path, id_ in history.namespaces.items() if (NAMESPACE, id_) in history.granted}

    def is_visible(path: Path, id_: int) -> bool:
        return (TABLE, id_) in history.granted or any(path[:depth] in namespaces for depth in range(len(path)))

    found: list[Path] = []
    after = None
    while page := store.all_visible_tables(grantees, after, size):
        assert len(page) <= size
        found += [(*entry.namespace, entry.name) for entry in page]
        after = page[-1].namespace_id, page[-1].name
        if len(page) < size:
            break
    paths = [path for path, id_ in history.tables.items() if is_visible(path, id_)]
    assert found == sorted(paths, key=lambda path: (history.namespaces[path[:-1]], path[-1]))


@pytest.mark.parametrize(("seed", "grantees"), [(11, 2), (12, 16), (13, 40)])
def test_all_visible_tables_under_any_history_are_those_of_a_filter(store: Store, seed: int, grantees: int) -> None:
    history = History(store, seed)
    names = [ANN, OPS, *(f"group:{number}" for number in range(2, grantees))]
    for number in range(150):
        history.step()
        check_tables(store, history, names, (1, 2, 3, 50)[number % 4])


def check_namespaces(store: Store, history: History, grantees: list[str]) -> None:
    """Check every list of namespaces, by pages of two."""
    visible = history.visible()
    for path, id_ in history.namespaces.items():
        children: list[str] = []
        while page := store.visible_namespaces(id_, grantees, children[-1] if children else None, 2):
            children += page
        assert children == sorted(below[-1] for below in visible if below and below[:-1] == path)
        assert store.has_grant_at_or_below(id_, grantees) == (path in visible)


@pytest.mark.parametrize(("seed", "grantees"), [(1, 2), (2, 16), (3, 40)])  # more than 16 have no select each
def test_visible_namespaces_under_any_history_are_those_of_the_grants(store: Store, seed: int, grantees: int) -> None:
    history = History(store, seed)
    names = [ANN, OPS, *(f"group:{number}" for number in range(2, grantees))]
    for _ in range(150):
        history.step()
        check_namespaces(store, history, names)


def test_migration_records_the_namespaces_of_grants_that_were_there(store: Store) -> None:
    history = History(store, 4711)
    for _ in range(100):
        history.step()
    (migration,) = [one for one in migrations() if one.name == "0028_granted_namespaces"]

    def fill_again(connection: Connection) -> None:
        connection.change("DELETE FROM granted_namespaces")
        connection.change(migration.statements[-1])

    store._database.write(fill_again)
    assert history.visible()
    check_namespaces(store, history, [ANN, OPS])
    for _ in range(50):
        history.step()
        check_namespaces(store, history, [ANN, OPS])


def rows_read(plan: dict[str, Any]) -> float:
    """Return how many rows the nodes of a plan of PostgreSQL read of tables."""
    own = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    below = sum(map(rows_read, plan.get("Plans", [])))
    return below + (own if "Relation Name" in plan else 0)


def test_page_of_visible_namespaces_reads_no_other_grants(store: Store, database_kind: str) -> None:
    for group in range(5):
        store.create_namespace((f"g{group}",), {})
        for number in range(20):
            home = f"g{group}", f"n{number:02}"
            store.create_namespace(home, {})
            for table in range(10):
                add_table(store, *home, f"t{table}", creator=Creator("ann", READ))
    sql, values = _page_of_namespaces(1, [ANN], "", 2)
    if database_kind == "sqlite":
        plan = store._database.read(lambda connection: connection.rows(f"EXPLAIN QUERY PLAN {sql}", *values))
        steps = [row[-1] for row in plan]
        assert not [
            step for step in steps if step.startswith(("SCAN grants", "SCAN here", "SCAN below", "SCAN tables"))
        ]
        read = [step for step in steps if step.startswith("SEARCH grants")]
        assert read
        assert all("object_id=?" in step or "namespace_id=?" in step for step in read)
        return
    explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}"
    ((found,),) = store._database.read(lambda connection: connection.rows(explain, *values))
    assert 0 < rows_read(found[0]["Plan"]) <= 30  # of 1,000 grants: two groups, to the first table in each


@pytest.mark.parametrize("after", [None, (9, "t3")])
def test_page_of_all_visible_tables_reads_no_other_grants_and_tables(
    store: Store, database_kind: str, after: tuple[int, str] | None
) -> None:
    for number in range(60):
        home = store.create_namespace((f"n{number:02}",), {}).id
        for table in range(10):
            add_table(store, f"n{number:02}", f"t{table}", creator=Creator("ann", READ) if table % 2 else None)
    store.grant(ANN, NAMESPACE, home, READ, "root")
    sql, values = _page_of_all_tables([ANN, OPS], after, 4, True)
    if database_kind == "sqlite":
        plan = store._database.read(lambda connection: connection.rows(f"EXPLAIN QUERY PLAN {sql}", *values))
        steps = [row[-1] for row in plan]
        assert not [step for step in steps if step.startswith(("SCAN grants", "SCAN tables", "SCAN namespaces"))]
        read = [step for step in steps if step.startswith("SEARCH grants")]
        assert read
        assert all(
            "grantee=?" in step and ("object_id" in step or "namespace_id" in step or "kind=?" in step) for step in read
        )
        return
    explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}"
    ((found,),) = store._database.read(lambda connection: connection.rows(explain, *values))
    assert 0 < rows_read(found[0]["Plan"]) <= 50  # of 300 grants and 600 tables


def test_namespaces_that_inherit_are_counted_once_up_to_a_limit(store: Store, tree: dict[str, int]) -> None:
    assert store.count_inheriting_namespaces([ANN, OPS], 9) == 0
    store.grant(ANN, TABLE, tree["ct"], READ, "root")
    assert store.count_inheriting_namespaces([ANN, OPS], 9) == 0
    for grantee, name in ((ANN, "a"), (OPS, "a"), (OPS, "ab")):
        store.grant(grantee, NAMESPACE, tree[name], READ, "root")
    assert store.count_inheriting_namespaces([ANN, OPS], 9) == 2
    assert store.count_inheriting_namespaces([ANN, OPS], 1) == 1


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
    assert not store.has_grant_at_or_below(tree["ab"], names)


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
