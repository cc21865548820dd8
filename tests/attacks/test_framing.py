"""HTTP/1.1 framed so that memory grows, or that two readers of it disagree: trailers, chunks, lengths, pipelines."""

from __future__ import annotations

import select
import socket
from itertools import repeat
from typing import TYPE_CHECKING

import pytest

from tests.attacks.watchdog import attacked_server, resident_mib, watched
from tests.services.secured import make_keys
from tests.services.sockets import RawResponse, connect, exchange, read_response

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from tests.services.server import ServerProcess

ALLOWED_MIB = 48
"""How much a server may take on under one of these attacks; the largest head is 128 KiB."""
SENT = 60 << 20
"""Bytes that an attack sends, where nobody stops it."""

CHUNKED = b"POST /v1/namespace/n/exists HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


def request(headers: str, body: bytes = b"", line: str = "POST /v1/namespace/n/exists HTTP/1.1") -> bytes:
    return f"{line}\r\nHost: a\r\n{headers}\r\n".encode("latin-1") + body


def in_blocks(block: bytes) -> Iterable[bytes]:
    return repeat(block, SENT // len(block))


def send_until_response(connection: socket.socket, parts: Iterable[bytes]) -> RawResponse:
    """Send parts for as long as the server takes them and says nothing."""
    try:
        for part in parts:
            connection.sendall(part)
            if select.select([connection], [], [], 0)[0]:
                break
    except OSError:
        pass  # it was closed: the answer is there already
    return read_response(connection)


@pytest.mark.parametrize(
    ("begin", "block"),
    [
        (b"2\r\n{}\r\n0\r\n", b"X-Trailer: " + b"a" * 5000 + b"\r\n"),
        (b"2\r\n{}\r\n0\r\n", b"A: b\r\n" * 1000),
        (b"2\r\n{}\r\n0\r\nX-Trailer: ", b"a" * 60_000),
        (b"2\r\n{}\r\n0\r\n", b"a" * 60_000),
        (b"2;extension=", b"a" * 60_000),
        (b"2\r\n{}\r\n0;extension=", b"a" * 60_000),
        (b"", b"1;" + b"a" * 60_000 + b"\r\n \r\n"),
    ],
    ids=["lines", "short lines", "one line", "one name", "extension", "last extension", "extension each"],
)
def test_what_frames_a_chunked_body_without_end_is_431(victim: ServerProcess, begin: bytes, block: bytes) -> None:
    bound = resident_mib(victim.process.pid) + ALLOWED_MIB
    with watched(victim, bound_mib=bound), connect(victim.url) as connection:
        connection.sendall(CHUNKED + begin)
        response = send_until_response(connection, in_blocks(block))
    assert response.status == 431, response
    response.check_error()


def test_head_of_many_short_headers_is_431(victim: ServerProcess) -> None:
    """A thousand of them are let through; 26,000 fit into the bytes of a head, and would take a mebibyte and more."""
    for number, status in ((900, 404), (1100, 431), (25_000, 431)):
        response = exchange(victim.url, request("a:b\r\n" * number))
        assert response.status == status, response
        response.check_error()


def test_body_in_chunks_of_one_byte_is_read(victim: ServerProcess) -> None:
    body = b'{"properties": {"k": "%s"}}' % (b"v" * 100_000)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    head = CHUNKED.replace(b"/n/exists", b"/chunks/create")
    response = exchange(victim.url, head + chunks + b"0\r\nX-Trailer: 1\r\n\r\n")
    assert response.status == 200, response
    assert response.json()["properties"]["k"] == "v" * 100_000


def test_trailer_is_never_taken_for_a_header(victim: ServerProcess) -> None:
    response = exchange(victim.url, CHUNKED + b"2\r\n{}\r\n0\r\nX-Request-Id: from-a-trailer\r\n\r\n")
    assert response.status == 404
    assert response.headers["x-request-id"] != "from-a-trailer"


def test_key_in_a_trailer_lets_nobody_in(tmp_path: Path) -> None:
    body = b"2\r\n{}\r\n0\r\n"
    key = make_keys(f"sqlite:///{tmp_path}/catalog.db", "administrator")["administrator"]
    with attacked_server(tmp_path, "--auth") as server:
        key_header = f"X-Api-Key: {key}\r\n".encode()
        with_key = CHUNKED.replace(b"\r\n\r\n", b"\r\n" + key_header + b"\r\n")
        assert exchange(server.url, with_key + body + b"\r\n").status == 404  # it is good
        assert exchange(server.url, CHUNKED + body + key_header + b"\r\n").status == 401
        for header in (b"X-Api-Key: none\r\n", b"Authorization: Bearer none\r\n", b"X-Forwarded-For: 10.0.0.1\r\n"):
            assert exchange(server.url, with_key + body + header + b"\r\n").status == 404


AMBIGUOUS = [
    (request("Content-Length: 2\r\nContent-Length: 2\r\n", b"{}"), 400),
    (request("Content-Length: 2, 2\r\n", b"{}"), 400),
    (request("Content-Length: +2\r\n", b"{}"), 400),
    (request("Content-Length : 2\r\n", b"{}"), 400),
    (request("Content-Length:\r\n 2\r\n", b"{}"), 400),
    (request("X: 1\r\n 2\r\nContent-Length: 2\r\n", b"{}"), 400),
    (request("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"), 400),
    (request("Transfer-Encoding: chunked\r\nContent-Length: 2\r\n", b"0\r\n\r\n"), 400),
    (request("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"), 400),
    (request("Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n"), 400),
    (request("Transfer-Encoding:\x0bchunked\r\n", b"0\r\n\r\n"), 400),
    (request("Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n"), 501),
    (request("Transfer-Encoding: gzip\r\n", b"0\r\n\r\n"), 501),
    (request("Transfer-Encoding: gzip, chunked\r\n", b"0\r\n\r\n"), 501),
    (request("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n"), 501),
    (request("Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", "POST / HTTP/1.0"), 400),
    (request("Transfer-Encoding: chunked\r\n", b"0x2\r\n{}\r\n0\r\n\r\n"), 400),
    (request("Transfer-Encoding: chunked\r\n", b"2\n{}\r\n0\r\n\r\n"), 400),
    (request("Transfer-Encoding: chunked\r\n", b"2\r\n{}0\r\n\r\n"), 400),
    (request("Transfer-Encoding: chunked\r\n", b"0\r\nX: 1\n\r\n"), 400),
    (request("Transfer-Encoding: chunked\r\n", b"0\r\nX: 1\r\n 2\r\n\r\n"), 400),
    (request("Transfer-Encoding: chunked\r\n", b"0\r\nX : 1\r\n\r\n"), 400),
    (b"POST / HTTP/1.1\nHost: a\nContent-Length: 2\n\n{}", 400),
    (b"POST / HTTP/1.1\r\nHost: a\r\nX: a\rContent-Length: 2\r\n\r\n{}", 400),
    (b"POST / HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n{}", 400),
    (b"GET http://a HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    (b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
]  # fmt: skip
"""Requests that readers frame in different ways, and what they are answered."""


def test_request_that_can_be_framed_in_two_ways_is_refused_and_nothing_behind_it_read(victim: ServerProcess) -> None:
    for payload, status in AMBIGUOUS:
        with connect(victim.url) as connection:
            connection.sendall(payload + SMUGGLED)
            responses = b"".join(iter(lambda connection=connection: received(connection), b""))
        assert responses.count(b"HTTP/1.1 ") == 1, (payload, responses)
        assert int(responses.split()[1]) == status, (payload, responses)
        assert b"connection: close" in responses, (payload, responses)


def received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 16)
    except ConnectionResetError:
        return b""


def read_responses(connection: socket.socket) -> Iterator[RawResponse]:
    """Read answers one after the other until the server closes."""
    reader = connection.makefile("rb")
    while line := reader.readline():
        headers = {}
        while (field := reader.readline().strip()) != b"":
            name, _, value = field.decode().partition(":")
            headers[name.lower()] = value.strip()
        yield RawResponse(int(line.split()[1]), headers, reader.read(int(headers["content-length"])))


def test_broken_request_behind_others_is_answered_after_them(victim: ServerProcess) -> None:
    created = request("Content-Length: 0\r\n", line="POST /v1/namespace/behind/create HTTP/1.1")
    dropped = request("Content-Length: 0\r\n", line="POST /v1/namespace/behind/drop HTTP/1.1")
    broken_body = request("Transfer-Encoding: chunked\r\n", b"zz\r\n")
    for broken in (b"\x00\r\n\r\n", broken_body):
        with connect(victim.url) as connection:
            connection.sendall(created + dropped + broken)
            assert [response.status for response in read_responses(connection)] == [200, 200, 400]


def test_requests_sent_without_waiting_for_answers_are_bounded(victim: ServerProcess) -> None:
    count = 8000
    payload = request("Content-Length: 0\r\n")
    bound = resident_mib(victim.process.pid) + ALLOWED_MIB
    with watched(victim, bound_mib=bound), connect(victim.url) as connection:
        responses = []
        try:
            connection.sendall(payload * count)
            responses.extend(read_responses(connection))
        except OSError:
            pass  # what was sent behind the last one that is answered resets the connection
    assert len(responses) < count
    assert {response.status for response in responses} <= {404}
    with connect(victim.url) as connection:
        connection.sendall(payload * 20 + request("Connection: close\r\nContent-Length: 0\r\n"))
        assert len(list(read_responses(connection))) == 21


@pytest.mark.parametrize("protocol", ["h2c", "websocket", "TLS/1.2"])
@pytest.mark.parametrize("chunked", [False, True])
def test_offer_of_another_protocol_loses_neither_the_body_nor_what_follows(
    victim: ServerProcess, protocol: str, chunked: bool
) -> None:
    body = b'{"properties": {"offered": "yes"}, "mode": "exist_ok"}'
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(body)}"
    payload = b"%x\r\n%s\r\n0\r\nX: y\r\n\r\n" % (len(body), body) if chunked else body
    offer = f"Connection: Upgrade\r\nUpgrade: {protocol}\r\n"
    create = request(f"{offer}{framing}\r\n", payload, "POST /v1/namespace/upgraded/create HTTP/1.1")
    with connect(victim.url) as connection:
        for cut in (len(create), create.index(b"{") + 5):
            connection.sendall(create[:cut])
            connection.sendall(create[cut:])
            response = next(read_responses(connection))
            assert response.status == 200, response
            assert response.json()["properties"]["offered"] == "yes"
        connection.sendall(request(offer, line="GET /health/live HTTP/1.1") * 3)
        connection.sendall(request("Connection: close\r\n", line="GET /health/live HTTP/1.1"))
        assert [response.status for response in read_responses(connection)] == [200] * 4


def test_body_that_was_not_called_for_is_not_waited_for(victim: ServerProcess) -> None:
    """A client that expects a word, and got an answer, may send its next request instead of the body."""
    line = "POST /v1/nowhere HTTP/1.1"
    with connect(victim.url) as connection:
        connection.sendall(request("Expect: 100-continue\r\nContent-Length: 400\r\n", line=line))
        response = read_response(connection)
        assert response.status == 406
        assert response.headers["connection"] == "close"
    body = b'{"properties": {"called": "for"}}'
    create = "POST /v1/namespace/called/create HTTP/1.1"
    with connect(victim.url) as connection:
        connection.sendall(request(f"Expect: 100-continue\r\nContent-Length: {len(body)}\r\n", line=create))
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        response = read_response(connection)
        assert response.json()["properties"] == {"called": "for"}
        assert "connection" not in response.headers
