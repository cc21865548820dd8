"""Send JSON requests to a catalog over HTTP from several threads: pooled connections, each request within its time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import msgspec
import urllib3

from tiltyard.mounts.call_deadline import CallDeadline
from tiltyard.mounts.catalog_errors import MALFORMED, MalformedAnswerError
from tiltyard.mounts.mount_settings import SECRET, check_network, tls_context
from tiltyard.runtime.outage_log import SystemUnavailableError

MAX_RESPONSE_BYTES = 64 << 20
"""Bytes of a response, decompressed."""

_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_NO_JSON = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""Errors of an answer that is not the JSON which is expected."""
_UNAUTHORIZED = frozenset((401, 419))
_READS = frozenset(("GET", "HEAD"))


class ResponseError(Exception):
    """A response that is an error: its status, and its content where that is a JSON object."""

    def __init__(self, status: int, content: Mapping[str, Any]) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.content = content


@dataclass(frozen=True, kw_only=True)
class HttpSettings:
    """How to reach a catalog, and with whose credentials: a bearer token, or those of an OAuth2 client.

    `headers` are sent with each request, `secret_headers` too, with references to secrets. `oauth2_uri` is where a
    client with `client_id` gets its tokens, `scope` what it asks for, and `oauth2_style` where it writes its secret:
    into the body or into a header. `ca_file` has the authorities whose certificates are accepted, `cert_file` and
    `key_file` are the mount's own. `root` is the location below which new tables are put where they get none.
    `timeout` is for one request, of which a call has several.
    """

    uri: str
    token: str = field(default="", repr=False, metadata=SECRET)
    client_id: str = ""
    client_secret: str = field(default="", repr=False, metadata=SECRET)
    oauth2_uri: str = ""
    oauth2_style: str = "body"
    scope: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    secret_headers: dict[str, str] = field(default_factory=dict, repr=False, metadata=SECRET)
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    root: str = ""
    timeout: float = 10.0
    connect_timeout: float = 3.0
    connections: int = 16

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot be used."""
        check_network(self.timeout, self.connect_timeout, self.connections, self.root)
        for name, uri in {"uri": self.uri, "oauth2_uri": self.oauth2_uri}.items():
            if uri and not uri.startswith(("http://", "https://")):
                raise ValueError(f"{name} is {uri!r}: http:// or https://")
        if not self.uri or "@" in self.uri.split("/")[2]:
            raise ValueError("uri has to be there, without a name and a password")
        if bool(self.client_id) != bool(self.client_secret):
            raise ValueError("client_id and client_secret come together")
        if self.client_id and self.token:
            raise ValueError("token and client_id exclude each other")
        for name, value in {**self.headers, **self.secret_headers, "Authorization": self.token}.items():
            if not is_header(name, value):
                raise ValueError(
                    f"the header {name!r} cannot be sent: leave out line breaks and other control characters"
                )
        if self.oauth2_style not in ("body", "header"):
            raise ValueError(f"oauth2_style is {self.oauth2_style!r}: body or header")


def is_header(name: str, value: str) -> bool:
    """Return whether HTTP can carry a header: a name of plain characters, a value of one line in Latin-1."""
    return bool(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value))


class RequestAuthorization(Protocol):
    """Authorizes requests, safely from several threads."""

    def headers(self, method: str, url: str, body: bytes | None) -> Mapping[str, str]:
        """Return the headers that authorize a request. Raises LanceNamespaceError."""

    def reject(self, headers: Mapping[str, str]) -> bool:
        """Forget what these headers have, which the catalog does not accept; whether others are to be had now."""


class BearerToken:
    """A token that stays the same; none where it is empty."""

    def __init__(self, token: str) -> None:
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def headers(self, method: str, url: str, body: bytes | None) -> Mapping[str, str]:
        return self._headers

    def reject(self, headers: Mapping[str, str]) -> bool:
        return False


class HttpConnections:
    """Pooled connections to a host or a few of them; a request ends in its time, with a response of bounded size."""

    def __init__(self, name: str, settings: HttpSettings, *, max_response_bytes: int | None = None) -> None:
        """`name` is what messages call the other side; a response has MAX_RESPONSE_BYTES unless told.

        Raises InvalidInputError for unusable certificates.
        """
        self._name = name
        self._max_response_bytes = MAX_RESPONSE_BYTES if max_response_bytes is None else max_response_bytes
        self._timeout = settings.timeout
        self._deadline = CallDeadline(name, settings.timeout, settings.connections)
        has_tls = any(uri.startswith("https://") for uri in (settings.uri, settings.oauth2_uri))
        self._pool = urllib3.PoolManager(
            maxsize=settings.connections,
            block=True,
            retries=urllib3.Retry(connect=1, read=0, redirect=0, other=0),
            timeout=urllib3.Timeout(total=settings.timeout, connect=settings.connect_timeout),
            ssl_context=tls_context(settings.ca_file, settings.cert_file, settings.key_file) if has_tls else None,
        )

    def send(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str], seconds: float | None = None
    ) -> tuple[int, bytes]:
        """Return status and content of a response, within `seconds` if the caller has less time than a request.

        Raises ServiceUnavailableError.
        """
        limit = self._timeout if seconds is None else min(seconds, self._timeout)
        try:
            return self._deadline.run_within(limit, partial(self._exchange, method, url, body, headers))
        except urllib3.exceptions.HTTPError as error:
            if isinstance(getattr(error, "reason", error), urllib3.exceptions.SSLError):
                raise SystemUnavailableError(
                    f"{self._name} has no certificate that the mount accepts.", self._name
                ) from error
            rest = "try again" if method in _READS else "what was to change may have changed"
            raise SystemUnavailableError(f"{self._name} does not answer: {rest}.", self._name) from error

    def close(self) -> None:
        """Close all connections."""
        self._deadline.close()
        self._pool.clear()

    def _exchange(self, method: str, url: str, body: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        response = self._pool.request(method, url, body=body, headers=dict(headers), preload_content=False)
        try:
            content = response.read(self._max_response_bytes + 1)
            if len(content) > self._max_response_bytes:
                response.close()
                raise MalformedAnswerError(f"{self._name} answers more than {self._max_response_bytes >> 20} MiB.")
            return response.status, content
        finally:
            response.release_conn()


class JsonClient:
    """Sends requests with JSON and returns their responses, objects of JSON."""

    def __init__(
        self, name: str, connections: HttpConnections, settings: HttpSettings, authorization: RequestAuthorization
    ) -> None:
        self._name = name
        self._connections = connections
        self._headers = {**settings.headers, **settings.secret_headers}
        self._authorization = authorization

    def request(
        self,
        method: str,
        url: str,
        *,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        expected: Any = dict[str, Any],
        seconds: float | None = None,
    ) -> Any:
        """Send a request, and return its response; once more where the credentials were rejected and others exist.

        `expected` is the type of the response: a TypedDict, of which other fields than its own are left out. `seconds`
        is how long it may take, where that is less than the settings say. Raises HttpError, ServiceUnavailableError,
        MalformedAnswerError for a response of another type, and what asking for credentials raises.
        """
        content = None if body is None else msgspec.json.encode(body)
        content_type = {} if content is None else {"Content-Type": "application/json"}
        own = {**self._headers, **content_type, **(headers or {})}
        authorized = self._authorization.headers(method, url, content)
        status, data = self._connections.send(method, url, content, {**own, **authorized}, seconds)
        if status in _UNAUTHORIZED and self._authorization.reject(authorized):
            authorized = self._authorization.headers(method, url, content)
            status, data = self._connections.send(method, url, content, {**own, **authorized}, seconds)
        return self._decoded(status, data, expected)

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    def _decoded(self, status: int, data: bytes, expected: Any) -> Any:
        if status >= 300:
            with suppress(*_NO_JSON):
                raise ResponseError(status, msgspec.json.decode(data, type=dict[str, Any]))
            raise ResponseError(status, {})
        try:
            return msgspec.json.decode(data if data.strip() else b"{}", type=expected)
        except _NO_JSON as error:
            raise MALFORMED.error(self._name) from error
