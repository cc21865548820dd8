"""What a batch is given as: an Arrow batch, arrays of numpy by column, or tensors of PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.model.refusals import RefusedError

Decoder = Callable[[pa.Array], Any]
"""A function of a column: one of `tiltyard.functions`, or any that returns an array of as many values."""


def decode(rows: pa.RecordBatch, decoders: Mapping[str, Decoder]) -> pa.RecordBatch:
    """Return rows whose columns are what functions make of them.

    Raises InvalidInputError for a value that they refuse.
    """
    for name, decoder in decoders.items():
        position = rows.schema.get_field_index(name)
        try:
            values = decoder(rows.column(position))
        except (RefusedError, ValueError) as error:
            raise InvalidInputError(f"decode['{name}']: {error}") from error
        if not isinstance(values, pa.Array):
            values = pa.array(values)
        if len(values) != rows.num_rows:
            raise InvalidInputError(f"decode['{name}'] has returned {len(values)} values for {rows.num_rows} rows.")
        rows = rows.set_column(position, name, values)
    return rows


def to_numpy(rows: pa.RecordBatch) -> dict[str, np.ndarray]:
    """Return columns as arrays: lists of one length as arrays of more dimensions, text and bytes as objects.

    Raises InvalidInputError for nulls where numpy has no value for them.
    """
    return {name: _array(name, column) for name, column in zip(rows.schema.names, rows.columns, strict=True)}


def to_torch(rows: pa.RecordBatch) -> dict[str, Any]:
    """Return columns as tensors, those that are no numbers as lists. Raises as `to_numpy`."""
    import torch  # type: ignore[import-not-found]  # noqa: PLC0415  # not installed with this package

    columns: dict[str, Any] = {}
    for name, array in to_numpy(rows).items():
        is_number = array.dtype.kind in "biuf"
        columns[name] = torch.from_numpy(np.array(array)) if is_number else array.tolist()  # a copy, to be written
    return columns


FORMATS: Mapping[str, Callable[[pa.RecordBatch], Any]] = {
    "arrow": lambda rows: rows,
    "numpy": to_numpy,
    "torch": to_torch,
}
"""How a batch is given, by name."""


def _array(name: str, column: pa.Array) -> np.ndarray:
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        return _array(name, column.storage)
    if pa.types.is_fixed_size_list(kind) and not pa.types.is_nested(kind.value_type):
        values = column.flatten()
        if column.null_count or len(values) != len(column) * kind.list_size:
            raise _has_nulls(name, kind)
        return _array(name, values).reshape(len(column), kind.list_size)
    if column.null_count and (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise _has_nulls(name, kind)
    array: np.ndarray = column.to_numpy(zero_copy_only=False)
    return array


def _has_nulls(name: str, kind: pa.DataType) -> InvalidInputError:
    return InvalidInputError(
        f"The column '{name}' has nulls, for which an array of {kind} has no value: leave such rows out by the set's "
        "filter, the column by columns, or take format='arrow'."
    )
