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
from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError, UnauthenticatedError

from tiltyard.identity.credentials import Credentials, Kind
from tiltyard.identity.keys import proven, require_live
from tiltyard.identity.providers import TrustedProvider
from tiltyard.identity.tokens import ISSUER, Tokens, claimed
from tiltyard.model.principals import Principal
from tiltyard.store import IDENTITY_GENERATION

if TYPE_CHECKING:
    from tiltyard.config import Settings
    from tiltyard.store import KeyRecord, PrincipalRecord, Store

log = logging.getLogger("tiltyard.identity")

FRESH_SECONDS = 2.0
"""How long what is remembered is used without a look at the catalog: revoking a key takes so long at most."""
AWAY_SECONDS = 1.0
"""How long callers are refused at once after a database could not be reached."""
USE_MS = 60_000
"""How often the use of a key is written down, so also how long a key is remembered without a look at its record."""
TOKEN_MS = 600_000
"""How long a provider's token is remembered at most, so that a key that the provider took back ends."""
MOST_REMEMBERED = 10_000


class Proof(msgspec.Struct, frozen=True):
    """Who it is, and until when that needs no second look (ms since 1970)."""

    principal: Principal
    until: int


class Authenticator:
    """Knows who asks. `pool` is where the use of keys is written, beside the request. Safe to use from threads."""

    def __init__(self, settings: Settings, store: Store, clock: Callable[[], int], pool: Executor) -> None:
        self._store = store
        self._clock = clock
        self._pool = pool
        self.tokens = Tokens(store, clock, settings.token_life)
        self._providers = {
            provider.issuer: TrustedProvider(name, provider, clock) for name, provider in settings.providers.items()
        }
        self._lock = threading.Lock()
        self._memory: dict[bytes, Proof] = {}
        self._generation = -1
        self._fresh_until = 0.0
        self._away: tuple[float, str] | None = None

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

    def issue(self, client_id: str, secret: str) -> str:
        """A token for whoever has an API key; the id is its principal's name, or the key's.

        Raises UnauthenticatedError, ServiceUnavailableError.
        """
        self._refreshed()
        key, owner = proven(self._store, secret.encode(), self._clock())
        if client_id not in (owner.name, key.id):
            raise UnauthenticatedError("This API key is another client's.")
        self._noted(key)
        return self.tokens.issue(_live(owner).name, key.id)

    def _refreshed(self) -> int:
        """Forget everything if something of it has changed; the generation that memory is of."""
        with self._lock:
            now = time.monotonic()
            if now > self._fresh_until:
                number = self._asked(now)
                if number != self._generation:
                    self._memory.clear()
                    self.tokens.forget()
                    self._generation = number
                self._fresh_until = now + FRESH_SECONDS
            return self._generation

    def _asked(self, now: float) -> int:
        if self._away is not None and now < self._away[0]:
            raise ServiceUnavailableError(self._away[1])
        try:
            number = self._store.generation(IDENTITY_GENERATION)
        except ServiceUnavailableError as error:
            self._away = time.monotonic() + AWAY_SECONDS, str(error)
            raise
        self._away = None
        return number

    def _proof(self, credentials: Credentials) -> Proof:
        if credentials.kind is Kind.TOKEN:
            return self._token_proof(credentials.text)
        now = self._clock()
        key, owner = proven(self._store, credentials.text, now)
        principal = _principal(owner, "api key")
        self._noted(key)
        until = now + USE_MS
        return Proof(principal, until if key.expires_at is None else min(until, key.expires_at))

    def _token_proof(self, text: bytes) -> Proof:
        issuer, key_id = claimed(text)
        if issuer == ISSUER:
            return self._own_proof(text, key_id)
        provider = self._providers.get(issuer)
        if provider is None:
            raise UnauthenticatedError("Nobody here trusts the issuer of this token.")
        bearer = provider.verify(text)
        known = self._store.describe_principal(bearer.name)
        administrator = known is not None and _live(known).administrator
        principal = Principal(bearer.name, bearer.groups, "token", administrator)
        return Proof(principal, min(bearer.expires_at, self._clock() + TOKEN_MS))

    def _own_proof(self, text: bytes, key_id: str | None) -> Proof:
        """A token ends with the key that it was got by."""
        signed = self.tokens.verify(text, key_id)
        found = self._store.describe_key(signed.key_id)
        if found is None or found[1].name != signed.principal:
            raise UnauthenticatedError("The API key behind this token is not known.")
        require_live(found[0], self._clock())
        return Proof(_principal(found[1], "token"), min(signed.expires_at, found[0].expires_at or signed.expires_at))

    def _noted(self, key: KeyRecord) -> None:
        if key.last_used_at is None or key.last_used_at <= self._clock() - USE_MS:
            self._pool.submit(self._note_use, key.id)

    def _note_use(self, key_id: str) -> None:
        try:
            self._store.record_key_use(key_id, USE_MS)
        except LanceNamespaceError as error:
            log.warning("cannot note the use of the key %s: %s", key_id, error)


def named(store: Store, name: str) -> Principal:
    """A principal in this process, who shows nothing. Raises UnauthenticatedError for a disabled one."""
    record = store.describe_principal(name)
    return Principal(name, method="in process") if record is None else _principal(record, "in process")


def _principal(record: PrincipalRecord, method: str) -> Principal:
    """Raises UnauthenticatedError for a disabled one."""
    return Principal(_live(record).name, method=method, administrator=record.administrator)


def _live(record: PrincipalRecord) -> PrincipalRecord:
    if record.disabled:
        raise UnauthenticatedError(f"The principal '{record.name}' is disabled.")
    return record
