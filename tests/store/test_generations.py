"""What servers cache of principals, keys and grants, and when they see that another one has changed it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from lance_namespace.errors import ServiceUnavailableError, UnauthenticatedError

from tests.store.conftest import Clock
from tiltyard.access.rights import RightsCache
from tiltyard.config import Settings
from tiltyard.identity.authenticator import Authenticator
from tiltyard.identity.credentials import CredentialKind, Credentials
from tiltyard.identity.keys import NewKeyOptions, create_key
from tiltyard.model.principals import Principal
from tiltyard.store import FRESH_SECONDS, Store, open_store
from tiltyard.store.access.grants import SERVER
from tiltyard.store.access.watched_generation import WatchedGeneration

ANN = Principal("ann")
READ = 2


@pytest.fixture
def other_store(catalog_url: str, store: Store, clock: Clock) -> Iterator[Store]:
    """The store of another server on the same database."""
    with open_store(catalog_url, clock=clock) as other:
        yield other


def wait_until_stale() -> None:
    time.sleep(1.5 * FRESH_SECONDS)


def test_servers_see_grants_that_another_one_has_changed(store: Store, other_store: Store) -> None:
    rights = RightsCache(other_store)
    assert not rights.get(ANN).server & READ
    store.grant("principal:ann", SERVER, 0, READ, "root")
    wait_until_stale()
    assert rights.get(ANN).server & READ
    store.revoke("principal:ann", SERVER, 0, 0)
    wait_until_stale()
    assert not rights.get(ANN).server & READ


def test_one_of_many_requests_looks_for_changes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    rights, reads = RightsCache(store), []
    generation = Store.generation

    def slow_generation(self: Store, name: str) -> int:
        reads.append(name)
        time.sleep(0.2 * FRESH_SECONDS)
        return generation(self, name)

    rights.get(ANN)
    fresh_seconds = "tiltyard.store.access.watched_generation.FRESH_SECONDS"
    monkeypatch.setattr(fresh_seconds, 60.0)  # none looks again because the machine is busy
    monkeypatch.setattr(Store, "generation", slow_generation)
    rights.refresh_next()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(rights.get, [ANN] * 8))
    assert len(reads) == 1


def test_servers_refuse_a_key_that_another_one_has_revoked(store: Store, other_store: Store, clock: Clock) -> None:
    with ThreadPoolExecutor(1) as pool:
        authenticator = Authenticator(Settings(), other_store, clock, pool)
        key = create_key(store, clock, "ann", NewKeyOptions(), administrator=False)
        credentials = Credentials.of(CredentialKind.KEY, key.text.encode())
        assert authenticator.authenticate(credentials).name == "ann"
        store.revoke_key(key.record.id)
        wait_until_stale()
        assert authenticator.cached_principal(credentials) is None
        with pytest.raises(UnauthenticatedError):
            authenticator.authenticate(credentials)


class CountedStore:
    """A catalog whose generation is what a test says, or which is away."""

    def __init__(self) -> None:
        self.number, self.reads, self.is_away = 0, 0, False

    def generation(self, name: str) -> int:
        self.reads += 1
        if self.is_away:
            raise ServiceUnavailableError("The catalog is away.")
        return self.number


def test_a_watched_generation_calls_once_for_each_change_and_again_after_an_error() -> None:
    store, changes, failures = CountedStore(), [], [ServiceUnavailableError("not now")]

    def changed() -> None:
        if failures:
            raise failures.pop()
        changes.append(store.number)

    watched = WatchedGeneration(store, "grants", changed)  # type: ignore[arg-type]  # the method that it calls is there
    assert (watched.number, watched.is_fresh) == (-1, False)
    with pytest.raises(ServiceUnavailableError):
        watched.current()
    assert not watched.is_fresh, "what depends on it could not be read"
    assert [watched.current(), watched.current()] == [0, 0]
    assert (changes, store.reads) == ([0], 2)
    store.number = 7
    watched.refresh_next()
    assert (watched.current(), changes, store.reads) == (7, [0, 7], 3)
    watched.refresh_next()
    assert (watched.current(), changes, store.reads) == (7, [0, 7], 4), "it is the same: nothing has changed"


@pytest.mark.parametrize(("pause_seconds", "reads"), [(60.0, 1), (0.0, 3)])
def test_a_catalog_that_is_away_is_not_read_again_during_the_pause(pause_seconds: float, reads: int) -> None:
    store = CountedStore()
    store.is_away = True
    watched = WatchedGeneration(store, "grants", lambda: None, pause_seconds=pause_seconds)  # type: ignore[arg-type]  # as above
    for _ in range(3):
        with pytest.raises(ServiceUnavailableError, match="away"):
            watched.current()
    assert store.reads == reads
