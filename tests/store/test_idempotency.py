"""Requests with an idempotency key: claims, leases, responses, commits, on both databases."""

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


def claim_new(store: Store, new: NewRequest = NEW) -> RequestClaim:
    """Claim a request that is free; return the claim."""
    record, is_claimed = store.begin_request(new)
    assert is_claimed
    return record.claim


def describe(store: Store, id_: str = "k") -> RequestRecord:
    record = store.describe_request(id_)
    assert record is not None
    return record


def test_begin_request_twice_is_claimed_by_the_first(store: Store) -> None:
    first, is_claimed = store.begin_request(NEW)
    assert is_claimed and (first.status, first.attempts, first.acknowledged) == (None, 1, True)
    second, is_claimed = store.begin_request(replace(NEW, owner="two"))
    assert not is_claimed and second == first


def test_begin_request_by_many_at_once_is_claimed_by_one(store: Store) -> None:
    with ThreadPoolExecutor(8) as pool:
        claimed = list(pool.map(lambda n: store.begin_request(replace(NEW, owner=f"o{n}"))[1], range(24)))
    assert sum(claimed) == 1


def test_begin_request_after_the_end_returns_the_response(store: Store) -> None:
    assert store.finish_request(claim_new(store), 200, '{"version":2}', "f", True)
    record, is_claimed = store.begin_request(NEW)
    assert not is_claimed and (record.status, record.body, record.acknowledged) == (200, '{"version":2}', True)


def test_begin_request_after_its_lease_takes_over_with_what_was_committed(store: Store, clock: Clock) -> None:
    expired = claim_new(store)
    store.mark_requests_committed([expired], 7, "", 3)
    clock.advance(LEASE)
    record, is_claimed = store.begin_request(replace(NEW, owner="two"))
    assert is_claimed and (record.attempts, record.table_id, record.branch, record.version) == (2, 7, "", 3)
    assert not store.finish_request(expired, 200, "{}", "f", True)


@pytest.mark.parametrize("other", [{"scope": "POST /v1/table/t/delete"}, {"fingerprint": "g"}])
def test_begin_request_of_another_kind_never_takes_over(store: Store, clock: Clock, other: dict[str, str]) -> None:
    claim_new(store)
    clock.advance(LEASE)
    record, is_claimed = store.begin_request(replace(NEW, **other))
    assert not is_claimed and (record.scope, record.fingerprint) == (NEW.scope, "f")


def test_begin_request_without_fingerprint_takes_over_and_keeps_it(store: Store, clock: Clock) -> None:
    claim_new(store)
    clock.advance(LEASE)
    record, is_claimed = store.begin_request(replace(NEW, fingerprint=None))
    assert is_claimed and record.fingerprint == "f"


def test_begin_request_after_expiry_starts_afresh(store: Store, clock: Clock) -> None:
    claim = claim_new(store)
    store.mark_requests_committed([claim], 7, "", 3)
    store.finish_request(claim, 200, "{}", "f", True)
    clock.advance(MEMORY)
    record, is_claimed = store.begin_request(replace(NEW, scope="POST /v1/table/u/insert"))
    assert is_claimed and (record.attempts, record.version, record.status) == (1, None, None)


def test_discard_request_lets_a_repeat_run_as_new(store: Store) -> None:
    store.discard_request(claim_new(store))
    assert store.describe_request("k") is None
    assert claim_new(store).attempt == 1


@pytest.mark.parametrize("done", ["nothing", "a commit", "an answer"])
def test_discard_or_release_request_keeps_what_is_done(store: Store, done: str) -> None:
    claim = claim_new(store)
    if done == "a commit":
        store.mark_requests_committed([claim], 7, "", 3)
    elif done == "an answer":
        store.record_response([claim], "{}")
    store.discard_or_release_request(claim)
    record, is_claimed = store.begin_request(NEW)
    assert is_claimed and record.attempts == (1 if done == "nothing" else 2)
    assert (record.version, record.body) == (3 if done == "a commit" else None, "{}" if done == "an answer" else None)


def test_release_request_lets_a_repeat_take_over_at_once(store: Store) -> None:
    store.release_request(claim_new(store))
    assert claim_new(store).attempt == 2


