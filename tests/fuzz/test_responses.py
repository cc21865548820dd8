"""Responses on the wire, to all that clients may do with a connection."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

from tests.services.sockets import connect, read_response

COUNT = b"POST /v1/table/t/count_rows HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
LIVE = b"%s /health/live HTTP/1.%d\r\nHost: localhost\r\n%s\r\n"


def test_short_answer_comes_in_one_piece(server: Any, furnished: Any) -> None:
    with connect(server.url) as connection:
        for _ in range(50):
            connection.sendall(COUNT)
            piece = connection.recv(1 << 16)
            assert piece.startswith(b"HTTP/1.1 200 OK\r\n")
            assert piece.endswith(b"\r\ncontent-length: 2\r\n\r\n40")


def test_requests_sent_at_once_are_answered_one_after_the_other(server: Any, furnished: Any) -> None:
    with connect(server.url) as connection:
        connection.sendall(COUNT * 3 + LIVE % (b"GET", 1, b"Connection: close\r\n"))
        data = b""
        while part := connection.recv(1 << 16):
            data += part
    assert data.count(b"HTTP/1.1 200 OK\r\n") == 4
    assert data.count(b"\r\n\r\n40") == 3
    assert data.count(b"connection: close\r\n") == 1


def test_head_is_answered_without_a_body_and_the_connection_goes_on(server: Any) -> None:
    with connect(server.url) as connection:
        connection.sendall(LIVE % (b"HEAD", 1, b""))
        head = connection.recv(1 << 16)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert head.endswith(b"\r\n\r\n")
        connection.sendall(LIVE % (b"GET", 1, b""))
        response = read_response(connection)
        assert response.status == 200
        assert f"content-length: {len(response.body)}\r\n".encode() in head


def test_client_that_closes_is_told_that_its_connection_ends(server: Any) -> None:
    for request in (LIVE % (b"GET", 0, b""), LIVE % (b"GET", 1, b"Connection: close\r\n")):
        with connect(server.url) as connection:
            connection.sendall(request)
            response = read_response(connection)
            assert (response.status, response.headers["connection"]) == (200, "close")
            assert connection.recv(1) == b""


def test_client_that_waits_to_send_its_body_is_told_to_go_on(server: Any, furnished: Any) -> None:
    head = COUNT.removesuffix(b"\r\n{}") + b"Expect: 100-continue\r\n\r\n"
    with closing(connect(server.url)) as connection:
        connection.sendall(head)
        assert connection.recv(1 << 16) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"{}")
        response = read_response(connection)
        assert (response.status, response.body) == (200, b"40")


def test_long_answer_comes_whole(server: Any) -> None:
    with connect(server.url) as connection:
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        response = read_response(connection)
    assert len(response.body) == int(response.headers["content-length"]) > 64 << 10
    assert json.loads(response.body)["openapi"]
