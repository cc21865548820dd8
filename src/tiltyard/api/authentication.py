"""Authenticate a request by its headers or, without them, by its body's `identity`; on a server without
authentication, refuse what a browser sends for foreign pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from ipaddress import ip_address
from urllib.parse import urlsplit

from lance_namespace.errors import InvalidInputError, PermissionDeniedError, UnauthenticatedError

from tiltyard.api.binding import Headers
from tiltyard.api.bodies.uploads import Receive, read_body
from tiltyard.context import Services
from tiltyard.identity import Authenticator, Credentials, from_body, from_headers
from tiltyard.model.principals import EVERYBODY, Principal

MAX_ANONYMOUS_BODY_BYTES = 1 << 20
"""Bytes of a body that are read to find credentials in it, where the headers have none."""
NO_CREDENTIALS = (
    "This server requires authentication: send an API key in the header x-api-key, or a token in Authorization: Bearer."
)

_ORIGIN, _HOST, _SITE = b"origin", b"host", b"sec-fetch-site"
_OWN_SITE = frozenset({b"same-origin", b"none"})
"""Values of Sec-Fetch-Site: the page is the server's own, or the user has typed the address."""
_SINGLE = frozenset({b"authorization", b"x-api-key", b"idempotency-key", b"x-lancedb-database", b"host", b"origin"})


class RequestAuthentication:
    """Finds the principal of a request by its key or token; on a server without authentication, everybody is one."""

    def __init__(self, services: Services, pool: Executor) -> None:
        """`pool` runs what an authentication reads: the catalog, an identity provider's keys."""
        self._pool = pool
        self._settings = services.settings
        self.is_open = not services.settings.auth
        self._by_any_name = services.settings.insecure
        self.authenticator = Authenticator(services.settings, services.store, services.clock, pool)

    def cached_principal(self, headers: Headers) -> Principal | None:
        """Return the principal, if that takes no I/O; None: call `authenticate`.

        Raises UnauthenticatedError, PermissionDeniedError (a foreign page in a browser, without authentication).
        """
        self.check_browser(headers)
        if self.is_open:
            return EVERYBODY
        credentials = from_headers(headers)
        return None if credentials is None else self.authenticator.cached_principal(credentials)

    async def authenticate_headers(self, headers: Headers) -> Principal:
        """Return the principal of a request that no browser can send and whose body has no credentials.

        Raises UnauthenticatedError, ServiceUnavailableError.
        """
        if self.is_open:
            return EVERYBODY
        credentials = from_headers(headers)
        if credentials is None:
            raise UnauthenticatedError(NO_CREDENTIALS)
        return self.authenticator.cached_principal(credentials) or await self._principal(credentials)

    def check_browser(self, headers: Headers) -> None:
        """Raise PermissionDeniedError for a request of a foreign page, on a server without authentication."""
        if self.is_open:
            check_page(headers, by_any_name=self._by_any_name)

    async def authenticate(
        self, headers: Headers, receive: Receive, *, takes_upload: bool = False
    ) -> tuple[Principal, bytes | None]:
        """Return the principal, and the body if it had to be read for that.

        The body of an upload is no JSON, so it has no credentials. Raises UnauthenticatedError, HttpError 413,
        ServiceUnavailableError (the credentials cannot be checked just now).
        """
        if self.is_open:
            return EVERYBODY, None
        credentials = from_headers(headers)
        if credentials is not None:
            return await self._principal(credentials), None
        if takes_upload:
            raise UnauthenticatedError(NO_CREDENTIALS)
        body = await read_body(receive, min(MAX_ANONYMOUS_BODY_BYTES, self._settings.max_json_bytes))
        credentials = from_body(body)
        if credentials is None:
            raise UnauthenticatedError(NO_CREDENTIALS)
        return await self._principal(credentials), body

    async def _principal(self, credentials: Credentials) -> Principal:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self.authenticator.authenticate, credentials)


def check_single(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Raise InvalidInputError for a repeated header of which a proxy and this server might read different ones."""
    names = set()
    for name, _ in headers:
        if name in _SINGLE and name in names:
            raise InvalidInputError(f"The header {name.decode()} came twice: send it once.")
        names.add(name)


def check_page(headers: Mapping[bytes, bytes], *, by_any_name: bool) -> None:
    """Raise PermissionDeniedError for a request that a browser sends for a foreign page.

    For servers without authentication: any page in a browser on the same machine could otherwise drop tables, since a
    browser sends simple requests anywhere. And a page can point its own host name to this machine's address (DNS
    rebinding), and then read the responses too; so a server on loopback accepts no public host name, unless
    `by_any_name`.
    """
    origin, host = headers.get(_ORIGIN), headers.get(_HOST, b"")
    if headers.get(_SITE, b"none") not in _OWN_SITE or (origin is not None and not _is_origin_of(origin, host)):
        raise PermissionDeniedError(
            "This request comes from a page of another origin: start the server with --auth to serve such pages."
        )
    if not by_any_name and not _is_local_name(host):
        raise PermissionDeniedError(
            "This server serves this machine only, and the request's Host is a network name: use localhost or "
            "127.0.0.1, or start it with --insecure, or better with --auth."
        )


def is_own_page(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a request comes from no foreign page, so that its address can be trusted."""
    try:
        check_page(headers, by_any_name=False)
    except PermissionDeniedError:
        return False
    return True


def _is_origin_of(origin: bytes, host: bytes) -> bool:
    """Whether a page's origin is the server that it calls."""
    return origin.partition(b"://")[2].lower() == host.lower() != b""


def _is_local_name(host: bytes) -> bool:
    """Whether a Host header has an address, or a name that public DNS does not have."""
    try:
        name = urlsplit(f"//{host.decode('ascii')}").hostname or ""
    except ValueError:
        return False
    if "." not in name or name.endswith(".localhost"):
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