def test_renew_request_leases_renews_the_named_ones_but_no_released_one(store: Store, clock: Clock) -> None:
    named = [f"k{number}" for number in range(150)]
    for id_ in (*named, "unknown"):
        claim_new(store, replace(NEW, id=id_))
    store.release_request(claim_new(store, replace(NEW, id="released")))
    claim_new(store, replace(NEW, id="other", owner="two"))
    clock.advance(LEASE - 1)
    store.renew_request_leases("one", LEASE, [*named, "released", "other"])
    clock.advance(LEASE - 1)
    assert not any(store.begin_request(replace(NEW, id=id_))[1] for id_ in named)
    assert all(store.begin_request(replace(NEW, id=id_))[1] for id_ in ("unknown", "released", "other"))


def test_mark_requests_committed_after_a_takeover_refuses_the_commit(store: Store, clock: Clock) -> None:
    expired = claim_new(store)
    clock.advance(LEASE)
    claim_new(store)  # by the same server: even then only one of the two commits
    with pytest.raises(ConcurrentModificationError):
        store.mark_requests_committed([expired], 7, "", 3)


def test_record_fingerprint_of_a_complete_body(store: Store) -> None:
    claim = claim_new(store, replace(NEW, fingerprint=None))
    store.record_fingerprint(claim, "late")
    assert describe(store).fingerprint == "late"


def test_claim_unacknowledged_request_finds_the_same_request_under_another_key(store: Store, clock: Clock) -> None:
    twin = replace(NEW, id="other", owner="two")
    claim = claim_new(store)
    match = store.claim_unacknowledged_request(twin, 60_000, (), clock.now + 1)
    assert match is not None and (match[0].id, match[1]) == ("k", False)
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
def test_claim_unacknowledged_request_ignores_one_of_a_live_server_with_a_connected_client(
    store: Store, clock: Clock, sign: str
) -> None:
    twin, claim = replace(NEW, id="other", owner="two"), claim_new(store)
    clock.advance(1)
    started_at = clock.now
    clock.advance(201)
    assert store.claim_unacknowledged_request(twin, 60_000, (), started_at)
    if sign == "a younger request":
        claim_new(store, replace(NEW, id="younger", fingerprint="g"))
    elif sign == "a longer lease":
        store.renew_request_leases("one", LEASE, ["k"])
    else:
        store.finish_request(claim, 200, "{}", "f", True)
    assert store.claim_unacknowledged_request(twin, 60_000, (), started_at) is None
    store.mark_client_disconnected(claim)
    assert bool(store.claim_unacknowledged_request(twin, 60_000, (), started_at)) is (sign != "the end")


def test_mark_client_disconnected_of_a_finished_request_changes_nothing(store: Store) -> None:
    claim = claim_new(store)
    store.finish_request(claim, 200, "{}", "f", True)
    store.mark_client_disconnected(claim)
    assert describe(store).acknowledged


def test_claim_unacknowledged_request_claims_a_released_one(store: Store, clock: Clock) -> None:
    store.release_request(claim_new(store))
    match = store.claim_unacknowledged_request(replace(NEW, id="other", owner="two"), 60_000, (), clock.now + 1)
    assert match is not None and match[1]


def test_claim_unacknowledged_request_takes_over_after_the_lease(store: Store, clock: Clock) -> None:
    claim_new(store)
    clock.advance(LEASE)
    match = store.claim_unacknowledged_request(replace(NEW, id="other", owner="two"), 60_000, (), clock.now)
    assert match is not None
    record, is_claimed = match
    assert is_claimed and (record.id, record.owner, record.attempts) == ("k", "two", 2)


def test_sweep_requests_deletes_expired_ones(store: Store, clock: Clock) -> None:
    store.finish_request(claim_new(store), 200, "{}", "f", True)
    clock.advance(MEMORY - 1)
    claim_new(store, replace(NEW, id="young"))
    assert store.sweep_requests(100) == 0
    clock.advance(1)
    assert store.sweep_requests(100) == 1
    assert store.describe_request("k") is None
    assert store.describe_request("young")
