"""Batches as FlightData: readers find the rows of each, and large buffers are not copied."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tiltyard.flight.encoding import LARGE_BYTES, MESSAGE_BYTES, BatchEncoder, encode_schema
from tiltyard.flight.messages import MESSAGES

ROWS = 3 * MESSAGE_BYTES // 8


def read(messages: list[bytes]) -> pa.Table:
    """Return the rows of some messages, as a client reads them."""
    stream = b""
    for message in messages:
        data = MESSAGES["FlightData"].FromString(message)
        stream += b"\xff\xff\xff\xff" + len(data.data_header).to_bytes(4, "little") + data.data_header + data.data_body
    return pa.ipc.open_stream(stream).read_all()


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"n": pa.array(range(ROWS)), "text": pa.array(["x" * (n % 9) for n in range(ROWS)])}),
        pa.record_batch({"n": pa.array([1, None, 3])}),
        pa.record_batch({"n": pa.array([], pa.int64())}),
        pa.record_batch({"kind": pa.array(["a", "b", None] * 5).dictionary_encode(), "n": pa.array(range(15))}),
        pa.record_batch({f"column {n}": pa.array([n]) for n in range(3_000)}),
        pa.record_batch({"n": pa.array(range(ROWS))}).slice(7, ROWS // 2),
    ],
    ids=["several messages", "small", "empty", "dictionary", "wide", "slice"],
)
def test_reader_finds_the_rows_of_each_batch(batch: pa.RecordBatch) -> None:
    encoder = BatchEncoder(batch.schema)
    messages = [b"".join(parts) for _ in range(2) for parts in encoder.encode(batch)]
    assert read([encode_schema(batch.schema), *messages]) == pa.Table.from_batches([batch, batch])
    assert all(len(message) < MESSAGE_BYTES * 1.5 for message in messages)


def test_batch_whose_schema_differs_in_its_nulls_is_encoded_as_announced() -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    (parts,) = BatchEncoder(schema).encode(pa.record_batch({"n": pa.array([1])}))
    assert read([encode_schema(schema), b"".join(parts)]) == pa.table({"n": [1]}, schema)


def test_large_buffer_of_a_batch_is_not_copied() -> None:
    values = pa.array(range(LARGE_BYTES))
    (parts,) = BatchEncoder(pa.schema([("n", pa.int64())])).encode(pa.record_batch({"n": values}))
    shared = [pa.py_buffer(part).address for part in parts]
    assert values.buffers()[1].address in shared
