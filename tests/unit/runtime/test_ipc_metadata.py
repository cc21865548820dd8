"""Metadata of Arrow's IPC messages is read as pyarrow wrote it, and never beyond the data."""

from __future__ import annotations

import struct
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.runtime.test_decompression_guard import written
from tiltyard.api.bodies.uncompressed_ipc import find_messages
from tiltyard.runtime.client_arrow.decompression_guard import check_expansion
from tiltyard.runtime.client_arrow.ipc_metadata import (
    DICTIONARY,
    PREFIX,
    RECORD_BATCH,
    SCHEMA,
    read_fields,
    read_message,
    read_reference,
    read_structs,
)

WORDS = pa.table({"id": range(3), "word": pa.array(["a", "b", "a"]).dictionary_encode()})
PAIR = struct.Struct("<qq")
LARGEST = (1 << 63) - 1


def headers(body: bytes) -> list[bytes]:
    """Return the headers of a stream's messages."""
    headers_of_body, at = [], 0
    while length := PREFIX.unpack_from(body, at)[1]:
        headers_of_body.append(body[at + PREFIX.size : at + PREFIX.size + length])
        at += PREFIX.size + length + read_message(headers_of_body[-1])[2]
    return headers_of_body


def table(*offsets: int, vector: bytes = b"") -> bytes:
    """Build a table with these offsets, which follow it, and the bytes of a vector between the two."""
    start = 4 + len(vector)
    listed = struct.pack(f"<{len(offsets)}H", *offsets)
    return struct.pack("<i", -start) + vector + struct.pack("<HH", 4 + len(listed), 4) + listed


def test_read_message_returns_type_and_body_of_each() -> None:
    stream = headers(written(WORDS))
    assert [read_message(header)[0] for header in stream] == [SCHEMA, DICTIONARY, RECORD_BATCH]
    messages = list(pa.ipc.MessageReader.open_stream(written(WORDS)))
    assert [read_message(header)[2] for header in stream] == [message.body.size for message in messages]


def test_read_fields_at_the_end_of_the_data_has_zeros_for_absent_ones() -> None:
    assert read_fields(table(), 0) == (0, 0, 0, 0)
    assert read_fields(table(6), 0) == (6, 0, 0, 0)
    assert read_fields(table(0, 8), 0) == (0, 8, 0, 0)
    assert read_fields(table(1, 2, 3, 4, 5), 0) == (1, 2, 3, 4)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        struct.pack("<i", 1) + bytes(20),  # before the data
        struct.pack("<i", -100) + bytes(20),  # behind it
        table(1, 2)[:-1],
        struct.pack("<iHH", -4, 2, 4),  # shorter than the two sizes
    ],
)
def test_read_fields_of_offsets_outside_the_data_is_an_error(data: bytes) -> None:
    with pytest.raises(struct.error):
        read_fields(data, 0)


def test_read_structs_returns_those_of_a_vector_and_none_that_continue_behind_the_data() -> None:
    vector = struct.pack("<II", 4, 2) + PAIR.pack(1, 2) + PAIR.pack(3, 4)
    data = table(4, vector=vector)
    assert list(read_structs(data, 4, PAIR)) == [(1, 2), (3, 4)]
    assert list(read_structs(data, 0, PAIR)) == []
    for count in (3, 0xFFFFFFFF):
        with pytest.raises(struct.error):
            read_structs(data[:8] + struct.pack("<I", count) + data[12:], 4, PAIR)
    with pytest.raises(struct.error):
        read_structs(data, len(data) - 2, PAIR)


def test_read_reference_of_an_absent_field_is_0() -> None:
    assert read_reference(table(4), 0) == 0


@given(st.binary(max_size=80))
def test_read_message_of_any_bytes_is_a_message_or_an_error(header: bytes) -> None:
    with suppress(struct.error, IndexError):
        kind, position, _ = read_message(header)
        assert 0 <= kind < 256 and position >= 0


def test_body_that_claims_to_be_longer_than_any_is_left_to_pyarrow() -> None:
    body = written(pa.table({"id": range(3)}))
    *_, header = headers(body)
    *_, at = read_fields(header, struct.unpack_from("<I", header)[0])
    forged = body.replace(header, header[:at] + struct.pack("<q", LARGEST) + header[at + 8 :])
    assert find_messages(forged) is None


def test_check_expansion_of_a_file_whose_buffers_begin_behind_it_is_refused() -> None:
    body = written(pa.record_batch({"id": [7] * 1000}), compression="zstd", file=True)
    check_expansion(body, is_file=True)
    header = headers(body[8:])[1]
    at = header.index(next(PAIR.pack(*pair) for pair in _buffers(header) if pair[1]))
    for start in (len(body), LARGEST, -LARGEST):
        forged = body.replace(header, header[:at] + struct.pack("<q", start) + header[at + 8 :])
        with pytest.raises(ValueError, match="its footer cannot be read"):
            check_expansion(forged, is_file=True)


def _buffers(header: bytes) -> list[tuple[int, ...]]:
    _, position, _ = read_message(header)
    return list(read_structs(header, read_fields(header, position)[2], PAIR))
