"""Forward queries to a server that keeps their table in memory, once, and answer them here where it does not.

What the other server sends is passed on as it comes. It authenticates and authorizes the request itself, as the request
came; that it came from a server of the catalog is signed, so it counts the client's address as the client's, and leaves
the rate limit and the audit record to the server that the client has asked.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
from typing import TYPE_CHECKING

import urllib3
from lance_namespace.errors import ServiceUnavailableError

from tiltyard.api.deadlines import Deadline, earliest
from tiltyard.mounts.registry.circuit_breaker import CircuitBreaker

if TYPE_CHECKING:
    from typing import Any

    from tiltyard.api.exchange import Exchange, Header
    from tiltyard.context import Services, TableServers

log = logging.getLogger("tiltyard.api")

FORWARDED = b"x-tiltyard-forwarded"
"""The header of a request that a server of the catalog has forwarded; a request that has it is never forwarded."""
SEGMENTS = b"x-tiltyard-segments"
"""The header of a sub-query, which is never spread again: its milliseconds, and the segments that it is about."""
SERVER = b"x-tiltyard-server"
"""The header of a response that another server gave: its URL, for clients and balancers that can ask it themselves."""
CONNECT_SECONDS = 1.0
FIRST_BYTES_SECONDS = 10.0
"""How long a server may take to begin its answer, before the query is answered here."""
SIGNED_MS = 60_000
"""How long the signature of a forwarded request holds."""
CHUNK_BYTES = 512 << 10
FORWARDED_ROUTE = "forwarded"
"""What queries that another server has answered are counted as, among the routes (`tables/query/routes`)."""
KEPT_CONNECTIONS = 32
"""Kept open to each server."""
REPEATED_SHARE = 0.02
"""Of the shares that are answered, how many may be asked of others, too, before their server has failed: where all are
slow, since there is too much to do, to ask twice would double it, and have two servers keep what one should."""
MAX_REPEATS = 3
"""Shares that may be asked of others at once, after a time without any."""
_OWN_HEADERS = frozenset(
    b"accept-encoding connection content-length expect forwarded host keep-alive proxy-authorization proxy-connection "
    b"te trailer transfer-encoding upgrade via x-forwarded-for x-forwarded-host x-forwarded-proto x-request-id".split()
) | {FORWARDED, SEGMENTS}
"""Headers that are about a connection, or that the forwarding server writes itself."""
_PASSED_ON = frozenset({"accept-ranges", "content-disposition", "content-range", "x-lancedb-version"})
"""Headers of a response that no other part of the server writes."""
_CREDENTIALS = (b"authorization", b"x-api-key")


class Forwarding:
    """Forwards queries of one process. Safe to use from several threads."""

    def __init__(self, services: Services, servers: TableServers) -> None:
        self._servers = servers
        self._clock = services.clock
        self._key = services.store.shared_secret("forwarding")
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=FIRST_BYTES_SECONDS)
        self.http = urllib3.PoolManager(maxsize=KEPT_CONNECTIONS, retries=False, timeout=timeout)
        self._breakers: dict[str, CircuitBreaker] = {}
        self.repeats = Repeats()
        self._counts = services.route_counts

    def accept(self, exchange: Exchange) -> None:
        """Note where a request came from at first, if it has the signature of a server of the catalog.

        Of a sub-query also its segments, and its time.
        """
        signed, _, signature = exchange.headers[FORWARDED].rpartition(b" ")
        at, _, address = signed.partition(b" ")
        share = exchange.headers.get(SEGMENTS, b"")
        expected = self._sign(signed, exchange, exchange.method, exchange.target, share).encode()
        if not hmac.compare_digest(signature, expected) or abs(self._clock() - int(at)) >= SIGNED_MS:
            return
        exchange.log.forwarded_for = address.decode()
        if share:
            milliseconds, _, segments = share.decode().partition(" ")
            exchange.segments = tuple(segments.split(","))
            exchange.deadline = earliest(Deadline.start(int(milliseconds) / 1000, "query"), exchange.deadline)
            exchange.log.is_share = True

    def breaker(self, url: str) -> CircuitBreaker:
        """Return what counts the failures of a server."""
        return self._breakers.setdefault(url, CircuitBreaker())

    def _sign(self, signed: bytes, exchange: Exchange, method: str, target: bytes, share: bytes) -> str:
        """Return the signature of a time and an address, for this request and its credentials alone."""
        given = (exchange.headers.get(name, b"") for name in _CREDENTIALS)
        parts = (signed, exchange.request_id.encode(), method.encode(), target, *given, *([share] if share else ()))
        return hmac.new(self._key, b"\n".join(parts), hashlib.sha256).hexdigest()

    def forward(self, exchange: Exchange, request: Any, deadline: Deadline | None) -> ForwardedAnswer | None:
        """Return the answer of a server that keeps the request's table; None if this one is to answer.

        It is if it keeps the table, if it spreads searches of the table itself, and if no server that keeps it has
        given a good answer in time. In the query's thread.
        """
        body = exchange.body
        if FORWARDED in exchange.headers or exchange.is_head or not isinstance(body, bytes):
            return None
        if self._servers.is_spread(request.id or ()) and _is_by_vector(request):
            return None
        keepers = self._servers.keepers(request.id or ())
        if any(server.url == self._servers.own_url for server in keepers):
            return None
        for server in keepers:
            breaker = self.breaker(server.url)
            if breaker.try_enter():
                continue
            try:
                answer = self._ask(server.url, exchange, body, deadline)
            except urllib3.exceptions.ReadTimeoutError:
                breaker.fail()
                log.warning("the server %s is slow, so a query of its tables is answered here", server.url)
                return None  # the next one would begin anew
            except urllib3.exceptions.HTTPError as error:
                breaker.fail()
                log.warning(
                    "the server %s does not answer, so queries of its tables are answered here: %s", server.url, error
                )
                continue
            breaker.succeed()
            if answer is not None:
                self._counts.add(FORWARDED_ROUTE)
            return answer
        return None

    def _ask(self, url: str, exchange: Exchange, body: bytes, deadline: Deadline | None) -> ForwardedAnswer | None:
        """Return a server's answer; None for an error, which this server finds, too. Raises urllib3's HTTPError."""
        response = self.http.request(
            exchange.method,
            f"{url}{exchange.target.decode('latin-1')}",
            body=body,
            headers=self.headers(exchange, exchange.method, exchange.target),
            redirect=False,
            preload_content=False,
            decode_content=False,
        )
        if response.status >= 300:
            response.drain_conn()
            return None
        return ForwardedAnswer(response, url, None if deadline is None else deadline.remaining)

    def headers(self, exchange: Exchange, method: str, target: bytes, share: bytes = b"") -> dict[str, str]:
        """Return the headers of a request as another server gets it: its own, and who forwards it for whom.

        `share` is what the header SEGMENTS of a sub-query has.
        """
        signed = f"{self._clock()} {exchange.log.address}"
        headers = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in exchange.headers.items()
            if name not in _OWN_HEADERS
        }
        headers["x-request-id"] = exchange.request_id
        headers[FORWARDED.decode()] = f"{signed} {self._sign(signed.encode(), exchange, method, target, share)}"
        return headers


def _is_by_vector(request: Any) -> bool:
    """Return whether a request is a search by one vector, or about one."""
    query = getattr(request, "query", None) or request
    vector = getattr(query, "vector", None)
    return bool(vector and vector.single_vector)


class Repeats:
    """How many shares may be asked of others, too, before their server has failed. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._allowed = float(MAX_REPEATS)

    def note_answer(self) -> None:
        """Note that a share was answered."""
        with self._lock:
            self._allowed = min(self._allowed + REPEATED_SHARE, MAX_REPEATS)

    def take(self) -> bool:
        """Return whether one more may be, and count it."""
        with self._lock:
            if self._allowed < 1:
                return False
            self._allowed -= 1
            return True


