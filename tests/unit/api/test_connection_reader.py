"""Bodies that a thread reads straight from a connection, without a server."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tiltyard.api.bodies.connection_reader import BodyReader, ClientGoneError
from tiltyard.api.bodies.uploads import MAX_MEMORY_BYTES, open_upload
from tiltyard.api.errors import HttpError

PATIENCE = 10.0


class Body:
    """A connection with a client at its other end, and the reader of a body of 100,000 bytes."""

    SIZE = 100_000

    def __init__(self) -> None:
        self.client, connection = socket.socketpair()
        connection.setblocking(False)
        self.unread: list[int] = []
        self.reader = BodyReader(connection, b"", self.SIZE, self.unread.append)

    def read(self, count: int, patience: float = PATIENCE) -> bytes:
        """Return that many bytes, fewer only at the end."""
        buffer, at = bytearray(count), 0
        while received := self.reader.read_into(memoryview(buffer)[at:], patience) if at < count else 0:
            at += received
        return bytes(buffer[:at])


@pytest.fixture
def body() -> Iterator[Body]:
    connected_body = Body()
    yield connected_body
    connected_body.reader.close()
    connected_body.client.close()


def test_read_into_takes_the_body_and_nothing_behind_it(body: Body) -> None:
    sent = bytes(range(250)) * (Body.SIZE // 250)
    sending = threading.Thread(target=body.client.sendall, args=(sent + b"the next request",))
    sending.start()
    assert body.read(7) + body.read(Body.SIZE) == sent
    sending.join(PATIENCE)
    body.reader.close()
    assert body.unread == [0]


def test_read_into_whose_client_leaves_says_so(body: Body) -> None:
    body.client.sendall(b"abc")
    body.client.close()
    assert body.read(3) == b"abc"
    with pytest.raises(OSError, match="gone"):
        body.read(1)
    assert isinstance(body.reader.error, ClientGoneError)


def test_read_into_whose_client_sends_nothing_is_408(body: Body) -> None:
    with pytest.raises(TimeoutError):
        body.read(1, patience=0.01)
    assert isinstance(body.reader.error, HttpError)
    assert body.reader.error.status == 408


def test_end_stops_who_waits_and_tells_what_is_left(body: Body) -> None:
    body.client.sendall(b"abc")
    assert body.read(3) == b"abc"
    started, failed = threading.Event(), []

    def wait() -> None:
        started.set()
        try:
            body.read(1)
        except OSError as error:
            failed.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    started.wait(PATIENCE)
    body.reader.close()
    waiting.join(PATIENCE)
    assert (failed, body.unread) == (["the body reader is closed"], [Body.SIZE - 3])
    body.reader.close()
    assert body.unread == [Body.SIZE - 3]


def test_open_upload_longer_than_the_limit_is_refused_before_it_is_read(body: Body) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": bytes(MAX_MEMORY_BYTES), "more_body": True}

    opening = open_upload(receive, MAX_MEMORY_BYTES + Body.SIZE - 1, hand_over=lambda received: body.reader)
    with pytest.raises(HttpError, match="more than"):
        asyncio.run(opening)
    assert body.unread == [Body.SIZE]
