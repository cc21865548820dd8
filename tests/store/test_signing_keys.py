"""Signing keys and named secrets, which all servers of a catalog share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.store import IDENTITY_GENERATION, Store

if TYPE_CHECKING:
    from tests.store.conftest import Clock

HOUR_MS = 3_600_000


def test_shared_secret_is_created_once_and_differs_by_name(store: Store) -> None:
    first = store.shared_secret("paging")
    assert len(first) == 32
    assert store.shared_secret("paging") == first
    assert store.shared_secret("other") != first


def test_signing_key_signs_for_a_while_and_verifies_longer(store: Store, clock: Clock) -> None:
    assert store.latest_signing_key(HOUR_MS) is None
    first = store.add_signing_key(2 * HOUR_MS)
    assert len(first.value) == 32 and store.latest_signing_key(HOUR_MS) == first
    clock.advance(HOUR_MS)
    assert store.latest_signing_key(HOUR_MS) is None
    second = store.add_signing_key(2 * HOUR_MS)
    assert store.latest_signing_key(HOUR_MS) == second
    assert store.signing_key(first.id, 2 * HOUR_MS) == first
    clock.advance(HOUR_MS)
    assert store.signing_key(first.id, 2 * HOUR_MS) is None
    store.add_signing_key(2 * HOUR_MS)
    assert store.signing_key(first.id, 20 * HOUR_MS) is None


def test_delete_signing_keys_ends_all_and_counts_the_generation_up(store: Store, clock: Clock) -> None:
    key = store.add_signing_key(HOUR_MS)
    before = store.generation(IDENTITY_GENERATION)
    store.delete_signing_keys()
    assert store.signing_key(key.id, HOUR_MS) is None and store.generation(IDENTITY_GENERATION) > before
