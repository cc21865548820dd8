"""Frames of HTTP/2, cut at whatever bytes come at once: what is passed on is what came, with one field more a call."""

from __future__ import annotations

import pytest

from tests.services.http2 import CONTINUATION, DATA, END_HEADERS, HEADERS, PREFACE, SETTINGS, frame
from tiltyard.flight.frames import MAX_BLOCK_BYTES, FrameCutter, ProtocolError

FIELD = b"\x10\x04name\x05value"


def cut(data: bytes, at_once: int) -> list[tuple[bytes, bool]]:
    """What is passed on of bytes that come so many at once."""
    cutter, passed = FrameCutter(b"name", b"value"), []
    for start in range(0, len(data), at_once):
        cutter.add(data[start : start + at_once])
        while (part := cutter.take())[0]:
            passed.append(part)
    assert not cutter.waiting_bytes
    return passed


@pytest.mark.parametrize("at_once", [1, 7, 1 << 20])
def test_take_ends_the_metadata_of_each_call_with_the_field(at_once: int) -> None:
    data = b"".join(
        (
            PREFACE,
            frame(SETTINGS, 0, 0, b"123456"),
            frame(HEADERS, END_HEADERS, 1, b"first"),
            frame(DATA, 0, 1, b"x" * 100),
            frame(DATA, 1, 1),
            frame(HEADERS, 0, 3, b"sec"),
            frame(CONTINUATION, END_HEADERS, 3, b"ond"),
            frame(HEADERS, END_HEADERS | 1, 1, b"trailers"),
        )
    )
    passed = cut(data, at_once)
    assert [begins for _, begins in passed].count(True) == 2
    expected = b"".join(
        (
            PREFACE,
            frame(SETTINGS, 0, 0, b"123456"),
            frame(HEADERS, 0, 1, b"first"),
            frame(CONTINUATION, END_HEADERS, 1, FIELD),
            frame(DATA, 0, 1, b"x" * 100),
            frame(DATA, 1, 1),
            frame(HEADERS, 0, 3, b"sec"),
            frame(CONTINUATION, 0, 3, b"ond"),
            frame(CONTINUATION, END_HEADERS, 3, FIELD),
            frame(HEADERS, 1, 1, b"trailers"),
            frame(CONTINUATION, END_HEADERS, 1, FIELD),
        )
    )
    assert b"".join(part for part, _ in passed) == expected


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        PREFACE + frame(CONTINUATION, END_HEADERS, 1, b"x"),
        PREFACE + frame(5, END_HEADERS, 1, b"x"),
        PREFACE + frame(HEADERS, 0, 1, b"x") + frame(DATA, 0, 1, b"x"),
        PREFACE + frame(HEADERS, 0, 1, b"x") + frame(CONTINUATION, END_HEADERS, 3, b"x"),
        PREFACE + frame(HEADERS, 0, 1, b"x" * MAX_BLOCK_BYTES),
        PREFACE + frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 1) * (MAX_BLOCK_BYTES // 9),
    ],
    ids=["HTTP/1.1", "continuation", "promise", "interrupted", "of another", "large", "endless"],
)
def test_take_refuses_what_no_client_sends(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        cut(data, 1 << 20)
