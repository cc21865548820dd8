"""HTTP/2 written by hand on a socket: for calls of gRPC that no client library would make."""

from __future__ import annotations

import socket
from typing import Self

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GO_AWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
MAX_FRAME_BYTES = 16_384
INITIAL_WINDOW_SIZE = 4
"""A setting."""
END_STREAM, END_HEADERS, ACK = 1, 4, 1
SERVICE = "/arrow.flight.protocol.FlightService"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def field(name: bytes, value: bytes) -> bytes:
    """A field of metadata, of a new name that is not indexed; both have less than 127 bytes."""
    return b"".join((b"\x00", bytes([len(name)]), name, bytes([len(value)]), value))


def metadata(method: str, *further: tuple[bytes, bytes]) -> bytes:
    """The block of a call's metadata."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", f"{SERVICE}/{method}".encode()),
        (b":authority", b"a"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *further,
    )
    return b"".join(field(*each) for each in fields)


class RawCalls:
    """A connection whose calls are written by hand."""

    def __init__(self, port: int, timeout: float = 30) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self._next_stream = 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def greet(self, *, window: int = 65_535) -> Self:
        """Send the preface, and settings: how many bytes of a call's answer the server may send unasked."""
        settings = INITIAL_WINDOW_SIZE.to_bytes(2, "big") + window.to_bytes(4, "big")
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, settings) + frame(SETTINGS, ACK, 0))
        return self

    def begin(self, method: str, *further: tuple[bytes, bytes], block: bytes | None = None) -> int:
        """Begin a call and send no message; return its stream."""
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        block = metadata(method, *further) if block is None else block
        self.socket.sendall(frame(HEADERS, END_HEADERS, stream, block))
        return stream

    def send(self, stream: int, data: bytes, *, ends: bool = False) -> None:
        """Send bytes of a call's messages, in frames as large as the server takes them."""
        while len(data) > MAX_FRAME_BYTES:
            self.socket.sendall(frame(DATA, 0, stream, data[:MAX_FRAME_BYTES]))
            data = data[MAX_FRAME_BYTES:]
        self.socket.sendall(frame(DATA, END_STREAM if ends else 0, stream, data))

    def read_frame(self) -> tuple[int, int, int, bytes] | None:
        """Return the next frame: type, flags, stream and payload; None where the server has ended the connection."""
        try:
            head = self._read(9)
            return head[3], head[4], int.from_bytes(head[5:], "big"), self._read(int.from_bytes(head[:3], "big"))
        except (ConnectionError, EOFError):
            return None

    def wait_for_end(self, stream: int) -> bytes:
        """Wait until the server has ended a call; return the frames' payloads that it has sent for it."""
        payloads = b""
        while (got := self.read_frame()) is not None:
            kind, flags, of, payload = got
            if of == stream:
                payloads += payload
                if kind == RESET or (kind in (DATA, HEADERS) and flags & END_STREAM):
                    break
        return payloads

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            if not (part := self.socket.recv(size - len(data))):
                raise EOFError
            data += part
        return data


def message(size: int) -> bytes:
    """The head of a message of so many bytes, as gRPC frames one."""
    return b"\x00" + size.to_bytes(4, "big")
