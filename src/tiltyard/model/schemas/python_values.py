"""Values of Arrow as Python has them; those that Python has no value for are their text.

Python's dates end with the year 9999, its durations with a billion days, its times with microseconds. Arrow's do not:
one such value would fail a whole page or file.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

_BEYOND_PYTHON = (ValueError, OverflowError, ArithmeticError)


def python_values(array: pa.Array) -> list[Any]:
    """Return the values of an array, and the texts of those that Python lacks."""
    try:
        values: list[Any] = array.to_pylist()
    except _BEYOND_PYTHON:
        values = [python_value(array, index) for index in range(len(array))]
    return values


def python_value(array: pa.Array, index: int) -> Any:
    """Return one value of an array, or its text where Python lacks it: dates, times and durations in it are texts."""
    try:
        return array[index].as_py()
    except _BEYOND_PYTHON:
        return array.slice(index, 1).cast(_with_texts(array.type)).to_pylist()[0]


def python_rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Return the rows of a batch, as `python_values` has their values."""
    columns = [python_values(column) for column in batch.columns]
    return [dict(zip(batch.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]


def _with_texts(kind: pa.DataType) -> pa.DataType:
    """Return a type with texts in the place of what Python may have no value for."""
    if isinstance(kind, pa.BaseExtensionType):
        return _with_texts(kind.storage_type)
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_dictionary(kind):
        return _with_texts(kind.value_type)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_texts(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_with_texts(kind.key_type), _with_texts(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_with_texts(kind.value_type))
    if pa.types.is_large_list(kind):
        return pa.large_list(_with_texts(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_with_texts(kind.value_type), kind.list_size)
    return kind
