"""Cut what a client sends into the frames of HTTP/2, as far as its connection's limits need them.

A connection begins with a preface; each frame has a head of nine bytes (RFC 9113, section 4.1). A call begins with a
frame HEADERS, whose block of metadata may go on in frames CONTINUATION. The block is gRPC's to decode: it is ended here
by one more field, which names the connection that it came from. A field of a new name that is never indexed needs no
knowledge of what came before it, and changes nothing for what comes after it (RFC 7541, section 6.2.3).
"""

from __future__ import annotations

from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
MAX_BLOCK_BYTES = 64 << 10
"""Bytes of the frames that have the metadata of one call."""

_END_HEADERS = 0x4
_LITERAL_NEVER_INDEXED = b"\x10"
_MAX_SHORT = 127
"""Lengths below it take one byte."""


class FrameType(IntEnum):
    """Types of frames that begin a call, or are a part of what does."""

    HEADERS = 1
    PUSH_PROMISE = 5
    CONTINUATION = 9


class ProtocolError(Exception):
    """The client does not speak HTTP/2, or its metadata are too large."""


class FrameCutter:
    """Cuts the bytes of one connection into what can be passed on. Passed on in order, they are what has come."""

    def __init__(self, name: bytes, value: bytes) -> None:
        """End each call's metadata with a field: its name and value are ASCII, of less than 127 bytes each."""
        assert max(len(name), len(value)) < _MAX_SHORT
        self._field = b"".join((_LITERAL_NEVER_INDEXED, bytes([len(name)]), name, bytes([len(value)]), value))
        self._waiting = bytearray()
        self._has_preface = False
        self._unread_payload = 0
        """Bytes of the current frame that are still to come, and are passed on as they do."""
        self._block: list[bytes] = []
        self._block_bytes = 0
        self._block_stream = b""
        self._last_stream = 0

    @property
    def waiting_bytes(self) -> int:
        """The bytes that were not cut yet."""
        return len(self._waiting) + self._block_bytes

    @property
    def is_within_metadata(self) -> bool:
        """Whether the preface, or the metadata of a call, have come in part."""
        return bool(self._block) or (bool(self._waiting) and not self._unread_payload) or not self._has_preface

    def add(self, data: bytes) -> None:
        """Add bytes that have come."""
        self._waiting += data

    def take(self) -> tuple[bytes, bool]:
        """Return the next bytes to pass on, empty where there are none yet, and whether a call begins at their end.

        Raises ProtocolError.
        """
        passed: list[bytes] = []
        while True:
            if not self._has_preface:
                part = self._take_preface()
            elif self._unread_payload:
                part = self._take_payload(self._unread_payload)
            else:
                part, begins_call = self._take_frame()
                if begins_call:
                    return b"".join((*passed, part)), True
            if not part:
                return b"".join(passed), False
            passed.append(part)

    def _take_bytes(self, size: int) -> bytes:
        taken = bytes(self._waiting[:size])
        del self._waiting[:size]
        return taken

    def _take_preface(self) -> bytes:
        start = bytes(self._waiting[: len(PREFACE)])
        if not PREFACE.startswith(start):
            raise ProtocolError("The connection does not begin as one of HTTP/2.")
        if len(start) < len(PREFACE):
            return b""
        self._has_preface = True
        return self._take_bytes(len(PREFACE))

    def _take_payload(self, size: int) -> bytes:
        part = self._take_bytes(size)
        self._unread_payload = size - len(part)
        return part

    def _take_frame(self) -> tuple[bytes, bool]:
        """Return the head of the next frame, or the whole block of a call's metadata, and whether it is that."""
        while len(self._waiting) >= HEAD_BYTES:
            length, kind = int.from_bytes(self._waiting[:3], "big"), self._waiting[3]
            stream = bytes(self._waiting[5:HEAD_BYTES])
            if self._block and (kind != FrameType.CONTINUATION or stream != self._block_stream):
                raise ProtocolError("Metadata are interrupted by another frame.")
            if not self._block and kind != FrameType.HEADERS:
                if kind in (FrameType.CONTINUATION, FrameType.PUSH_PROMISE):
                    raise ProtocolError("A client does not send such a frame.")
                return self._take_payload_of(length), False
            if self._block_bytes + HEAD_BYTES + length > MAX_BLOCK_BYTES:
                raise ProtocolError(f"The metadata of a call have more than {MAX_BLOCK_BYTES} bytes.")
            if len(self._waiting) < HEAD_BYTES + length:
                return b"", False
            if (begun := self._add_to_block(self._take_bytes(HEAD_BYTES + length), stream)) is not None:
                return begun
        return b"", False

    def _take_payload_of(self, length: int) -> bytes:
        head = self._take_bytes(HEAD_BYTES)
        self._unread_payload = length
        return head

    def _add_to_block(self, frame: bytes, stream: bytes) -> tuple[bytes, bool] | None:
        """Add a frame of metadata; return the block once it is complete, and whether it begins a call."""
        flags = frame[4]
        if flags & _END_HEADERS:
            frame = frame[:4] + bytes([flags & ~_END_HEADERS]) + frame[5:]
        self._block.append(frame)
        self._block_bytes += len(frame)
        self._block_stream = stream
        if not flags & _END_HEADERS:
            return None
        head = len(self._field).to_bytes(3, "big") + bytes([FrameType.CONTINUATION, _END_HEADERS]) + stream
        block = b"".join((*self._block, head, self._field))
        self._block.clear()
        self._block_bytes = 0
        number = int.from_bytes(stream, "big") & 0x7FFFFFFF
        begins_call = number > self._last_stream  # else these are trailers, or an error of the client
        self._last_stream = max(number, self._last_stream)
        return block, begins_call
