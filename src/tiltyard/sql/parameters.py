"""The values of a query's parameters, as an Arrow stream of one row: so clients bind them, and processes get them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.runtime.client_arrow.reading import read_table, to_ipc

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_PARAMETERS = 1_000
MAX_PARAMETER_BYTES = 1 << 20
"""Bytes of a query's parameters, encoded and in memory; and how many values they have, with those inside others."""


def write_parameters(values: Sequence[pa.Scalar]) -> bytes:
    """Return the stream of some values; empty without any."""
    if not values:
        return b""
    columns = [pa.array([value.as_py()], value.type) for value in values]
    batch = pa.record_batch(columns, [str(number) for number in range(1, len(columns) + 1)])
    encoded: bytes = to_ipc(batch).to_pybytes()
    return encoded


def read_parameters(stream: bytes) -> list[pa.Scalar]:
    """Return the values of a stream, which a client has sent. Raises InvalidInputError."""
    if not stream:
        return []
    try:
        table = read_table(stream, allowed_bytes=MAX_PARAMETER_BYTES, max_ratio=0)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidInputError(f"The parameters are no Arrow stream of {MAX_PARAMETER_BYTES >> 20} MiB.") from error
    if table.num_rows != 1 or table.num_columns > MAX_PARAMETERS:
        raise InvalidInputError(f"Bind one row of {MAX_PARAMETERS} values at most: a statement runs once.")
    if sum(_count_values(column.chunk(0)) for column in table.columns) > MAX_PARAMETER_BYTES:
        raise InvalidInputError(f"The parameters have more than {MAX_PARAMETER_BYTES} values.")
    return [_decoded(column[0]) for column in table.columns]


def _count_values(array: pa.Array) -> int:
    """Return how many values an array has with those inside it: nulls in a list take no bytes, however many."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _count_values(array.storage)
    if pa.types.is_map(kind):
        inside = [array.keys, array.items]
    elif pa.types.is_struct(kind) or pa.types.is_union(kind):
        inside = [array.field(at) for at in range(kind.num_fields)]
    elif pa.types.is_dictionary(kind):
        inside = [array.dictionary]
    else:
        inside = [array.values] if kind.num_fields else []
    return len(array) + sum(map(_count_values, inside))


def _decoded(value: pa.Scalar) -> pa.Scalar:
    """Return a value without the union that some clients wrap their parameters in."""
    return value.value if pa.types.is_union(value.type) else value
