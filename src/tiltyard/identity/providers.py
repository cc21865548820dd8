"""Tokens of trusted OpenID providers.

What is trusted is said by the settings alone: which issuers, for which audience, by which algorithms, and where their
keys are. Nothing that a token names is ever fetched or believed before its signature is verified.
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

from tiltyard.identity.keys import OF_A_PROVIDER
from tiltyard.identity.tokens import reason
from tiltyard.model.ids import check_name
from tiltyard.model.settings.oidc_providers import OidcProvider

log = logging.getLogger("tiltyard.identity")

KEYS_SECONDS = 600.0
"""How long keys are used before they are fetched again; so a key that a provider takes back ends within twice that."""
STALE_SECONDS = 3600.0
"""How long keys are used while they cannot be fetched."""
PAUSE_SECONDS = 5.0
"""How long after a fetch that failed there is no other."""
MOST_FETCHES, IN_SECONDS = 5, 60.0
"""How often keys are fetched at most, whatever keys are asked for: strangers can name any."""
FETCH_SECONDS = 5.0
LARGEST_KEYS = 1 << 20
LARGEST_GROUPS = 1_000

Fetch = Callable[[str], bytes]


@dataclass(frozen=True, slots=True)
class Bearer:
    """What a provider's token says: the name and the groups, each behind the provider's, and the end (ms)."""

    name: str
    groups: tuple[str, ...]
    expires_at: int


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Keys come from where the settings say, and from nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing: the redirect is the error."""


def fetch(url: str) -> bytes:
    """What is at a URL of the settings. Raises OSError."""
    try:
        with urllib.request.build_opener(_NoRedirect).open(url, timeout=FETCH_SECONDS) as answer:
            found: bytes = answer.read(LARGEST_KEYS + 1)
    except HTTPException as error:
        raise OSError(f"no HTTP: {error!r}") from error
    if len(found) > LARGEST_KEYS:
        raise OSError(f"more than {LARGEST_KEYS} bytes")
    return found


class ProviderKeys:
    """The keys of one provider: fetched when they are needed, again when they are old or one is not among them."""

    def __init__(self, name: str, url: str, get: Fetch = fetch) -> None:
        self._name = name
        self._url = url
        self._get = get
        self._lock = threading.Lock()
        self._keys: KeySet | None = None
        self._fetched = 0.0
        self._not_before = 0.0
        self._recent: deque[float] = deque(maxlen=MOST_FETCHES)

    def current(self) -> KeySet:
        """The keys, not too old. Raises ServiceUnavailableError if there are none and none can be fetched."""
        with self._lock:
            if self._keys is None or self._age() > KEYS_SECONDS:
                self._renew()
            if self._keys is None or self._age() > STALE_SECONDS:
                raise ServiceUnavailableError(f"The keys of the provider {self._name} cannot be fetched: try again.")
            return self._keys

    def renewed(self, seen: KeySet) -> KeySet:
        """The keys after one was not found in those `seen`: fetched again, unless that was just done."""
        with self._lock:
            if self._keys is seen:
                self._renew()
            return self._keys or seen

    def _age(self) -> float:
        return time.monotonic() - self._fetched

    def _renew(self) -> None:
        now = time.monotonic()
        if now < self._not_before:
            return
        try:
            self._keys = KeySet.import_key_set(msgspec.json.decode(self._get(self._url)))
        except (OSError, ValueError, KeyError, TypeError, JoseError) as error:
            # What is used from here on is the keys that there are, for a bounded time: `current` says how long.
            log.warning("cannot fetch the keys of the provider %s from %s: %s", self._name, self._url, error)
            self._not_before = time.monotonic() + PAUSE_SECONDS  # the try itself may have taken long
        else:
            self._fetched = now
            self._recent.append(now)
            self._not_before = self._recent[0] + IN_SECONDS if len(self._recent) == MOST_FETCHES else now


class TrustedProvider:
    """Verifies the tokens of one provider. `clock` gives ms since 1970. Safe to use from threads."""

    def __init__(self, name: str, provider: OidcProvider, clock: Callable[[], int], get: Fetch = fetch) -> None:
        self._name = name
        self._provider = provider
        self._clock = clock
        self._keys = ProviderKeys(name, provider.jwks_url, get)
        # A header that nobody knows changes nothing, unless the token calls it critical: then it is refused.
        self._registry = JWSRegistry(algorithms=provider.algorithms, strict_check_header=False)

    def verify(self, text: bytes) -> Bearer:
        """What a token says. Raises UnauthenticatedError, ServiceUnavailableError."""
        try:
            claims = self._signed(text)
            self._rules().validate(claims)
        except (JoseError, ValueError) as error:
            raise UnauthenticatedError(f"This token is not valid: {reason(error)}.") from error
        ends = int((claims["exp"] + self._provider.leeway) * 1000)
        return Bearer(self._own(claims.get(self._provider.principal_claim)), self._groups(claims), ends)

    def _signed(self, text: bytes) -> dict[str, Any]:
        keys = self._keys.current()
        try:
            return self._decoded(text, keys)
        except InvalidKeyIdError:
            newer = self._keys.renewed(keys)
            if newer is keys:
                raise
            return self._decoded(text, newer)

    def _decoded(self, text: bytes, keys: KeySet) -> dict[str, Any]:
        return jwt.decode(text, keys, algorithms=self._provider.algorithms, registry=self._registry).claims

    def _rules(self) -> jwt.JWTClaimsRegistry:
        provider = self._provider
        return jwt.JWTClaimsRegistry(
            now=self._clock() // 1000,
            leeway=int(provider.leeway),
            iss={"essential": True, "value": provider.issuer},
            aud={"essential": True, "value": provider.audience},
            exp={"essential": True},
        )

    def _groups(self, claims: Mapping[str, Any]) -> tuple[str, ...]:
        found = claims.get(self._provider.groups_claim, [])
        groups = [found] if isinstance(found, str) else found
        if not isinstance(groups, list) or len(groups) > LARGEST_GROUPS:
            self._refuse_claim(self._provider.groups_claim)
        return tuple(self._own(group) for group in groups)

    def _own(self, name: object) -> str:
        """A name as it is known here: behind the provider's, so that no provider's are taken for another's."""
        if not isinstance(name, str):
            raise UnauthenticatedError(f"The token of {self._name} lacks a name, or a name or group of it is no text.")
        try:
            return f"{self._name}{OF_A_PROVIDER}{check_name(name)}"
        except InvalidInputError as error:
            raise UnauthenticatedError(f"The token of {self._name} has a name or a group of no use: {error}") from error

    def _refuse_claim(self, claim: str) -> NoReturn:
        raise UnauthenticatedError(f"The claim '{claim}' of the token is no list of at most {LARGEST_GROUPS} texts.")
