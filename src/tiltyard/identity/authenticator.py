"""Authenticate credentials: find their principal, and cache it. A cached answer costs a hash and two lookups.

The cache is valid as long as principals and keys have not changed, which the catalog's generation `identity` tells.
That is read again every FRESH_SECONDS, before anything cached is used: so a revoked key stops working on every server
after that time, and if the database is unavailable, every request is refused after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import LanceNamespaceError, UnauthenticatedError

from tiltyard.identity.credentials import CredentialKind, Credentials, SessionIdentity
from tiltyard.identity.keys import require_valid, verify_key
from tiltyard.identity.providers import TrustedProvider
from tiltyard.identity.tokens import ISSUER, ServerTokens, read_unverified
from tiltyard.model.principals import Principal
from tiltyard.runtime.cache import Cache
from tiltyard.store import IDENTITY_GENERATION
from tiltyard.store.access.watched_generation import WatchedGeneration

if TYPE_CHECKING:
    from tiltyard.config import Settings
    from tiltyard.store import KeyRecord, PrincipalRecord, Store

log = logging.getLogger("tiltyard.identity")

UNAVAILABLE_SECONDS = 1.0
"""How long requests are refused without another try after the database could not be reached."""
USE_INTERVAL_MS = 60_000
"""How often the use of a key is recorded, and so how long a key is cached without reading its record."""
TOKEN_MS = 600_000
"""How long a provider's token is cached at most, so that a signing key withdrawn by the provider stops working."""
MAX_CACHED = 10_000
NEVER = 1 << 62
"""When a key without an end expires (ms since 1970)."""


class CachedPrincipal(msgspec.Struct, frozen=True):
    """A principal, and until when it may be used without verifying the credentials again (ms since 1970)."""

    principal: Principal
    until: int


