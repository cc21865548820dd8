"""From credentials to a principal, remembered: a warm answer costs a hash and two looks.

What is remembered holds as long as nothing of principals and keys has changed, which a number in the catalog tells
(the generation `identity`). It is read again every other second, before anything remembered is used: so a revoked key
is dead on every server after that time, and when the database is away, everybody is refused after it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError, UnauthenticatedError

from tiltyard.identity.credentials import Credentials, Kind
from tiltyard.identity.keys import proven
from tiltyard.principals import Principal
from tiltyard.store import IDENTITY

if TYPE_CHECKING:
    from tiltyard.store import PrincipalRecord, Store

log = logging.getLogger("tiltyard.identity")

FRESH_SECONDS = 2.0
"""How long what is remembered is used without a look at the catalog: revoking a key takes so long at most."""
AWAY_SECONDS = 1.0
"""How long callers are refused at once after a database could not be reached."""
USE_MS = 60_000
"""How often the use of a key is written down, so also how long a key is remembered without a look at its record."""
MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Proof:
    """Who it is, and until when that needs no second look (ms since 1970)."""

    principal: Principal
    until: int


class Authenticator:
    """Knows who asks. `pool` is where the use of keys is written, beside the request. Safe to use from threads."""

    def __init__(self, store: Store, clock: Callable[[], int], pool: Executor) -> None:
        self._store = store
        self._clock = clock
        self._pool = pool
        self._lock = threading.Lock()
        self._memory: dict[bytes, Proof] = {}
        self._generation = -1
        self._fresh_until = 0.0
        self._away: tuple[float, ServiceUnavailableError] | None = None

    def remembered(self, credentials: Credentials) -> Principal | None:
        """Who it is, if that is known without asking anybody; never waits."""
        proof = self._memory.get(credentials.digest)
        if proof is None or time.monotonic() > self._fresh_until or proof.until <= self._clock():
            return None
        return proof.principal

    def authenticate(self, credentials: Credentials) -> Principal:
        """Who it is; may ask the catalog. Raises UnauthenticatedError, ServiceUnavailableError."""
        generation = self._refreshed()
        if (principal := self.remembered(credentials)) is not None:
            return principal
        proof = self._proof(credentials)
        with self._lock:
            if generation == self._generation:  # else what was seen may have changed meanwhile
                if len(self._memory) >= MOST_REMEMBERED:
                    self._memory.clear()
                self._memory[credentials.digest] = proof
        return proof.principal

    def _refreshed(self) -> int:
        """Forget everything if something of it has changed; the generation that memory is of."""
        with self._lock:
            now = time.monotonic()
            if now > self._fresh_until:
                number = self._asked(now)
                if number != self._generation:
                    self._memory.clear()
                    self._generation = number
                self._fresh_until = now + FRESH_SECONDS
            return self._generation

    def _asked(self, now: float) -> int:
        if self._away is not None and now < self._away[0]:
            raise self._away[1]
        try:
            number = self._store.generation(IDENTITY)
        except ServiceUnavailableError as error:
            self._away = time.monotonic() + AWAY_SECONDS, error
            raise
        self._away = None
        return number

    def _proof(self, credentials: Credentials) -> Proof:
        now = self._clock()
        if credentials.kind is Kind.TOKEN:
            raise UnauthenticatedError("No tokens are trusted here: send an API key.")
        key, owner = proven(self._store, credentials.text, now)
        principal = _principal(owner, "api key")
        if key.last_used_at is None or key.last_used_at <= now - USE_MS:
            self._pool.submit(self._note_use, key.id)
        until = now + USE_MS
        return Proof(principal, until if key.expires_at is None else min(until, key.expires_at))

    def _note_use(self, key_id: str) -> None:
        try:
            self._store.note_use(key_id, USE_MS)
        except LanceNamespaceError as error:
            log.warning("cannot note the use of the key %s: %s", key_id, error)


def _principal(record: PrincipalRecord, method: str) -> Principal:
    """Raises UnauthenticatedError for a disabled one."""
    if record.disabled:
        raise UnauthenticatedError(f"The principal '{record.name}' is disabled.")
    return Principal(record.name, method=method, administrator=record.administrator)
