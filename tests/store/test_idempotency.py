"""Requests with a key: claims, leases, answers, commits, on both databases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from lance_namespace.errors import ConcurrentModificationError
from msgspec.structs import replace

from tiltyard.store import NewRequest

if TYPE_CHECKING:
    from tests.store.conftest import Clock
    from tiltyard.store import RequestClaim, RequestRecord, Store

LEASE, MEMORY = 10_000, 86_400_000
NEW = NewRequest("k", "POST /v1/table/t/insert", "f", "one", LEASE, MEMORY)


def begun(store: Store, new: NewRequest = NEW) -> RequestClaim:
    """Claim a request that is free."""
    record, ours = store.begin_request(new)
    assert ours
    return record.claim


def seen(store: Store, id_: str = "k") -> RequestRecord:
    record = store.describe_request(id_)
    assert record is not None
    return record


def test_begin_request_twice_gives_it_to_the_first(store: Store) -> None:
    first, ours = store.begin_request(NEW)
    assert ours and (first.status, first.attempts, first.acknowledged) == (None, 1, True)
    again, ours = store.begin_request(replace(NEW, owner="two"))
    assert not ours and again == first


def test_begin_request_by_many_at_once_gives_it_to_one(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: store.begin_request(replace(NEW, owner=f"o{n}"))[1], range(24)))
    assert sum(found) == 1


def test_begin_request_after_the_end_finds_the_answer(store: Store) -> None:
    assert store.finish_request(begun(store), 200, '{"version":2}', "f", True)
    record, ours = store.begin_request(NEW)
    assert not ours and (record.status, record.body, record.acknowledged) == (200, '{"version":2}', True)


def test_begin_request_after_its_lease_takes_over_with_what_was_committed(store: Store, clock: Clock) -> None:
    lost = begun(store)
    store.mark_requests_committed([lost], 7, "", 3)
    clock.advance(LEASE)
    record, ours = store.begin_request(replace(NEW, owner="two"))
    assert ours and (record.attempts, record.table_id, record.branch, record.version) == (2, 7, "", 3)
    assert not store.finish_request(lost, 200, "{}", "f", True)


@pytest.mark.parametrize("other", [{"scope": "POST /v1/table/t/delete"}, {"fingerprint": "g"}])
def test_begin_request_of_another_kind_never_takes_over(store: Store, clock: Clock, other: dict[str, str]) -> None:
    begun(store)
    clock.advance(LEASE)
    record, ours = store.begin_request(replace(NEW, **other))
    assert not ours and (record.scope, record.fingerprint) == (NEW.scope, "f")


def test_begin_request_without_fingerprint_takes_over_and_keeps_it(store: Store, clock: Clock) -> None:
    begun(store)
    clock.advance(LEASE)
    record, ours = store.begin_request(replace(NEW, fingerprint=None))
    assert ours and record.fingerprint == "f"


def test_begin_request_after_expiry_starts_afresh(store: Store, clock: Clock) -> None:
    claim = begun(store)
    store.mark_requests_committed([claim], 7, "", 3)
    store.finish_request(claim, 200, "{}", "f", True)
    clock.advance(MEMORY)
    record, ours = store.begin_request(replace(NEW, scope="POST /v1/table/u/insert"))
    assert ours and (record.attempts, record.version, record.status) == (1, None, None)


def test_forget_request_lets_the_repeat_start_afresh(store: Store) -> None:
    store.discard_request(begun(store))
    assert store.describe_request("k") is None
    assert begun(store).attempt == 1


@pytest.mark.parametrize("done", ["nothing", "a commit", "an answer"])
def test_refuse_request_keeps_what_is_known_to_be_done(store: Store, done: str) -> None:
    claim = begun(store)
    if done == "a commit":
        store.mark_requests_committed([claim], 7, "", 3)
    elif done == "an answer":
        store.record_response([claim], "{}")
    store.discard_or_release_request(claim)
    record, ours = store.begin_request(NEW)
    assert ours and record.attempts == (1 if done == "nothing" else 2)
    assert (record.version, record.body) == (3 if done == "a commit" else None, "{}" if done == "an answer" else None)


def test_release_request_lets_the_repeat_take_over_at_once(store: Store) -> None:
    store.release_request(begun(store))
    assert begun(store).attempt == 2


def test_keep_requests_extends_what_is_named_and_nothing_released(store: Store, clock: Clock) -> None:
    named = [f"k{number}" for number in range(150)]
    for id_ in (*named, "unknown"):
        begun(store, replace(NEW, id=id_))
    store.release_request(begun(store, replace(NEW, id="released")))
    begun(store, replace(NEW, id="other", owner="two"))
    clock.advance(LEASE - 1)
    store.renew_request_leases("one", LEASE, [*named, "released", "other"])
    clock.advance(LEASE - 1)
    assert not any(store.begin_request(replace(NEW, id=id_))[1] for id_ in named)
    assert all(store.begin_request(replace(NEW, id=id_))[1] for id_ in ("unknown", "released", "other"))


def test_mark_committed_after_a_takeover_refuses_the_commit(store: Store, clock: Clock) -> None:
    lost = begun(store)
    clock.advance(LEASE)
    begun(store)  # by the same server: even then only one of the two commits
    with pytest.raises(ConcurrentModificationError):
        store.mark_requests_committed([lost], 7, "", 3)


def test_identify_request_notes_what_the_body_was(store: Store) -> None:
    claim = begun(store, replace(NEW, fingerprint=None))
    store.record_fingerprint(claim, "late")
    assert seen(store).fingerprint == "late"


def test_claim_unheard_finds_the_same_request_under_another_key(store: Store, clock: Clock) -> None:
    twin = replace(NEW, id="other", owner="two")
    claim = begun(store)
    found = store.claim_unacknowledged_request(twin, 60_000, (), clock.now + 1)
    assert found is not None and (found[0].id, found[1]) == ("k", False)
    store.finish_request(claim, 200, "{}", "f", False)
    assert store.claim_unacknowledged_request(twin, 60_000, (), clock.now - 1) is None
    assert store.claim_unacknowledged_request(twin, 60_000, ["k"], clock.now + 1) is None
    assert store.claim_unacknowledged_request(replace(twin, fingerprint="g"), 60_000, (), clock.now + 1) is None
    assert store.acknowledge_request("k", True) and not store.acknowledge_request("k", True)
    assert store.claim_unacknowledged_request(twin, 60_000, (), clock.now + 1) is None
    assert store.acknowledge_request("k", False)
    clock.advance(60_001)
    assert store.claim_unacknowledged_request(twin, 60_000, (), clock.now + 1) is None


@pytest.mark.parametrize("sign", ["a younger request", "a longer lease", "the end"])
def test_claim_unheard_leaves_out_what_a_living_server_runs_for_a_client_that_is_there(
    store: Store, clock: Clock, sign: str
) -> None:
    twin, claim = replace(NEW, id="other", owner="two"), begun(store)
    clock.advance(1)
    began = clock.now
    clock.advance(201)
    assert store.claim_unacknowledged_request(twin, 60_000, (), began)
    if sign == "a younger request":
        begun(store, replace(NEW, id="younger", fingerprint="g"))
    elif sign == "a longer lease":
        store.renew_request_leases("one", LEASE, ["k"])
    else:
        store.finish_request(claim, 200, "{}", "f", True)
    assert store.claim_unacknowledged_request(twin, 60_000, (), began) is None
    store.mark_client_disconnected(claim)
    assert bool(store.claim_unacknowledged_request(twin, 60_000, (), began)) is (sign != "the end")


def test_leave_request_that_is_done_changes_nothing(store: Store) -> None:
    claim = begun(store)
    store.finish_request(claim, 200, "{}", "f", True)
    store.mark_client_disconnected(claim)
    assert seen(store).acknowledged


def test_claim_unheard_takes_what_was_released(store: Store, clock: Clock) -> None:
    store.release_request(begun(store))
    found = store.claim_unacknowledged_request(replace(NEW, id="other", owner="two"), 60_000, (), clock.now + 1)
    assert found is not None and found[1]


def test_claim_unheard_after_a_lease_takes_over(store: Store, clock: Clock) -> None:
    begun(store)
    clock.advance(LEASE)
    found = store.claim_unacknowledged_request(replace(NEW, id="other", owner="two"), 60_000, (), clock.now)
    assert found is not None
    record, ours = found
    assert ours and (record.id, record.owner, record.attempts) == ("k", "two", 2)


def test_sweep_requests_forgets_what_expired(store: Store, clock: Clock) -> None:
    store.finish_request(begun(store), 200, "{}", "f", True)
    clock.advance(MEMORY - 1)
    begun(store, replace(NEW, id="young"))
    assert store.sweep_requests(100) == 0
    clock.advance(1)
    assert store.sweep_requests(100) == 1
    assert store.describe_request("k") is None
    assert store.describe_request("young")
