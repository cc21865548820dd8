"""Sign in by an OpenID provider: authorization code with PKCE (RFC 6749, RFC 7636, OpenID Connect Core).

All addresses come from the settings. The code is exchanged for an ID token whose signature, issuer, audience, expiry
and nonce are verified, by the same keys as tokens of the API.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec
from lance_namespace.errors import ServiceUnavailableError, UnauthenticatedError

from tiltyard.console.sessions import SESSION_MS
from tiltyard.identity.credentials import SessionIdentity
from tiltyard.identity.providers import NoRedirect, TrustedProvider
from tiltyard.model.settings.storages import read_secret

if TYPE_CHECKING:
    from collections.abc import Callable

    from tiltyard.model.settings.oidc_providers import OidcProvider

EXCHANGE_SECONDS = 10.0
MAX_RESPONSE_BYTES = 1 << 20


class PendingSignIn(msgspec.Struct, frozen=True):
    """What the browser keeps while its person is at the provider; `next` is where to go on."""

    provider: str
    state: str
    nonce: str
    verifier: str
    next: str

    @classmethod
    def start(cls, provider: str, next_address: str) -> PendingSignIn:
        """Return a new one, with random values."""
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        return cls(provider, state, nonce, verifier, next_address)


class _TokenResponse(msgspec.Struct):
    id_token: str


class OpenIdSignIn:
    """Signs people in by one provider."""

    def __init__(self, name: str, provider: OidcProvider, clock: Callable[[], int]) -> None:
        self.name = name
        self._provider = provider
        self._clock = clock
        self._trusted = TrustedProvider(name, msgspec.structs.replace(provider, audience=provider.client_id), clock)

    def authorization_address(self, pending: PendingSignIn, redirect_uri: str) -> str:
        """Return where the browser goes to sign in."""
        digest = hashlib.sha256(pending.verifier.encode()).digest()
        parameters = {
            "response_type": "code",
            "client_id": self._provider.client_id,
            "redirect_uri": redirect_uri,
            "scope": "openid profile email",
            "state": pending.state,
            "nonce": pending.nonce,
            "code_challenge": base64.urlsafe_b64encode(digest).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        separator = "&" if "?" in self._provider.authorization_url else "?"
        return f"{self._provider.authorization_url}{separator}{urlencode(parameters)}"

    def finish(self, pending: PendingSignIn, code: str, redirect_uri: str) -> SessionIdentity:
        """Exchange a code for the identity of its person. Raises UnauthenticatedError, ServiceUnavailableError."""
        token = self._exchange(pending, code, redirect_uri)
        identity = self._trusted.verify(token.encode(), pending.nonce)
        return SessionIdentity(identity.name, identity.groups, None, self._clock() + SESSION_MS)

    def _exchange(self, pending: PendingSignIn, code: str, redirect_uri: str) -> str:
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self._provider.client_id,
            "code_verifier": pending.verifier,
        }
        if self._provider.client_secret:
            owner = f"The client_secret of the provider {self.name}"
            fields["client_secret"] = read_secret(owner, self._provider.client_secret)
        headers = {"accept": "application/json", "content-type": "application/x-www-form-urlencoded"}
        request = urllib.request.Request(  # noqa: S310  # the address of the settings, checked when they were read
            self._provider.token_url, urlencode(fields).encode(), headers
        )
        try:
            with urllib.request.build_opener(NoRedirect).open(request, timeout=EXCHANGE_SECONDS) as response:
                body = response.read(MAX_RESPONSE_BYTES)
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise UnauthenticatedError(f"The provider {self.name} refused this sign-in: try again.") from error
            raise self._unavailable() from error
        except (OSError, HTTPException) as error:
            raise self._unavailable() from error
        try:
            return msgspec.json.decode(body, type=_TokenResponse).id_token
        except msgspec.DecodeError as error:
            raise UnauthenticatedError(
                f"The provider {self.name} sent no ID token: allow its client `openid`."
            ) from error

    def _unavailable(self) -> ServiceUnavailableError:
        return ServiceUnavailableError(f"The provider {self.name} does not answer: try again.")
