"""The entrance: who asks is known before a body is read, or by the body where no header says it."""

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
from tiltyard.model.spec import Operation, Shape

LARGEST_UNNAMED_BODY = 1 << 20
"""Bytes that are read of somebody who has shown nothing in headers, to find it in the body."""
NOTHING_SHOWN = (
    "This server asks who you are: send an API key in the header x-api-key, or a token in Authorization: Bearer."
)


class Entrance:
    """Lets in who shows a key or a token; everybody, where the server was started without authentication."""

    def __init__(self, services: Services, pool: Executor) -> None:
        self._pool = pool
        self._settings = services.settings
        self.open = not services.settings.auth
        self._by_any_name = services.settings.insecure
        self.authenticator = Authenticator(services.settings, services.store, services.clock, pool)

    def known(self, headers: Headers) -> Principal | None:
        """Who asks, if that is known at once; None says to `admit`.

        Raises UnauthenticatedError, PermissionDeniedError (a page in a browser, where nobody is asked who it is).
        """
        self.check_browser(headers)
        if self.open:
            return EVERYBODY
        credentials = from_headers(headers)
        return None if credentials is None else self.authenticator.remembered(credentials)

    def check_browser(self, headers: Headers) -> None:
        """Raise PermissionDeniedError for a page from elsewhere, where nobody is asked who it is."""
        if self.open:
            check_page(headers, by_any_name=self._by_any_name)

    async def admit(self, operation: Operation, headers: Headers, receive: Receive) -> tuple[Principal, bytes | None]:
        """Who asks, and the body if it had to be read for that.

        Raises UnauthenticatedError, ServiceUnavailableError (nobody can be known just now), HttpError 413.
        """
        if self.open:
            return EVERYBODY, None
        credentials = from_headers(headers)
        if credentials is not None:
            return await self._principal(credentials), None
        if operation.request_shape is Shape.ARROW:
            raise UnauthenticatedError(NOTHING_SHOWN)
        body = await read_body(receive, min(LARGEST_UNNAMED_BODY, self._settings.max_json_bytes))
        credentials = from_body(body)
        if credentials is None:
            raise UnauthenticatedError(NOTHING_SHOWN)
        return await self._principal(credentials), body

    async def _principal(self, credentials: Credentials) -> Principal:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self.authenticator.authenticate, credentials)
