"""Tokens that the servers of one catalog sign, for a few minutes: what `POST /oauth/token` answers.

Only these servers verify them, so one secret does (HMAC): it lies in the catalog, where all replicas find it. A key
signs for a day and verifies for as long as a token of it may live.
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

from tiltyard.model.oidc_settings import OWN_ISSUER

if TYPE_CHECKING:
    from tiltyard.store import SigningKey, Store

ISSUER = OWN_ISSUER
ALGORITHM = "HS256"
SIGNS_MS = 24 * 3_600_000
SKEW_SECONDS = 30
"""How far the clocks of two servers may be apart."""


@dataclass(frozen=True, slots=True)
class Signed:
    """What a token of ours says: whose it is, by which API key it was got, when it ends (ms since 1970)."""

    principal: str
    key_id: str
    expires_at: int


class _Claimed(msgspec.Struct):
    iss: str


_claims = msgspec.json.Decoder(_Claimed)


class Tokens:
    """Signs and verifies. `life` is how many seconds a token lives. Safe to use from threads."""

    def __init__(self, store: Store, clock: Callable[[], int], life: int) -> None:
        self.life = life
        self._store = store
        self._clock = clock
        self._keep_ms = SIGNS_MS + (life + 2 * SKEW_SECONDS) * 1000
        self._lock = threading.Lock()
        self._keys: dict[str, SigningKey] = {}

    def issue(self, principal: str, key_id: str) -> str:
        """A token of a principal, got by one of its API keys."""
        key = self._signing_key()
        now = self._clock() // 1000
        claims = {
            "iss": ISSUER,
            "aud": ISSUER,
            "sub": principal,
            "key": key_id,
            "iat": now,
            "nbf": now,
            "exp": now + self.life,
        }
        return jwt.encode({"alg": ALGORITHM, "kid": key.id}, claims, _secret(key), algorithms=[ALGORITHM])

    def verify(self, text: bytes, key_id: str | None) -> Signed:
        """What a token says, if a key of ours signed it and it is its time. Raises UnauthenticatedError."""
        key = self._verifying_key(key_id) if key_id else None
        if key is None:
            raise UnauthenticatedError("The key that signed this token is not known, or no more: ask for a new token.")
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
            raise UnauthenticatedError(f"This token is not valid: {reason(error)}.") from error
        return Signed(claims["sub"], claims["key"], (claims["exp"] + SKEW_SECONDS) * 1000)

    def forget(self) -> None:
        """Ask the catalog for keys anew."""
        with self._lock:
            self._keys.clear()

    def _signing_key(self) -> SigningKey:
        now = self._clock()
        with self._lock:
            newest = max(self._keys.values(), key=lambda key: key.created_at, default=None)
            if newest is None or newest.created_at <= now - SIGNS_MS:
                newest = self._store.latest_signing_key(SIGNS_MS) or self._store.add_signing_key(self._keep_ms)
                self._keys[newest.id] = newest
            return newest

    def _verifying_key(self, id_: str) -> SigningKey | None:
        oldest = self._clock() - self._keep_ms
        with self._lock:
            self._keys = {known.id: known for known in self._keys.values() if known.created_at > oldest}
            known = self._keys.get(id_)
        if known is None:
            known = self._store.signing_key(id_, self._keep_ms)
            if known is not None:
                with self._lock:
                    self._keys[id_] = known
        return known


def claimed(text: bytes) -> tuple[str, str | None]:
    """The issuer and the key that a token names: nothing of it is true yet. Raises UnauthenticatedError."""
    try:
        token = extract_compact(text)
        issuer = _claims.decode(token.payload or b"").iss
        key_id = token.headers().get("kid")
    except (JoseError, ValueError, RecursionError) as error:
        raise UnauthenticatedError("This is no token: it cannot be read.") from error
    return issuer, key_id if isinstance(key_id, str) else None


def reason(error: Exception) -> str:
    """Why a token was refused, in the library's words."""
    description = getattr(error, "description", "") or getattr(error, "error", "") or "it cannot be read"
    return str(description).rstrip(".")


def _secret(key: SigningKey) -> OctKey:
    return OctKey.import_key(key.value)
