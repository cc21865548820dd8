"""Small bodies that would become large ones are refused before pyarrow decompresses them."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltyard.runtime.client_arrow.decompression_guard import ALLOWED_BYTES, ExpansionCheck, check_expansion

ZEROS = pa.record_batch({"b": pa.array([bytes(1 << 20)] * 80)})
NULLS = pa.record_batch([pa.nulls(ALLOWED_BYTES * 2)], names=["n"])
WORDS = pa.table(
    {
        "id": np.arange(50_000),
        "word": pa.array([f"word {number % 100}" for number in range(50_000)]).dictionary_encode(),
        "list": [[number, None] for number in range(50_000)],
        "none": pa.nulls(50_000),
        "view": pa.array([f"a longer word than twelve letters {number}" for number in range(50_000)], pa.string_view()),
    }
)


def written(rows: Any, *, file: bool = False, compression: str | None = None, **options: Any) -> bytes:
    sink = io.BytesIO()
    write_options = pa.ipc.IpcWriteOptions(compression=compression, **options)
    with (pa.ipc.new_file if file else pa.ipc.new_stream)(sink, rows.schema, options=write_options) as writer:
        writer.write(rows)
    return sink.getvalue()


def taken(body: bytes, size: int) -> int:
    """Return the decompressed size of a body that is read in pieces of a size."""
    check = ExpansionCheck()
    for at in range(0, len(body), size):
        check.add(memoryview(body)[at : at + size])
    return check._expanded


@pytest.mark.parametrize("file", [False, True])
@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_check_expansion_of_a_body_that_would_become_much_larger_is_refused(compression: str, file: bool) -> None:
    body = written(ZEROS, compression=compression, file=file)
    small = written(ZEROS.slice(0, 50), compression=compression, file=file)
    check_expansion(small, is_file=file)
    if compression == "zstd":
        assert len(body) < 100_000
        with pytest.raises(ValueError, match="would become more than"):
            check_expansion(body, is_file=file)
    else:
        check_expansion(body, is_file=file)  # lz4 makes it a 250th, which is within the bounds of a body of that size


@pytest.mark.parametrize("file", [False, True])
def test_check_expansion_of_rows_without_bytes_is_refused(file: bool) -> None:
    with pytest.raises(ValueError, match="would become"):
        check_expansion(written(NULLS, file=file), is_file=file)


@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}, {"compression": "lz4"}, {"use_legacy_format": True}])
@pytest.mark.parametrize("file", [False, True])
def test_check_expansion_of_ordinary_rows_is_let_through(options: dict[str, Any], file: bool) -> None:
    check_expansion(written(WORDS, file=file, **options), is_file=file)


@pytest.mark.parametrize("size", [1, 7, 8, 1000, 1 << 20])
def test_take_in_pieces_of_any_size_finds_the_same(size: int) -> None:
    pieces = WORDS.slice(0, 500)
    for body in (written(pieces, compression="zstd"), written(pieces, use_legacy_format=True)):
        assert taken(body, size) == taken(body, len(body)) > 500
    with pytest.raises(ValueError, match="would become"):
        taken(written(ZEROS, compression="zstd"), size)


def test_take_counts_what_the_buffers_say_they_become() -> None:
    rows = pa.record_batch({"b": pa.array([bytes(1 << 20)] * 10)})
    body = written(rows, compression="zstd")
    assert taken(body, len(body)) >= rows.nbytes


@given(st.binary(max_size=300), st.integers(0, 400), st.booleans())
def test_check_expansion_of_a_damaged_body_is_let_through_or_refused(damage: bytes, at: int, file: bool) -> None:
    body = bytearray(written(pa.record_batch({"a": [1, 2], "b": ["x", "y"]}), compression="zstd", file=file))
    body[at : at + len(damage)] = damage
    with suppress(ValueError):
        check_expansion(bytes(body), is_file=file)
