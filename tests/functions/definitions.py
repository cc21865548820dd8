"""Functions as users of lancedb write them."""

from __future__ import annotations

import os

import pyarrow as pa
from lancedb import udf
from pyarrow import compute


@udf
def twice(x: int) -> int:
    return x * 2


@udf(name="ratio")
def ratio(x: int, y: int) -> float:
    return x / y


@udf(
    input_schema=pa.schema([pa.field("x", pa.int64()), pa.field("y", pa.int64())]),
    output_schema=pa.field("sum", pa.int64(), nullable=False),
)
def sum_of(x: pa.Array, y: pa.Array) -> pa.Array:
    return compute.add(x, y)


@udf(
    input_schema=pa.schema([pa.field("batch", pa.int64())]),
    output_schema=pa.field("size", pa.int64(), nullable=False),
)
def batch_size(batch: pa.RecordBatch) -> pa.Array:
    return pa.array([batch.num_rows] * batch.num_rows, pa.int64())


@udf(
    input_schema=pa.schema([pa.field("text", pa.string())]),
    output_schema=pa.schema([pa.field("low", pa.string()), pa.field("size", pa.int32())]),
)
def words(text: str) -> dict[str, object]:
    return {"low": text.lower(), "size": len(text)}


@udf(env={"GREETING": "hello"})
def greeting(name: str | None) -> str:
    return f"{os.environ['GREETING']} {name} {os.environ.get('API_KEY', 'without a key')}"


@udf
class scale:  # noqa: N801 - a function's name
    def __init__(self, factor: float, offset: float = 0.5):
        self.factor, self.offset = factor, offset

    def __call__(self, x: int) -> float:
        return x * self.factor + self.offset


@udf
def forever(x: int) -> int:
    while True:
        pass
    return x
