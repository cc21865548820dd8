"""Query vectors: choose the column that they search, and convert them to its type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.model.columns.vector_columns import VectorColumn, quote_path
from tiltyard.storage.errors import column_not_found

Vector = Sequence[float]

_INTEGER_RANGES = {pa.uint8(): (0, 255), pa.int8(): (-128, 127)}


def to_array(vector: Vector, column: VectorColumn) -> pa.Array:
    """Return a query vector as an array that the column's search takes.

    Raises InvalidInputError for another dimension, or for numbers that the column's type cannot represent.
    """
    if len(vector) != column.dimension:
        raise InvalidInputError(
            f"Vectors of column '{column.path}' have {column.dimension} dimensions, the query vector {len(vector)}."
        )
    numbers = np.asarray(vector, dtype=np.float64)
    if column.element in _INTEGER_RANGES:
        low, high = _INTEGER_RANGES[column.element]
        if not ((numbers >= low) & (numbers <= high) & (numbers == np.floor(numbers))).all():
            raise InvalidInputError(
                f"Column '{column.path}' holds integers from {low} to {high}: so must the query vector."
            )
        return pa.array(numbers.astype(column.element.to_pandas_dtype()))
    dtype = np.float64 if column.element == pa.float64() else np.float32
    with np.errstate(over="ignore"):
        numbers = numbers.astype(dtype, copy=False)
    if not np.isfinite(numbers).all():
        raise InvalidInputError("A query vector holds finite numbers within the range of its column's type.")
    return pa.array(numbers)


def choose_column(
    columns: Mapping[str, VectorColumn], names: Sequence[str], requested: str | None, dimension: int
) -> VectorColumn:
    """Return the column to search: the requested one, else the only one of the query vector's dimension.

    `names` are all columns of the table. Raises TableColumnNotFoundError, InvalidInputError.
    """
    if requested is not None:
        return _requested_column(columns, names, requested)
    matching = [column for column in columns.values() if column.dimension == dimension]
    if len(matching) == 1:
        return matching[0]
    if matching:
        listed = ", ".join(column.path for column in matching)
        raise InvalidInputError(
            f"Several columns hold vectors of {dimension} dimensions: name one as vector_column: {listed}."
        )
    if not columns:
        raise InvalidInputError("This table has no vector column to search.")
    listed = ", ".join(f"{column.path} ({column.dimension})" for column in columns.values())
    raise InvalidInputError(f"No column holds vectors of {dimension} dimensions; the vector columns are {listed}.")


def _requested_column(columns: Mapping[str, VectorColumn], names: Sequence[str], name: str) -> VectorColumn:
    for path in (name, quote_path((name,))):
        if path in columns:
            return columns[path]
    if name in names:
        listed = ", ".join(columns) or "none"
        raise InvalidInputError(f"Column '{name}' holds no vectors; the vector columns of this table: {listed}.")
    raise column_not_found(name, names)
