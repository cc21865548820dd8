"""The values of a query's parameters, as an Arrow stream of one row: so clients bind them, and processes get them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.runtime.arrow_ipc import to_ipc

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_PARAMETERS = 1_000


def write_parameters(values: Sequence[pa.Scalar]) -> bytes:
    """Return the stream of some values; empty without any."""
    if not values:
        return b""
    columns = [pa.array([value.as_py()], value.type) for value in values]
    return encode_parameters(pa.record_batch(columns, [str(number) for number in range(1, len(columns) + 1)]))


def encode_parameters(batch: pa.RecordBatch) -> bytes:
    """Return the stream of a batch. Raises InvalidInputError unless it has one row."""
    if batch.num_rows != 1:
        raise InvalidInputError(f"A statement is run once with one row of parameters, not with {batch.num_rows}.")
    encoded: bytes = to_ipc(batch).to_pybytes()
    return encoded


def read_parameters(stream: bytes) -> list[pa.Scalar]:
    """Return the values of a stream. Raises InvalidInputError."""
    if not stream:
        return []
    try:
        table = pa.ipc.open_stream(stream).read_all()
    except pa.ArrowException as error:
        raise InvalidInputError("The parameters are no Arrow stream.") from error
    if table.num_rows != 1 or table.num_columns > MAX_PARAMETERS:
        raise InvalidInputError(f"The parameters are one row of {MAX_PARAMETERS} values at most.")
    return [_decoded(column[0]) for column in table.columns]


def _decoded(value: pa.Scalar) -> pa.Scalar:
    """Return a value without the union that some clients wrap their parameters in."""
    return value.value if pa.types.is_union(value.type) else value