class Authenticator:
    """Authenticates credentials. The use of keys is recorded by `pool`, not by the request. Thread-safe."""

    def __init__(self, settings: Settings, store: Store, clock: Callable[[], int], pool: Executor) -> None:
        self._store = store
        self._clock = clock
        self._pool = pool
        self.tokens = ServerTokens(store, clock, settings.token_life)
        self._providers = {
            provider.issuer: TrustedProvider(name, provider, clock) for name, provider in settings.providers.items()
        }
        self._cache: Cache[tuple[int, bytes], CachedPrincipal] = Cache(
            "principals",
            "Who has which key, token or session, by its digest",
            max_entries=MAX_CACHED,
            invalidated_by="the generation of identities, and the end of a key or token",
        )
        self._generation = WatchedGeneration(store, IDENTITY_GENERATION, self._clear, pause_seconds=UNAVAILABLE_SECONDS)

    def cached_principal(self, credentials: Credentials) -> Principal | None:
        """Return the principal from the cache, or None. Does not block."""
        if not self._generation.is_fresh:
            return None
        entry = self._cache.get((self._generation.number, credentials.digest))
        if entry is None or entry.until <= self._clock():
            return None
        return entry.principal

    def authenticate(self, credentials: Credentials) -> Principal:
        """Return the principal; may read the catalog. Raises UnauthenticatedError, ServiceUnavailableError."""
        generation = self._generation.current()
        if (principal := self.cached_principal(credentials)) is not None:
            return principal
        entry = self._verify(credentials)
        self._cache.put((generation, credentials.digest), entry)  # not the one by now: the records may have changed
        return entry.principal

    def issue_token(self, client_id: str, secret: str) -> str:
        """Return a token for the holder of an API key; `client_id` is the principal's name or the key's id.

        Raises UnauthenticatedError, ServiceUnavailableError.
        """
        self._generation.current()
        key, record = verify_key(self._store, secret.encode(), self._clock())
        if client_id not in (record.name, key.id):
            raise UnauthenticatedError("This API key belongs to another client.")
        self._record_use(key)
        return self.tokens.issue(_require_enabled(record).name, key.id)

    def sign_in(self, secret: str) -> SessionIdentity:
        """Return the identity of a session for the holder of an API key, with which it ends.

        Raises UnauthenticatedError, ServiceUnavailableError.
        """
        self._generation.current()
        key, record = verify_key(self._store, secret.encode(), self._clock())
        self._record_use(key)
        return SessionIdentity(_require_enabled(record).name, (), key.id, key.expires_at or NEVER)

    def _clear(self) -> None:
        self._cache.clear()
        self.tokens.clear_cache()

    def _verify(self, credentials: Credentials) -> CachedPrincipal:
        if credentials.kind is CredentialKind.TOKEN:
            return self._verify_token(credentials.text)
        if credentials.kind is CredentialKind.SESSION:
            return self._verify_session(msgspec.json.decode(credentials.text, type=SessionIdentity))
        now = self._clock()
        key, record = verify_key(self._store, credentials.text, now)
        principal = _principal(record, "api key")
        self._record_use(key)
        until = now + USE_INTERVAL_MS
        return CachedPrincipal(principal, until if key.expires_at is None else min(until, key.expires_at))

    def _verify_token(self, text: bytes) -> CachedPrincipal:
        issuer, key_id = read_unverified(text)
        if issuer == ISSUER:
            return self._verify_own_token(text, key_id)
        provider = self._providers.get(issuer)
        if provider is None:
            raise UnauthenticatedError("The issuer of this token is not trusted here.")
        identity = provider.verify(text)
        record = self._store.describe_principal(identity.name)
        administrator = record is not None and _require_enabled(record).administrator
        principal = Principal(identity.name, identity.groups, "token", administrator)
        return CachedPrincipal(principal, min(identity.expires_at, self._clock() + TOKEN_MS))

    def _verify_own_token(self, text: bytes, key_id: str | None) -> CachedPrincipal:
        """Verify a token of this server; it expires with the API key that it was issued for."""
        claims = self.tokens.verify(text, key_id)
        records = self._store.describe_key(claims.key_id)
        if records is None or records[1].name != claims.principal:
            raise UnauthenticatedError("The API key of this token is unknown.")
        key, record = records
        require_valid(key, self._clock())
        return CachedPrincipal(_principal(record, "token"), min(claims.expires_at, key.expires_at or claims.expires_at))

    def _verify_session(self, identity: SessionIdentity) -> CachedPrincipal:
        """Verify that a session, its key and its principal still hold."""
        now = self._clock()
        if identity.expires_at <= now:
            raise UnauthenticatedError("This session has ended: sign in again.")
        until = min(identity.expires_at, now + USE_INTERVAL_MS)
        if identity.key_id is None:
            record = self._store.describe_principal(identity.name)
            administrator = record is not None and _require_enabled(record).administrator
            return CachedPrincipal(Principal(identity.name, identity.groups, "session", administrator), until)
        records = self._store.describe_key(identity.key_id)
        if records is None or records[1].name != identity.name:
            raise UnauthenticatedError("The API key of this session is unknown: sign in again.")
        key, owner = records
        require_valid(key, now)
        self._record_use(key)
        return CachedPrincipal(_principal(owner, "session"), min(until, key.expires_at or until))

    def _record_use(self, key: KeyRecord) -> None:
        if key.last_used_at is None or key.last_used_at <= self._clock() - USE_INTERVAL_MS:
            self._pool.submit(self._write_use, key.id)

    def _write_use(self, key_id: str) -> None:
        try:
            self._store.record_key_use(key_id, USE_INTERVAL_MS)
        except LanceNamespaceError as error:
            log.warning("cannot record the use of the key %s: %s", key_id, error)


def in_process_principal(store: Store, name: str) -> Principal:
    """Return the principal of this name for use in this process, without credentials.

    Raises UnauthenticatedError if it is disabled.
    """
    record = store.describe_principal(name)
    return Principal(name, method="in process") if record is None else _principal(record, "in process")


def _principal(record: PrincipalRecord, method: str) -> Principal:
    """Return the principal of a record. Raises UnauthenticatedError if it is disabled."""
    return Principal(_require_enabled(record).name, method=method, administrator=record.administrator)


def _require_enabled(record: PrincipalRecord) -> PrincipalRecord:
    if record.disabled:
        raise UnauthenticatedError(f"The principal '{record.name}' is disabled.")
    return record