class ForwardedAnswer:
    """The answer of another server in chunks: `first` are its first bytes, `complete` says whether they are all."""

    def __init__(self, response: urllib3.BaseHTTPResponse, url: str, seconds: float | None) -> None:
        """`seconds` is how long the rest of the answer may take. Raises urllib3's HTTPError."""
        self._response = response
        self.status = response.status
        self.media = response.headers.get("content-type", "")
        self.headers: tuple[Header, ...] = (
            *(
                (name.lower().encode(), value.encode("latin-1"))
                for name, value in response.headers.items()
                if name.lower() in _PASSED_ON
            ),
            (SERVER, url.encode()),
        )
        self.first = response.read(CHUNK_BYTES)
        if (socket := getattr(response.connection, "sock", None)) is not None:
            socket.settimeout(seconds)  # between batches a query may take as long as it has
        self._ahead = response.read(CHUNK_BYTES)
        self.complete = not self._ahead

    def next_chunk(self) -> bytes | None:
        """Return the next chunk, None after the last. Raises ServiceUnavailableError: the response is cut."""
        chunk = self._ahead
        if not chunk:
            return None
        try:
            self._ahead = self._response.read(CHUNK_BYTES)
        except urllib3.exceptions.HTTPError as error:
            raise ServiceUnavailableError(
                "The server that answers this query has stopped within its answer."
            ) from error
        return chunk

    def close(self) -> None:
        """Give the connection back; or end it, where the answer was not read to its end."""
        if self._ahead:
            self._response.close()
        self._response.release_conn()
