"""Tokens of this server, which `POST /oauth/token` issues: short-lived JWTs, signed by the servers of one catalog.

Only these servers verify them, so a symmetric key is enough (HMAC); it is in the catalog, where all replicas read it. A
key signs for a day, and verifies until its last token has expired.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey
from joserfc.jws import extract_compact
from lance_namespace.errors import UnauthenticatedError

from tiltyard.model.settings.oidc_providers import OWN_ISSUER

if TYPE_CHECKING:
    from tiltyard.store import SigningKey, Store

ISSUER = OWN_ISSUER
ALGORITHM = "HS256"
SIGNING_MS = 24 * 3_600_000
SKEW_SECONDS = 30
"""How much the clocks of two servers may differ."""


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """Verified claims of a token: its principal, the API key it was issued for, its expiry (ms since 1970)."""

    principal: str
    key_id: str
    expires_at: int


class _IssuerClaim(msgspec.Struct):
    iss: str


_issuer_decoder = msgspec.json.Decoder(_IssuerClaim)


class ServerTokens:
    """Issues and verifies tokens, which live for `lifetime_seconds`. Safe to use from threads."""

    def __init__(self, store: Store, clock: Callable[[], int], lifetime_seconds: int) -> None:
        self.lifetime_seconds = lifetime_seconds
        self._store = store
        self._clock = clock
        self._keep_ms = SIGNING_MS + (lifetime_seconds + 2 * SKEW_SECONDS) * 1000
        self._lock = threading.Lock()
        self._keys: dict[str, SigningKey] = {}

    def issue(self, principal: str, key_id: str) -> str:
        """Return a new token of a principal, for one of its API keys."""
        key = self._signing_key()
        now = self._clock() // 1000
        claims = {
            "iss": ISSUER,
            "aud": ISSUER,
            "sub": principal,
            "key": key_id,
            "iat": now,
            "nbf": now,
            "exp": now + self.lifetime_seconds,
        }
        return jwt.encode({"alg": ALGORITHM, "kid": key.id}, claims, _secret(key), algorithms=[ALGORITHM])

    def verify(self, text: bytes, key_id: str | None) -> TokenClaims:
        """Verify a token's signature and times and return its claims. Raises UnauthenticatedError."""
        key = self._verifying_key(key_id) if key_id else None
        if key is None:
            raise UnauthenticatedError("The key that signed this token is unknown or has expired: get a new token.")
        now = self._clock() // 1000
        rules = jwt.JWTClaimsRegistry(
            now=now,
            leeway=SKEW_SECONDS,
            iss={"essential": True, "value": ISSUER},
            aud={"essential": True, "value": ISSUER},
            exp={"essential": True},
            sub={"essential": True},
            key={"essential": True},
        )
        try:
            claims = jwt.decode(text, _secret(key), algorithms=[ALGORITHM]).claims
            rules.validate(claims)
        except (JoseError, ValueError) as error:
            raise UnauthenticatedError(f"This token is not valid: {refusal_reason(error)}.") from error
        return TokenClaims(claims["sub"], claims["key"], (claims["exp"] + SKEW_SECONDS) * 1000)

    def clear_cache(self) -> None:
        """Drop the cached signing keys, to read them from the catalog again."""
        with self._lock:
            self._keys.clear()

    def _signing_key(self) -> SigningKey:
        now = self._clock()
        with self._lock:
            newest = max(self._keys.values(), key=lambda key: key.created_at, default=None)
            if newest is None or newest.created_at <= now - SIGNING_MS:
                newest = self._store.latest_signing_key(SIGNING_MS) or self._store.add_signing_key(self._keep_ms)
                self._keys[newest.id] = newest
            return newest

    def _verifying_key(self, id_: str) -> SigningKey | None:
        oldest = self._clock() - self._keep_ms
        with self._lock:
            self._keys = {key.id: key for key in self._keys.values() if key.created_at > oldest}
            cached = self._keys.get(id_)
        if cached is not None:
            return cached
        stored = self._store.signing_key(id_, self._keep_ms)
        if stored is not None:
            with self._lock:
                self._keys[id_] = stored
        return stored


def read_unverified(text: bytes) -> tuple[str, str | None]:
    """Return the issuer and the key id that a token claims, not verified yet. Raises UnauthenticatedError."""
    try:
        token = extract_compact(text)
        issuer = _issuer_decoder.decode(token.payload or b"").iss
        key_id = token.headers().get("kid")
    except (JoseError, ValueError, RecursionError) as error:
        raise UnauthenticatedError("This is not a token: it cannot be read.") from error
    return issuer, key_id if isinstance(key_id, str) else None


def refusal_reason(error: Exception) -> str:
    """Return why a token was refused, in the words of the library."""
    description = getattr(error, "description", "") or getattr(error, "error", "") or "it cannot be read"
    return str(description).rstrip(".")


def _secret(key: SigningKey) -> OctKey:
    return OctKey.import_key(key.value)
