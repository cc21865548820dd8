"""Principals and API keys: the first administrator, the life of a key, and the generation that every change counts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tiltyard.store import IDENTITY_GENERATION, Store

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.store.conftest import Clock

HOUR_MS = 3_600_000


def add_key(store: Store, id_: str, principal: str, expires_at: int | None = None) -> None:
    store.add_principal(principal, administrator=False)
    store.add_key(id_, principal, f"hash of {id_}", "", expires_at)


def test_add_first_principal_by_many_at_once_adds_one(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        added = list(pool.map(lambda _: store.add_first_principal("administrator"), range(8)))
    assert sorted(added) == [False] * 7 + [True]
    administrator = store.describe_principal("administrator")
    assert administrator is not None and administrator.administrator and not administrator.disabled


def test_add_first_principal_where_somebody_is_adds_none(store: Store) -> None:
    assert store.add_principal("ann", administrator=False)
    assert not store.add_first_principal("administrator")
    assert store.describe_principal("administrator") is None


def test_add_principal_of_a_name_that_is_given_leaves_it_as_it_is(store: Store) -> None:
    assert store.add_principal("ann", administrator=True)
    assert not store.add_principal("ann", administrator=False)
    ann = store.describe_principal("ann")
    assert ann is not None and ann.administrator


def test_alter_principal_changes_only_what_is_given(store: Store) -> None:
    store.add_principal("ann", administrator=True)
    disabled = store.alter_principal("ann", None, True)
    assert disabled is not None and disabled.administrator and disabled.disabled
    lesser = store.alter_principal("ann", False, None)
    assert lesser is not None and not lesser.administrator and lesser.disabled
    assert store.alter_principal("bob", True, None) is None


def test_list_principals_pages_by_name(store: Store) -> None:
    for name in ("bob", "ann", "Zoe"):
        store.add_principal(name, administrator=False)
    assert [principal.name for principal in store.list_principals(None, 2)] == ["Zoe", "ann"]
    assert [principal.name for principal in store.list_principals("ann", 2)] == ["bob"]


def test_describe_key_returns_its_principal_and_its_expiry(store: Store, clock: Clock) -> None:
    add_key(store, "a", "ann", clock.now + HOUR_MS)
    record = store.describe_key("a")
    assert record is not None
    key, principal = record
    assert (key.principal, key.hash, key.expires_at, key.revoked_at) == ("ann", "hash of a", clock.now + HOUR_MS, None)
    assert (principal.name, principal.administrator, principal.disabled) == ("ann", False, False)
    assert store.describe_key("b") is None


def test_list_keys_of_one_principal_and_of_all_pages(store: Store, clock: Clock) -> None:
    for id_, principal in (("1", "bob"), ("2", "ann"), ("3", "bob")):
        add_key(store, id_, principal)
        clock.advance(1)
    first, second = store.list_keys(None, None, 2)
    assert [first.id, second.id] == ["2", "1"]
    rest = store.list_keys(None, (second.principal, second.created_at, second.id), 2)
    assert [key.id for key in rest] == ["3"]
    assert [key.id for key in store.list_keys("bob", None, 5)] == ["1", "3"]


def test_expire_key_never_lets_it_live_longer(store: Store, clock: Clock) -> None:
    add_key(store, "a", "ann", clock.now + HOUR_MS)
    store.expire_key("a", clock.now + 2 * HOUR_MS)
    key, _ = store.describe_key("a") or pytest.fail("it is there")
    assert key.expires_at == clock.now + HOUR_MS
    store.expire_key("a", clock.now + 5)
    key, _ = store.describe_key("a") or pytest.fail("it is there")
    assert key.expires_at == clock.now + 5


def test_revoke_key_twice_keeps_the_first_time(store: Store, clock: Clock) -> None:
    add_key(store, "a", "ann")
    started_at = clock.now
    assert store.revoke_key("a")
    clock.advance(10)
    assert store.revoke_key("a")
    key, _ = store.describe_key("a") or pytest.fail("it is there")
    assert key.revoked_at == started_at
    assert not store.revoke_key("b")


def test_record_key_use_is_written_at_most_once_per_interval(store: Store, clock: Clock) -> None:
    add_key(store, "a", "ann")
    started_at = clock.now
    generation = store.generation(IDENTITY_GENERATION)
    for passed, recorded_at in ((0, started_at), (30_000, started_at), (31_000, started_at + 61_000)):
        clock.advance(passed)
        store.record_key_use("a", 60_000)
        key, _ = store.describe_key("a") or pytest.fail("it is there")
        assert key.last_used_at == recorded_at
    assert store.generation(IDENTITY_GENERATION) == generation  # nothing that a server keeps in memory has changed


@pytest.mark.parametrize(
    "change",
    [
        lambda store: store.add_principal("bob", administrator=False),
        lambda store: store.alter_principal("ann", None, True),
        lambda store: store.add_key("b", "ann", "hash", "", None),
        lambda store: store.expire_key("a", 5),
        lambda store: store.revoke_key("a"),
    ],
)
def test_change_of_identity_counts_the_generation_up(store: Store, change: Callable[[Store], object]) -> None:
    add_key(store, "a", "ann")
    before = store.generation(IDENTITY_GENERATION)
    change(store)
    assert store.generation(IDENTITY_GENERATION) > before
