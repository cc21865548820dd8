"""All leases of the catalog between two processes, of which one has a clock that is an hour wrong."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import pytest
from lance_namespace.errors import ConcurrentModificationError

from tiltyard.runtime.lease import LEASE_MS
from tiltyard.store import CREATING, NewRequest, Store, open_store
from tiltyard.store.tables import upkeep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WRONG_SECONDS = 3600
ENDED_MS = -1_000
"""The length of a lease that has ended already."""
_NUMBERS = count(1)


@dataclass(frozen=True, slots=True)
class LeaseKind:
    """`prepare` makes something, `claim` leases it to an owner, and says whether that got it; `renew` is the owner's.

    `steal` is what others do, where that is not `claim`.
    """

    prepare: Callable[[Store], object]
    claim: Callable[[Store, object, str, int], bool]
    renew: Callable[[Store, object, str], object] = lambda store, key, owner: None
    steal: Callable[[Store, object], bool] | None = None

    def can_steal(self, store: Store, key: object) -> bool:
        return self.claim(store, key, "thief", LEASE_MS) if self.steal is None else self.steal(store, key)


def add_job(store: Store) -> str:
    return store.create_transaction(f"kind {next(_NUMBERS)}", None, {}, {}, lease_ms=ENDED_MS).id


def claim_transaction(store: Store, key: object, owner: str, lease_ms: int) -> bool:
    kind = store.describe_transaction(str(key)).kind
    return store.has_claimable_transaction([kind]) and store.claim_transaction(owner, lease_ms, [kind]) is not None


def add_run(store: Store) -> str:
    return store.create_transaction(f"kind {next(_NUMBERS)}", None, {}, {}, lease_ms=ENDED_MS, is_local=True).id


def end_lost_runs(store: Store, key: object) -> bool:
    return store.has_lost_runs() and store.end_lost_runs(lambda record: "lost" if record.id == key else "", 100) > 0


def add_mirror(store: Store) -> int:
    name = f"mirror {next(_NUMBERS)}"
    store.add_mirror(name, "dir", {}, None, namespace=(), target=(), has_columns=False)
    found = store.find_mirror(name)
    assert found is not None
    return found.id


def add_table(store: Store) -> int:
    number = next(_NUMBERS)
    return store.insert_table((f"t{number}",), f"mem://t{number}", {}).id


def add_due_upkeep(store: Store) -> int:
    table, due_at = next(_NUMBERS), store.clock() + ENDED_MS
    store.note_changes([table])
    seen = store.find_upkeep(table)
    assert seen is not None
    store.plan_upkeep(seen, rests_until=due_at, due_at=due_at, clean_at=None, state={})
    return table


def claim_upkeep(store: Store, key: object, owner: str, lease_ms: int) -> bool:
    upkeep.LOOK_LEASE_MS = lease_ms
    return store.has_due_upkeep() and (seen := store.claim_upkeep()) is not None and seen.table_id == key


def begin_request(store: Store, key: object, owner: str, lease_ms: int) -> bool:
    return store.begin_request(NewRequest(str(key), "POST /", "f", owner, lease_ms, 86_400_000))[1]


def schedule_folder(store: Store, key: object, owner: str, lease_ms: int) -> bool:
    return store.schedule_deletion(str(key), store.clock() + lease_ms, CREATING)


def sweep_folder(store: Store, key: object) -> bool:
    return key in [folder.location for folder in store.claim_due_deletions(100, LEASE_MS)]


KINDS = {
    "a worker's transaction": LeaseKind(
        add_job, claim_transaction, lambda store, key, owner: store.heartbeat(str(key), owner, LEASE_MS)
    ),
    "a driver's job": LeaseKind(
        add_job,
        lambda store, key, owner, lease_ms: store.claim_job(str(key), owner, lease_ms) is not None,
        lambda store, key, owner: store.heartbeat(str(key), owner, LEASE_MS),
    ),
    "a run of its submitter's process": LeaseKind(
        add_run,
        lambda store, key, owner, lease_ms: store.claim_job(str(key), owner, lease_ms) is not None,
        lambda store, key, owner: store.heartbeat(str(key), owner, LEASE_MS),
        end_lost_runs,
    ),
    "a mirror": LeaseKind(
        add_mirror,
        lambda store, key, owner, lease_ms: store.claim_mirror(int(str(key)), owner, lease_ms) is not None,
        lambda store, key, owner: store.renew_mirror(int(str(key)), owner, LEASE_MS),
    ),
    "a turn of appends": LeaseKind(
        add_table,
        lambda store, key, owner, ms: store.claim_turn(int(str(key)), "", owner, ms) is not None,
    ),
    "a look for upkeep": LeaseKind(add_due_upkeep, claim_upkeep),
    "a request with a key": LeaseKind(
        lambda store: f"request {next(_NUMBERS)}",
        begin_request,
        lambda store, key, owner: store.renew_request_leases(owner, LEASE_MS, [str(key)]),
    ),
    "the folder of a table in creation": LeaseKind(
        lambda store: f"mem://folder-{next(_NUMBERS)}",
        schedule_folder,
        lambda store, key, owner: store.postpone_deletion(str(key), LEASE_MS),
        sweep_folder,
    ),
    "a folder that is deleted": LeaseKind(
        lambda store: f"mem://folder-{next(_NUMBERS)}",
        lambda store, key, owner, ms: (
            schedule_folder(store, key, owner, ENDED_MS) and len(store.claim_due_deletions(100, ms)) > 0
        ),
        steal=sweep_folder,
    ),
}


@contextmanager
def wrong_clock(ahead: int) -> Iterator[None]:
    """Run the block as a process whose clock is so many seconds ahead."""
    with pytest.MonkeyPatch.context() as patched:
        seconds, nanoseconds = time.time, time.time_ns
        patched.setattr(time, "time", lambda: seconds() + ahead)
        patched.setattr(time, "time_ns", lambda: nanoseconds() + ahead * 10**9)
        yield


@pytest.mark.parametrize("ahead", [-WRONG_SECONDS, WRONG_SECONDS], ids=["behind", "ahead"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_process_whose_clock_is_an_hour_wrong_neither_steals_nor_loses_a_lease(
    catalog_url: str, kind: LeaseKind, ahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "LOOK_LEASE_MS", LEASE_MS)  # which goes back after the test
    with open_store(catalog_url) as right:
        with wrong_clock(ahead):
            wrong = open_store(catalog_url)
        with wrong:
            held = kind.prepare(right)
            assert kind.claim(right, held, "right", LEASE_MS)
            with wrong_clock(ahead):
                assert not kind.can_steal(wrong, held)
            kind.renew(right, held, "right")
            with wrong_clock(ahead):
                assert not kind.can_steal(wrong, held)
                held = kind.prepare(wrong)
                assert kind.claim(wrong, held, "wrong", LEASE_MS)
            assert not kind.can_steal(right, held)
            with wrong_clock(ahead):
                kind.renew(wrong, held, "wrong")
            assert not kind.can_steal(right, held)
            with wrong_clock(ahead):
                ended = kind.prepare(wrong)
                assert kind.claim(wrong, ended, "wrong", ENDED_MS)
            assert kind.can_steal(right, ended), "what has ended for one has ended for the other"


def test_lease_that_has_ended_is_its_owners_until_another_claims_it(catalog_url: str) -> None:
    with open_store(catalog_url) as store:
        job = add_job(store)
        assert store.claim_job(job, "slow", ENDED_MS)
        store.heartbeat(job, "slow", ENDED_MS)
        assert store.claim_job(job, "other", LEASE_MS)
        with pytest.raises(ConcurrentModificationError):
            store.heartbeat(job, "slow", LEASE_MS)
