"""Bearer tokens by OAuth2's client credentials (RFC 6749, 4.4): renewed before they expire, and when rejected."""

from __future__ import annotations

import threading
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from urllib.parse import quote_plus, urlencode

import msgspec

from tiltyard.mounts.call_deadline import held_in_time
from tiltyard.mounts.catalog_errors import UNAUTHENTICATED, MalformedAnswerError, http_error
from tiltyard.mounts.http.client import (
    BearerToken,
    HttpConnections,
    HttpSettings,
    JsonClient,
    RequestAuthorization,
    is_header,
)

MAX_MARGIN_SECONDS = 60.0
"""Seconds before its end that a token is renewed; a fifth of its life, where that is less."""


class _TokenResponse(msgspec.Struct):
    access_token: str
    expires_in: float | None = None


class ClientCredentials:
    """The tokens of one client: one at a time, fetched by one thread, for which the others wait."""

    def __init__(
        self,
        name: str,
        connections: HttpConnections,
        settings: HttpSettings,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name` is what messages call the catalog."""
        self._name = name
        self._connections = connections
        self._settings = settings
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._token = ""
        self._renewed_at: float | None = None

    def headers(self, method: str, url: str, body: bytes | None) -> Mapping[str, str]:
        """Return the token's header. Raises UnauthenticatedError, ServiceUnavailableError, MalformedAnswerError."""
        with self._held():
            is_due = self._renewed_at is not None and self._monotonic() >= self._renewed_at
            if not self._token or is_due:
                self._token, self._renewed_at = self._fetch()
            return _bearer(self._token)

    def reject(self, headers: Mapping[str, str]) -> bool:
        """Forget the token; another thread may have done so, and fetched another one."""
        with self._held():
            if headers == _bearer(self._token):
                self._token = ""
        return True

    def _held(self) -> AbstractContextManager[None]:
        return held_in_time(self._lock, f"The token service of {self._name}", self._settings.timeout)

    def _fetch(self) -> tuple[str, float | None]:
        """Return a token, and when to renew it."""
        body, headers = self._request()
        asked_at = self._monotonic()
        status, data = self._connections.send("POST", self._settings.oauth2_uri, body, headers)
        if status in (400, 401):
            raise UNAUTHENTICATED.error(f"The token service of {self._name}")
        if status >= 300:
            raise http_error(f"The token service of {self._name}", status)
        try:
            response = msgspec.json.decode(data, type=_TokenResponse)
        except msgspec.MsgspecError:  # its text may have the token
            raise MalformedAnswerError(f"The token service of {self._name} answers without a token.") from None
        if not is_header("Authorization", response.access_token):
            raise MalformedAnswerError(f"The token service of {self._name} answers a token that no header can carry.")
        if response.expires_in is None:
            return response.access_token, None
        return response.access_token, asked_at + response.expires_in - min(MAX_MARGIN_SECONDS, response.expires_in / 5)

    def _request(self) -> tuple[bytes, dict[str, str]]:
        settings = self._settings
        form = {"grant_type": "client_credentials", **({"scope": settings.scope} if settings.scope else {})}
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        if settings.oauth2_style == "header":
            pair = f"{quote_plus(settings.client_id)}:{quote_plus(settings.client_secret)}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": settings.client_id, "client_secret": settings.client_secret}
        return urlencode(form).encode(), headers


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def json_client(name: str, settings: HttpSettings, authorization: RequestAuthorization | None = None) -> JsonClient:
    """Return a client with the credentials that the settings have, or with others."""
    connections = HttpConnections(name, settings)
    if authorization is None:
        is_client = bool(settings.client_id)
        authorization = ClientCredentials(name, connections, settings) if is_client else BearerToken(settings.token)
    return JsonClient(name, connections, settings, authorization)
