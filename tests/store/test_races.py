"""Concurrent calls: the database decides, and every caller gets a correct result."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Barrier
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    ConcurrentModificationError,
    LanceNamespaceError,
    NamespaceAlreadyExistsError,
    NamespaceNotEmptyError,
    NamespaceNotFoundError,
    TableAlreadyExistsError,
    TableNotFoundError,
)

from tiltyard.model.modes import CreateMode, TransactionStatus
from tiltyard.store import NewVersion, open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.store.conftest import Clock
    from tiltyard.store import Store

THREADS = 16


def race(*calls: Callable[[], object]) -> list[Any]:
    """Start all calls at one moment; return what each returned, or the store's error that it raised."""
    start = Barrier(len(calls))

    def run(call: Callable[[], object]) -> object:
        start.wait()
        try:
            return call()
        except LanceNamespaceError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def kinds(outcomes: list[Any]) -> set[type]:
    return {type(outcome) for outcome in outcomes if isinstance(outcome, Exception)}


def won(outcomes: list[Any]) -> list[Any]:
    return [outcome for outcome in outcomes if not isinstance(outcome, Exception)]


def test_create_namespace_by_sixteen_one_wins(store: Store) -> None:
    for i in range(10):
        outcomes = race(*[lambda i=i: store.create_namespace((f"n{i}",), {}) for _ in range(THREADS)])
        assert len(won(outcomes)) == 1
        assert kinds(outcomes) == {NamespaceAlreadyExistsError}


def test_create_namespace_exist_ok_by_sixteen_all_get_the_same(store: Store) -> None:
    outcomes = race(*[lambda: store.create_namespace(("n",), {}, CreateMode.EXIST_OK) for _ in range(THREADS)])
    assert set(map(type, outcomes)) == {type(outcomes[0])}
    assert len({outcome.id for outcome in outcomes}) == 1


def test_insert_table_by_sixteen_one_wins(store: Store) -> None:
    for i in range(10):
        calls = [lambda i=i, k=k: store.insert_table((f"t{i}",), f"mem://{i}/{k}", {}) for k in range(THREADS)]
        outcomes = race(*calls)
        assert len(won(outcomes)) == 1
        assert kinds(outcomes) == {TableAlreadyExistsError}
        assert store.describe_table((f"t{i}",)) == won(outcomes)[0]


def test_drop_namespace_against_declare_never_leaves_an_orphan(store: Store) -> None:
    for i in range(200):
        store.create_namespace(("n",), {})
        cascade = i % 2 == 0
        outcomes = race(
            lambda: store.insert_table(("n", "t"), "mem://t", {}, declared=True),
            lambda cascade=cascade: store.drop_namespace(("n",), cascade=cascade),
        )
        assert kinds(outcomes) <= {NamespaceNotFoundError, NamespaceNotEmptyError}
        remaining = store.list_namespaces((), None, 10)
        tables = store.list_all_tables(None, 10)
        if remaining:
            assert (remaining, [table.namespace for table in tables]) == (["n"], [("n",)])
            store.drop_namespace(("n",), cascade=True)
        else:
            assert tables == []
        store.complete_deletion("mem://t")


def test_drop_namespace_cascade_against_children_leaves_nothing_behind(store: Store) -> None:
    for _ in range(40):
        store.create_namespace(("n",), {})
        store.create_namespace(("n", "m"), {})
        outcomes = race(
            lambda: store.create_namespace(("n", "m", "deep"), {}),
            lambda: store.insert_table(("n", "m", "t"), "mem://t", {}),
            lambda: store.drop_namespace(("n",), cascade=True),
            lambda: store.create_namespace(("n", "other"), {}),
        )
        assert kinds(outcomes) <= {NamespaceNotFoundError}
        assert store.list_namespaces((), None, 10) == []
        assert store.list_all_tables(None, 10) == []
        deletions = [folder.location for folder in store.claim_due_deletions(10, 0)]
        assert deletions == ([] if isinstance(outcomes[1], Exception) else ["mem://t"])
        store.complete_deletion("mem://t")


def test_overwrite_by_many_leaves_one(store: Store) -> None:
    for _ in range(10):
        outcomes = race(*[lambda: store.create_namespace(("n",), {}, CreateMode.OVERWRITE) for _ in range(4)])
        assert kinds(outcomes) <= {ConcurrentModificationError}
        assert store.describe_namespace(("n",)) in won(outcomes)


def test_rename_table_against_drop_keeps_the_folder_or_the_table(store: Store) -> None:
    store.create_namespace(("safe",), {})
    for _ in range(40):
        store.create_namespace(("n",), {})
        store.insert_table(("n", "t"), "mem://t", {})
        outcomes = race(
            lambda: store.rename_table(("n", "t"), ("safe", "t")),
            lambda: store.drop_namespace(("n",), cascade=True),
        )
        assert kinds(outcomes) <= {NamespaceNotFoundError, TableNotFoundError}
        moved = not isinstance(outcomes[0], Exception)
        assert store.list_tables(("safe",), None, 10) == (["t"] if moved else [])
        assert len(store.claim_due_deletions(10, 0)) == (0 if moved else 1)
        if moved:
            store.remove_table(("safe", "t"), delete_folder=False)
        store.complete_deletion("mem://t")


