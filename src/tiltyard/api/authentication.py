"""Authenticate a request by its headers or, without them, by its body's `identity`."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor

from lance_namespace.errors import UnauthenticatedError

from tiltyard.api.binding import Headers
from tiltyard.api.bodies.uploads import Receive, read_body
from tiltyard.api.browser_security import check_page
from tiltyard.context import Services
from tiltyard.identity import Authenticator, Credentials, from_body, from_headers
from tiltyard.model.principals import EVERYBODY, Principal

MAX_ANONYMOUS_BODY = 1 << 20
"""Bytes of a body that are read to find credentials in it, where the headers have none."""
NO_CREDENTIALS = (
    "This server requires authentication: send an API key in the header x-api-key, or a token in Authorization: Bearer."
)


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
        body = await read_body(receive, min(MAX_ANONYMOUS_BODY, self._settings.max_json_bytes))
        credentials = from_body(body)
        if credentials is None:
            raise UnauthenticatedError(NO_CREDENTIALS)
        return await self._principal(credentials), body

    async def _principal(self, credentials: Credentials) -> Principal:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self.authenticator.authenticate, credentials)
