"""The web console in a server process: imported by its first request, so that a server's start does not take it."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tiltyard.api.app import Shared
    from tiltyard.console.app import Console

PATH = b"/console"


def is_console_path(raw_path: bytes) -> bool:
    """Whether a path is one of the console's."""
    return raw_path.startswith(PATH) and raw_path[len(PATH) : len(PATH) + 1] in (b"", b"/")


def console_url(url: str, host: str) -> str:
    """Return where a person opens the console of a server; one that listens on all addresses is here, too."""
    address = ip_address(host)
    if address.is_unspecified:
        scheme, _, rest = url.partition("://")
        url = f"{scheme}://{'127.0.0.1' if address.version == 4 else '[::1]'}:{rest.rpartition(':')[2]}"
    return f"{url}{PATH.decode()}/"


class ConsoleMount:
    """Serves the requests of the console; the first one makes it."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._console: asyncio.Future[Console] | None = None

    async def __call__(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
    ) -> None:
        """Serve a request."""
        if self._console is None:
            self._console = asyncio.get_running_loop().run_in_executor(None, self._make)
        try:
            console = await asyncio.shield(self._console)
        except Exception:
            self._console = None  # the next request tries again
            raise
        await console({**scope, "path": unquote(scope["raw_path"].decode())}, receive, send)

    def _make(self) -> Console:
        from tiltyard.console.app import Console

        return Console(self._shared)