def test_grants_below_one_namespace_at_once_show_all_the_way_to_them(store: Store) -> None:
    for i in range(20):
        home = store.create_namespace((f"n{i}",), {}).id
        homes = [store.create_namespace((f"n{i}", f"{k % 4}"), {}, CreateMode.EXIST_OK).id for k in range(8)]
        tables = [store.insert_table((f"n{i}", f"{k % 4}", f"t{k}"), f"mem://{i}/{k}", {}).id for k in range(8)]
        who = [f"principal:{i}"]
        outcomes = race(*[lambda i=i, t=t: store.grant(f"principal:{i}", "table", t, 2, "root") for t in tables])
        assert kinds(outcomes) == set()
        assert store.visible_namespaces(1, who, None, 9) == [f"n{i}"]
        assert store.visible_namespaces(home, who, None, 9) == ["0", "1", "2", "3"]
        assert all(store.has_grant_at_or_below(id_, who) for id_ in homes)


def test_grant_against_drop_of_the_namespace_leaves_nothing_visible(store: Store) -> None:
    who = ["principal:ann"]
    for i in range(100):
        namespace = store.create_namespace((f"n{i}",), {}).id
        tables = [store.insert_table((f"n{i}", f"t{k}"), f"mem://{i}/{k}", {}).id for k in range(3)]
        keep_ms = 1000 * (i % 2)
        outcomes = race(
            lambda i=i, keep_ms=keep_ms: store.drop_namespace((f"n{i}",), cascade=True, keep_ms=keep_ms),
            *[lambda t=t: store.grant(who[0], "table", t, 2, "root") for t in tables],
            lambda namespace=namespace: store.grant(who[0], "namespace", namespace, 2, "root"),
        )
        assert kinds(outcomes) == set()
        assert store.visible_namespaces(1, who, None, 9) == []
        if keep_ms:
            store.restore_namespace((f"n{i}",))
            assert store.visible_namespaces(1, who, None, 9) == [f"n{i}"]
            assert store.visible_tables(namespace, who, None, 9) == ["t0", "t1", "t2"]
            store.drop_namespace((f"n{i}",), cascade=True)


def test_remove_table_by_many_one_wins(store: Store) -> None:
    for _ in range(10):
        store.insert_table(("t",), "mem://t", {})
        outcomes = race(*[lambda: store.remove_table(("t",), delete_folder=False) for _ in range(8)])
        assert len(won(outcomes)) == 1
        assert kinds(outcomes) == {TableNotFoundError}


def test_record_version_by_sixteen_one_wins_and_all_see_whom(store: Store) -> None:
    table = store.insert_table(("t",), "mem://t", {})
    for version in range(1, 11):
        versions = [NewVersion(table.id, version, f"staged-{k}", "final") for k in range(THREADS)]
        outcomes = race(*[lambda new=new: store.record_version(new) for new in versions])
        assert [inserted for _, inserted in outcomes].count(True) == 1
        assert len({record.staged_path for record, _ in outcomes}) == 1


def test_claim_transaction_by_many_claims_each_once(store: Store) -> None:
    created = {store.create_transaction("index", None, {}, {}).id for _ in range(40)}

    def work(name: str) -> list[str]:
        claimed_by_thread = []
        while record := store.claim_transaction(name, 60_000):
            claimed_by_thread.append(record.id)
            store.finish_transaction(record.id, name, TransactionStatus.SUCCEEDED)
        return claimed_by_thread

    outcomes = race(*[lambda k=k: work(f"worker {k}") for k in range(4)])
    claimed = [outcome for claimed_by_thread in outcomes for outcome in claimed_by_thread]
    assert len(claimed) == len(created)
    assert set(claimed) == created


def test_claim_due_deletions_by_many_claims_each_once(store: Store, clock: Clock) -> None:
    for i in range(40):
        store.schedule_deletion(f"mem://{i}", clock.now, "dropped")
    outcomes = race(*[lambda: [store.claim_due_deletions(5, 60_000) for _ in range(4)] for _ in range(4)])
    claimed = [folder.location for claimed_by_thread in outcomes for batch in claimed_by_thread for folder in batch]
    assert len(claimed) == len(set(claimed)) <= 40
    rest = [folder.location for folder in store.claim_due_deletions(100, 60_000)]
    assert sorted(claimed + rest) == sorted(f"mem://{i}" for i in range(40))


def test_alter_transaction_by_many_loses_no_change(store: Store) -> None:
    created = store.create_transaction("index", None, {}, {"n": "0"})

    def increment() -> None:
        store.alter_transaction(created.id, lambda status, seen: (status, {"n": str(int(seen["n"]) + 1)}))

    assert race(*[increment for _ in range(THREADS)]) == [None] * THREADS
    assert store.describe_transaction(created.id).properties == {"n": str(THREADS)}


def test_create_transaction_against_drop_is_canceled_or_refused(store: Store) -> None:
    for _ in range(40):
        table = store.insert_table(("t",), "mem://t", {})
        outcomes = race(
            lambda table=table: store.create_transaction("index", table.id, {}, {}),
            lambda: store.remove_table(("t",), delete_folder=False),
        )
        assert kinds(outcomes) <= {TableNotFoundError}
        assert store.unfinished_transactions(table.id) == []


def test_two_stores_on_one_database_see_each_other(url: str) -> None:
    numbers = count()
    with open_store(url) as outcome, open_store(url) as two:
        outcomes = race(
            *[
                lambda store=store: [store.create_namespace((f"n{next(numbers)}",), {}) for _ in range(50)]
                for store in (outcome, two, outcome, two)
            ]
        )
        assert kinds(outcomes) == set()
        assert len(outcome.list_namespaces((), None, 1000)) == 200
        assert outcome.list_namespaces((), None, 1000) == two.list_namespaces((), None, 1000)
