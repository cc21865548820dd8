"""Ranges of bytes: which the header asks for, which are refused, and how they are read."""

from __future__ import annotations

import pytest

from tiltyard.api.bodies.byte_ranges import CHUNK_BYTES, ByteDownload, parse_range, requested_range
from tiltyard.api.errors import HttpError
from tiltyard.model.operations import BytesAnswer


@pytest.mark.parametrize(
    ("header", "span"),
    [
        (b"bytes=0-0", (0, 0)),
        (b"bytes=2-5", (2, 5)),
        (b"bytes=2-", (2, 9)),
        (b"bytes=-3", (7, 9)),
        (b"bytes=-99", (0, 9)),
        (b"bytes=5-99", (5, 9)),
        (b"bytes= 1-2 ", (1, 2)),
    ],
)
def test_range_within_the_value_is_sent(header: bytes, span: tuple[int, int]) -> None:
    assert parse_range(header, 10) == span


@pytest.mark.parametrize(
    "header", [None, b"", b"rows=0-1", b"bytes=", b"bytes=-", b"bytes=a-b", b"bytes=5-2", b"bytes=0-1,x", b"0-1"]
)
def test_range_that_is_malformed_or_of_another_unit_is_ignored(header: bytes | None) -> None:
    assert parse_range(header, 10) is None


@pytest.mark.parametrize(
    ("header", "size"),
    [(b"bytes=10-", 10), (b"bytes=99-100", 10), (b"bytes=-0", 10), (b"bytes=0-0", 0), (b"bytes=-5", 0)],
)
def test_range_behind_the_value_is_416_with_the_size(header: bytes, size: int) -> None:
    with pytest.raises(HttpError, match="behind") as refused:
        parse_range(header, size)
    assert (refused.value.status, refused.value.headers) == (416, ((b"content-range", b"bytes */%d" % size),))


def test_several_ranges_are_416() -> None:
    with pytest.raises(HttpError, match="One range at a time") as refused:
        parse_range(b"bytes=0-1, 4-5", 10)
    assert refused.value.status == 416


def test_conditional_range_is_ignored() -> None:
    assert requested_range({b"range": b"bytes=0-1"}) == b"bytes=0-1"
    assert requested_range({b"range": b"bytes=0-1", b"if-range": b'"x"'}) is None


def download(size: int | None, header: bytes | None = None) -> tuple[ByteDownload, list[tuple[int, int]]]:
    """Return a download of zeros, and the reads that it makes."""
    reads: list[tuple[int, int]] = []

    def read(offset: int, length: int) -> bytes:
        reads.append((offset, length))
        return bytes(length)

    return ByteDownload(BytesAnswer(size, read, 7), header), reads


def test_long_value_is_read_a_chunk_at_a_time() -> None:
    sent, reads = download(2 * CHUNK_BYTES + 5)
    assert (sent.status, dict(sent.headers)[b"content-length"], sent.complete) == (
        200,
        b"%d" % (2 * CHUNK_BYTES + 5),
        False,
    )
    assert reads == [(0, CHUNK_BYTES)]
    sizes = [len(sent.first)]
    while (chunk := sent.next_chunk()) is not None:
        sizes.append(len(chunk))
    assert sizes == [CHUNK_BYTES, CHUNK_BYTES, 5]
    assert sent.complete is False  # as it was when the response began


def test_range_says_which_part_it_is_and_reads_no_more() -> None:
    sent, reads = download(10 * CHUNK_BYTES, b"bytes=%d-%d" % (CHUNK_BYTES, 2 * CHUNK_BYTES - 1))
    headers = dict(sent.headers)
    assert (sent.status, sent.complete, reads) == (206, True, [(CHUNK_BYTES, CHUNK_BYTES)])
    assert headers[b"content-range"] == b"bytes %d-%d/%d" % (CHUNK_BYTES, 2 * CHUNK_BYTES - 1, 10 * CHUNK_BYTES)
    assert (headers[b"x-lancedb-version"], headers[b"accept-ranges"]) == (b"7", b"bytes")


def test_null_has_no_content_and_empty_value_has_none_to_range_over() -> None:
    null, _ = download(None, b"bytes=0-0")
    assert (null.status, null.first, null.complete) == (204, b"", True)
    empty, reads = download(0)
    assert (empty.status, dict(empty.headers)[b"content-length"], reads) == (200, b"0", [])
    with pytest.raises(HttpError) as refused:
        download(0, b"bytes=0-0")
    assert dict(refused.value.headers) == {
        b"x-lancedb-version": b"7",
        b"accept-ranges": b"bytes",
        b"content-range": b"bytes */0",
    }
