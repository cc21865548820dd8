"""Which servers keep what of a table in memory and on disk: weighted rendezvous hashing over those that are alive.

Each server computes the same from the records of processes, and none has to agree with others: where they differ for a
moment, a table is kept once more. A server that comes or goes moves only the tables that are its own.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiltyard.access.needs import on_table
from tiltyard.model.operations import operation
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import models

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tiltyard.context import Context
    from tiltyard.store import ProcessRecord

KEEPERS = 2
"""Servers that keep what of a table is read often: a second one, so that the end of one costs its tables little."""
REFRESH_SECONDS = 5.0
"""How old the list of servers may be."""
SPREAD_SECONDS = 600.0
"""For how long after a search of a table was spread its searches are forwarded to none of its keepers."""
_HASH_BITS = 52


@dataclass(frozen=True, slots=True)
class Server:
    """A server of the catalog: where the others reach it, and how much it keeps, beside the others."""

    url: str
    weight: int


class TableServers:
    """The servers of the catalog that have a URL (setting `server_url`). Safe to use from several threads."""

    def __init__(
        self, list_processes: Callable[[], list[ProcessRecord]], clock: Callable[[], int], own_url: str
    ) -> None:
        self.own_url = own_url
        self._list_processes = list_processes
        self._clock = clock
        self._servers: Sequence[Server] = ()
        self._refresh_at = 0.0
        self._refreshing = threading.Lock()
        self._spread_until: dict[tuple[str, ...], float] = {}

    def keepers(self, path: Sequence[str]) -> list[Server]:
        """Return the servers that keep a table, the first one first; none where no server has a URL.

        Raises as `ranked` does.
        """
        return self.ranked(path)[:KEEPERS]

    def ranked(self, path: Sequence[str]) -> list[Server]:
        """Return all servers by how far up something has each, by its path; none where no server has a URL.

        Reads the catalog where the list is older than REFRESH_SECONDS, and raises what that raises.
        """
        if time.monotonic() >= self._refresh_at and self._refreshing.acquire(blocking=not self._refresh_at):
            try:
                self._servers = _alive(self._list_processes(), self._clock())
                self._refresh_at = time.monotonic() + REFRESH_SECONDS
            finally:
                self._refreshing.release()
        return rank(self._servers, path)

    def note_spread(self, path: Sequence[str]) -> None:
        """Note that a search of a table is spread over servers, of which this is one."""
        now = time.monotonic()
        if self._spread_until.get(tuple(path), 0.0) < now + SPREAD_SECONDS / 2:
            others = {name: until for name, until in self._spread_until.items() if until > now}
            self._spread_until = others | {tuple(path): now + SPREAD_SECONDS}

    def is_spread(self, path: Sequence[str]) -> bool:
        """Return whether searches of a table were spread lately: then each server that gets one spreads it itself."""
        return self._spread_until.get(tuple(path), 0.0) > time.monotonic()


def rank(servers: Iterable[Server], path: Sequence[str]) -> list[Server]:
    """Return servers by how far up a table has each: of many tables, each server has a share by its weight first."""
    key = "\0".join(path)
    return sorted(servers, key=lambda server: (-_score(server, key), server.url))


def _score(server: Server, key: str) -> float:
    """Return a number for a server and a table; those of a server of twice the weight are larger in two of three."""
    digest = hashlib.blake2b(f"{server.url}\0{key}".encode(errors="surrogatepass"), digest_size=8).digest()
    uniform = ((int.from_bytes(digest) >> (64 - _HASH_BITS)) + 0.5) / (1 << _HASH_BITS)
    return -server.weight / math.log(uniform)


def _alive(processes: Iterable[ProcessRecord], now: int) -> list[Server]:
    """Return the servers with a URL that have written of themselves lately; processes that share a socket are one."""
    weights: dict[str, int] = {}
    for process in processes:
        if process.url and process.is_alive(now):
            weights[process.url] = max(weights.get(process.url, 0), process.weight)
    return [Server(url, weight) for url, weight in weights.items()]


@operation(needs=on_table(Privilege.USE), changes=False)
def describe_table_servers(
    ctx: Context, request: models.DescribeTableServersRequest
) -> models.DescribeTableServersResponse:
    """Return the URLs of the servers that keep a table, the one to ask first; none where tables are not shared out."""
    servers = ctx.services.table_servers
    keepers = () if servers is None else servers.keepers(request.id or ())
    return models.DescribeTableServersResponse(servers=[server.url for server in keepers])
