"""HTTP of callers: how requests are framed, and what is read in their lines, headers and URLs."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

import h11
import httptools
from lance_namespace.errors import InvalidInputError, UnauthenticatedError
from uvicorn import Config
from uvicorn.server import ServerState

from tests.fuzz.parsers.target import split_input, target
from tiltyard.api.binding import context_entries, parse_query, read_freshness
from tiltyard.api.bodies.byte_ranges import parse_range
from tiltyard.api.errors import HttpError
from tiltyard.api.routing import Route, Router
from tiltyard.identity.credentials import from_body, from_headers
from tiltyard.identity.tokens import read_unverified
from tiltyard.model.ids import decode_segment, parse_id
from tiltyard.model.spec import operations
from tiltyard.server.http_protocol import MAX_PIPELINED, HttpProtocol

Request = tuple[bytes, bytes, bytes]
"""Method, target and body."""


IDLE_TURNS = 6
"""Turns of the loop without a request after which there is none to come: an application needs three for each."""


class Transport:
    """A connection in memory: it remembers what is sent, and whether it was closed."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed, "sent on a closed connection"
        self.sent += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else None

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Connection:
    """A connection of the server's protocol, with an application that remembers each request and answers 200."""

    loop = asyncio.new_event_loop()
    config = Config(None, interface="asgi3", log_config=None, lifespan="off", date_header=False, proxy_headers=False)  # type: ignore[arg-type]  # each connection has its own application

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.transport = Transport()
        self.protocol = HttpProtocol(self.config, ServerState(), {}, self.loop)
        self.protocol.app = self.answer
        self.protocol.connection_made(self.transport)  # type: ignore[arg-type]  # what a protocol calls, it has

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message["body"]
            more = message.get("more_body", False)
        url = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        self.requests.append((scope["method"].encode(), url, body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    def receive(self, *parts: bytes) -> None:
        """Get bytes in some parts, and the end of the connection."""
        for part in parts:
            if part and not self.transport.closed:
                self.protocol.data_received(part)
                self.run()
        self.protocol.connection_lost(None)
        self.run()

    def run(self) -> None:
        """Run all tasks until nothing is left to do."""
        self.loop.run_until_complete(self._settle())

    async def _settle(self) -> None:
        idle = 0
        while idle < IDLE_TURNS:
            before = len(self.requests)
            await asyncio.sleep(0)
            idle = idle + 1 if len(self.requests) == before else 0


HTTP_WORDS = (
    "GET POST HEAD CONNECT HTTP/1.1 HTTP/1.0 Host: Content-Length: Transfer-Encoding: chunked gzip Connection: close"
    " keep-alive Upgrade: h2c Expect: 100-continue \r\n\r\n"
    " \r\n 0\r\n\r\n 5\r\nhello\r\n ; /v1/table/t/describe ?a=b %2F"
)


@target(words=HTTP_WORDS, also="server.http_protocol")
def http_framing(data: bytes) -> None:
    """A connection carries the same requests in whatever parts it comes, and those that another parser reads."""
    cut = data[0] * len(data) // 255 if data else 0
    whole, parted = Connection(), Connection()
    whole.receive(data)
    parted.receive(data[:cut], data[cut:])
    common = min(len(whole.requests), len(parted.requests))
    assert whole.requests[:common] == parted.requests[:common]
    assert len(whole.requests) == len(parted.requests) or common >= MAX_PIPELINED, (whole.requests, parted.requests)
    for sent in (whole.transport.sent, parted.transport.sent):
        assert not sent or sent.startswith(b"HTTP/1.1 "), bytes(sent)
        assert b" 500 " not in sent.split(b"\r\n", 1)[0]
    for ours, others in zip(whole.requests, requests_of_h11(data), strict=False):
        assert ours == others, (ours, others)


def requests_of_h11(data: bytes) -> list[Request]:
    """Return the complete requests before the first that h11 refuses, or that is the last of its connection."""
    connection, requests = h11.Connection(h11.SERVER), []
    try:
        connection.receive_data(data)
        while True:
            head, body = connection.next_event(), b""
            if not isinstance(head, h11.Request):
                return requests
            while isinstance(event := connection.next_event(), h11.Data):
                body += bytes(event.data)
            if not isinstance(event, h11.EndOfMessage):
                return requests
            requests.append((bytes(head.method), _without_fragment(bytes(head.target)), body))
            connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            connection.start_next_cycle()
    except (h11.RemoteProtocolError, h11.LocalProtocolError, httptools.HttpParserError):
        return requests


def _without_fragment(url: bytes) -> bytes:
    parts = httptools.parse_url(url)
    return (parts.path or b"") + (b"?" + parts.query if parts.query else b"")


@target(InvalidInputError, words="= & + % %24 %00 %FF %C3%A9 $ limit delimiter page_token")
def http_query(data: bytes) -> None:
    """A query string and an id in a path have the names and values that urllib reads."""
    query, segment = split_input(data, 2)
    for name, value in parse_query(query):
        assert (name, value) in parse_qsl(query.decode("ascii"), keep_blank_values=True)
    decoded = decode_segment(segment)
    assert decoded.encode() == unquote_to_bytes(segment.replace(b"+", b" "))
    assert all(parse_id(decoded))


@target(
    InvalidInputError,
    UnauthenticatedError,
    words='Bearer ey . {"alg": 2026-01-01T00:00:00Z +01:00 identity auth_token api_key',
)
def http_headers(data: bytes) -> None:
    """Headers are credentials, context and freshness, or refused."""
    authorization, key, version, moment, body = split_input(data, 5)
    headers = {b"authorization": authorization} if authorization else {b"x-api-key": key}
    headers |= {b"x-lance-ctx-a": key, b"x-lancedb-min-version": version}
    if moment:
        headers[b"x-lancedb-min-timestamp"] = moment
    assert context_entries(headers) == {"a": key.decode("latin-1")}
    from_body(body)
    credentials = from_headers(headers)
    if credentials is not None:
        assert repr(credentials) == f"Credentials({credentials.kind})"
    freshness = read_freshness(headers)
    assert freshness is None or freshness.version >= 0
    read_unverified(authorization)


@target(HttpError, words="bytes= - , 0 9 99999999999999999999")
def http_range(data: bytes) -> None:
    """A range is within the value, and is the one that is asked for."""
    size, requested = len(data) * 3, data
    span = parse_range(requested, size)
    if span is not None:
        first, last = span
        assert 0 <= first <= last < size
        asked_first, _, asked_last = requested.split(b"=", 1)[1].strip(b" \t").partition(b"-")
        assert not asked_first or int(asked_first) == first
        assert not (asked_first and asked_last) or int(asked_last) >= last


ROUTER = Router(Route(facts, None) for facts in operations().values())


@target(HttpError, words="/ v1 table namespace list describe query version tags create %2F . n$t {id}")
def http_path(data: bytes) -> None:
    """A path leads to one operation, or nowhere; literals win over names, and no segment is lost."""
    route, segments = ROUTER.match("POST", data)
    parts = [part for part in data.split(b"/") if part]
    assert all(segment in parts for segment in segments.values())
    path = route.operation.path.strip("/").split("/")
    if not route.operation.earlier_paths:
        assert len(path) == len(parts), (path, parts)
