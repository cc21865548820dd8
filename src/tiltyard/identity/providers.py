"""Tokens of trusted OpenID providers.

Only the settings say which issuers are trusted, for which audience, with which algorithms, and where their keys are.
Nothing that a token names is fetched or believed before its signature is verified.
"""

from __future__ import annotations

import logging
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, NoReturn

import msgspec
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError, UnauthenticatedError

from tiltyard.identity.keys import PROVIDER_SEPARATOR
from tiltyard.identity.tokens import refusal_reason
from tiltyard.model.ids import check_name
from tiltyard.model.settings.oidc_providers import OidcProvider

log = logging.getLogger("tiltyard.identity")

REFRESH_SECONDS = 600.0
"""How long keys are used before they are fetched again; so a key that a provider withdraws ends within twice that."""
STALE_SECONDS = 3600.0
"""How long keys are used while they cannot be fetched."""
RETRY_SECONDS = 5.0
"""Pause after a failed fetch."""
MAX_FETCHES, PER_SECONDS = 5, 60.0
"""How often keys are fetched at most, whatever key ids tokens name: unauthenticated clients can name any."""
FETCH_TIMEOUT_SECONDS = 5.0
MAX_KEYS_BYTES = 1 << 20
MAX_GROUPS = 1_000


@dataclass(frozen=True, slots=True)
class ProviderIdentity:
    """Verified claims of a provider's token: name and groups with the provider's prefix, and the expiry (ms)."""

    name: str
    groups: tuple[str, ...]
    expires_at: int


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: keys come only from the URL of the settings."""

    def redirect_request(self, *_: Any) -> None:
        """Return no request, so that the redirect is an error."""


def fetch_url(url: str) -> bytes:
    """Return the content of a URL of the settings. Raises OSError."""
    try:
        with urllib.request.build_opener(NoRedirect).open(url, timeout=FETCH_TIMEOUT_SECONDS) as response:
            content: bytes = response.read(MAX_KEYS_BYTES + 1)
    except HTTPException as error:
        raise OSError(f"no HTTP: {error!r}") from error
    if len(content) > MAX_KEYS_BYTES:
        raise OSError(f"more than {MAX_KEYS_BYTES} bytes")
    return content


class ProviderKeys:
    """The keys of one provider: fetched when they are needed, and again when they are old or one is missing."""

    def __init__(self, name: str, url: str) -> None:
        self._name = name
        self._url = url
        self._lock = threading.Lock()
        self._keys: KeySet | None = None
        self._fetched = 0.0
        self._not_before = 0.0
        self._recent_fetches: deque[float] = deque(maxlen=MAX_FETCHES)

    def current(self) -> KeySet:
        """Return the keys, not too old. Raises ServiceUnavailableError if there are none and they cannot be fetched."""
        with self._lock:
            if self._keys is None or self._age() > REFRESH_SECONDS:
                self._refresh()
            if self._keys is None or self._age() > STALE_SECONDS:
                raise ServiceUnavailableError(f"The keys of the provider {self._name} cannot be fetched: try again.")
            return self._keys

    def refreshed(self, outdated: KeySet) -> KeySet:
        """Return the keys after one was missing from `outdated`: fetched again, unless that was just done."""
        with self._lock:
            if self._keys is outdated:
                self._refresh()
            return self._keys or outdated

    def _age(self) -> float:
        return time.monotonic() - self._fetched

    def _refresh(self) -> None:
        now = time.monotonic()
        if now < self._not_before:
            return
        try:
            self._keys = KeySet.import_key_set(msgspec.json.decode(fetch_url(self._url)))
        except (OSError, ValueError, KeyError, TypeError, JoseError) as error:
            # The keys that there are remain in use for a bounded time, which `current` checks.
            log.warning("cannot fetch the keys of the provider %s from %s: %s", self._name, self._url, error)
            self._not_before = time.monotonic() + RETRY_SECONDS  # read again, since the try itself may have taken long
        else:
            self._fetched = now
            self._recent_fetches.append(now)
            self._not_before = (
                self._recent_fetches[0] + PER_SECONDS if len(self._recent_fetches) == MAX_FETCHES else now
            )


class TrustedProvider:
    """Verifies the tokens of one provider. `clock` gives ms since 1970. Safe to use from threads."""

    def __init__(self, name: str, provider: OidcProvider, clock: Callable[[], int]) -> None:
        self._name = name
        self._provider = provider
        self._clock = clock
        self._keys = ProviderKeys(name, provider.jwks_url)
        # An unknown header is ignored, unless the token marks it as critical: then it is refused.
        self._registry = JWSRegistry(algorithms=provider.algorithms, strict_check_header=False)

    def verify(self, text: bytes, nonce: str | None = None) -> ProviderIdentity:
        """Verify a token and return its claims; with a `nonce`, the token has to be the one made for it.

        Raises UnauthenticatedError, ServiceUnavailableError.
        """
        try:
            claims = self._verified_claims(text)
            self._rules(nonce).validate(claims)
        except (JoseError, ValueError) as error:
            raise UnauthenticatedError(f"This token is not valid: {refusal_reason(error)}.") from error
        expires_at = int((claims["exp"] + self._provider.leeway) * 1000)
        return ProviderIdentity(
            self._prefixed_name(claims.get(self._provider.principal_claim)), self._groups(claims), expires_at
        )

    def _verified_claims(self, text: bytes) -> dict[str, Any]:
        keys = self._keys.current()
        try:
            return self._decode(text, keys)
        except InvalidKeyIdError:
            newer = self._keys.refreshed(keys)
            if newer is keys:
                raise
            return self._decode(text, newer)

    def _decode(self, text: bytes, keys: KeySet) -> dict[str, Any]:
        return jwt.decode(text, keys, algorithms=self._provider.algorithms, registry=self._registry).claims

    def _rules(self, nonce: str | None) -> jwt.JWTClaimsRegistry:
        provider = self._provider
        further: dict[str, Any] = {} if nonce is None else {"nonce": {"essential": True, "value": nonce}}
        return jwt.JWTClaimsRegistry(
            now=self._clock() // 1000,
            leeway=int(provider.leeway),
            iss={"essential": True, "value": provider.issuer},
            aud={"essential": True, "value": provider.audience},
            exp={"essential": True},
            **further,
        )

    def _groups(self, claims: Mapping[str, Any]) -> tuple[str, ...]:
        claim = claims.get(self._provider.groups_claim, [])
        groups = [claim] if isinstance(claim, str) else claim
        if not isinstance(groups, list) or len(groups) > MAX_GROUPS:
            self._refuse_claim(self._provider.groups_claim)
        return tuple(self._prefixed_name(group) for group in groups)

    def _prefixed_name(self, name: object) -> str:
        """Return a name prefixed by the provider, so that names of different providers never collide."""
        if not isinstance(name, str):
            raise UnauthenticatedError(f"The token of {self._name} has no name, or a name or group is not a string.")
        try:
            return f"{self._name}{PROVIDER_SEPARATOR}{check_name(name)}"
        except InvalidInputError as error:
            raise UnauthenticatedError(f"The token of {self._name} has an invalid name or group: {error}") from error

    def _refuse_claim(self, claim: str) -> NoReturn:
        raise UnauthenticatedError(f"The claim '{claim}' of the token is not a list of at most {MAX_GROUPS} strings.")
