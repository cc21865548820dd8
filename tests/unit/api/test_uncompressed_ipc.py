"""Streams that hold a schema and record batches, read with a schema that is known: the same as pyarrow reads."""

from __future__ import annotations

import io
from contextlib import suppress
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lance_namespace.errors import InvalidInputError

from tiltyard.api.bodies import uncompressed_ipc
from tiltyard.api.bodies.uploads import MemoryBody
from tiltyard.runtime.client_arrow.decompression_guard import ALLOWED_BYTES

WORDS = pa.table(
    {
        "id": pa.array([1, None, 3], pa.int64()),
        "word": ["a", None, "ccc"],
        "view": pa.array(["short", None, "a longer word than twelve letters"], pa.string_view()),
        "list": [[1, None], [], None],
        "vector": pa.array([[0.5, 1.0]] * 3, pa.list_(pa.float32(), 2)),
        "inside": [{"x": 1, "y": "z"}, None, {"x": None, "y": "w"}],
        "number": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(8, 2)),
        "none": pa.nulls(3),
        "flag": [True, None, False],
        "union": pa.UnionArray.from_sparse(
            pa.array([0, 1, 0], pa.int8()), [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])]
        ),
    },
)
"""A column of each kind of layout but dictionaries."""
DICTIONARY = pa.table({"d": pa.array(["x", "y"]).dictionary_encode()})
TOO_MANY = pa.table([pa.nulls(ALLOWED_BYTES + 1)], names=["n"])


def written(table: pa.Table, *, chunk: int | None = None, **options: Any) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=chunk)
    return sink.getvalue()


def read(body: bytes) -> pa.Table:
    return MemoryBody(body).reader().read_all()


@pytest.mark.parametrize(
    "table", [WORDS, WORDS.slice(1), WORDS.slice(0, 0), *(WORDS.select([name]) for name in WORDS.schema.names)]
)
@pytest.mark.parametrize("chunk", [None, 1, 2])
def test_read_is_what_was_written_first_and_again(table: pa.Table, chunk: int | None) -> None:
    body = written(table, chunk=chunk)
    plain = uncompressed_ipc.find_messages(body)
    assert plain is not None and plain.has_native_endianness
    for _ in range(2):
        result = read(body)
        result.validate(full=True)
        assert result.schema.equals(table.schema, check_metadata=True) and result.equals(table)
        assert result.to_batches() == pa.ipc.open_stream(body).read_all().to_batches()


def test_read_keeps_schemas_apart_that_differ_in_metadata_alone() -> None:
    for metadata in ({}, {"a": "1"}, {"a": "2"}):
        table = WORDS.select(["id"]).replace_schema_metadata(metadata)
        fields = pa.table({"f": pa.array([1])}, schema=pa.schema([pa.field("f", pa.int64(), metadata=metadata)]))
        assert read(written(table)).schema.equals(table.schema, check_metadata=True)
        assert read(written(fields)).schema.equals(fields.schema, check_metadata=True)


def test_read_of_a_schema_too_long_to_keep_is_what_was_written() -> None:
    table = WORDS.replace_schema_metadata({"long": "x" * uncompressed_ipc._MAX_CACHED_SCHEMA_BYTES})
    before = uncompressed_ipc._schema.cache_info().currsize
    assert read(written(table)).equals(table)
    assert uncompressed_ipc._schema.cache_info().currsize == before


def test_read_of_what_another_kind_of_machine_wrote_is_left_to_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    body = written(WORDS)
    plain = uncompressed_ipc.find_messages(body)
    assert plain is not None
    monkeypatch.setattr(pa.ipc, "read_record_batch", None)
    assert uncompressed_ipc.read(body, plain._replace(has_native_endianness=False))[0].equals(WORDS)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        written(WORDS, compression="lz4"),
        written(WORDS, compression="zstd"),
        written(WORDS, use_legacy_format=True),
        written(DICTIONARY),
        written(TOO_MANY),
        written(WORDS)[:-8],
        written(WORDS)[8:],
        written(WORDS)[:-8] + written(WORDS),
        b"\xff\xff\xff\xff\0\0\0\0",
    ],
)
def test_look_at_anything_else_leaves_it_to_others(body: bytes) -> None:
    assert uncompressed_ipc.find_messages(body) is None


def test_reader_of_rows_without_their_dictionary_is_the_clients_error() -> None:
    messages = list(pa.ipc.MessageReader.open_stream(written(DICTIONARY)))
    assert [message.type for message in messages] == ["schema", "dictionary", "record batch"]
    sink = pa.BufferOutputStream()
    for message in (messages[0], messages[2]):
        message.serialize_to(sink)
    body = sink.getvalue().to_pybytes() + b"\xff\xff\xff\xff\0\0\0\0"
    assert uncompressed_ipc.find_messages(body) is not None
    with pytest.raises(InvalidInputError):
        MemoryBody(body).reader()


def test_reader_of_rows_of_another_schema_is_the_clients_error() -> None:
    """A batch without the buffers that its schema requires."""
    messages = [list(pa.ipc.MessageReader.open_stream(written(WORDS.select([name])))) for name in ("id", "list")]
    sink = pa.BufferOutputStream()
    messages[1][0].serialize_to(sink)
    messages[0][1].serialize_to(sink)
    with pytest.raises(InvalidInputError):
        MemoryBody(sink.getvalue().to_pybytes() + b"\xff\xff\xff\xff\0\0\0\0").reader()


@given(st.binary(max_size=40), st.integers(0, 3000))
def test_reader_of_a_damaged_body_gives_rows_or_the_clients_error(damage: bytes, at: int) -> None:
    body = bytearray(written(WORDS.drop_columns(["union"]), chunk=2))
    body[at : at + len(damage)] = damage
    with suppress(InvalidInputError):
        read(bytes(body)).validate(full=True)


@given(st.lists(st.integers(0, 50), max_size=5), st.randoms(use_true_random=False))
def test_read_of_any_number_of_batches(sizes: list[int], random: Any) -> None:
    numbers = np.arange(sum(sizes))
    table = pa.table({"n": numbers, "t": [str(random.random()) for _ in numbers]})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        at = 0
        for size in sizes:
            writer.write_batch(pa.RecordBatch.from_pylist(table.slice(at, size).to_pylist(), table.schema))
            at += size
    assert read(sink.getvalue()).equals(table)
