"""Digests of rows, by which equal rows are found among many: of any types of Arrow's."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_DIGEST_BYTES = 16
_LONG_BYTES = 64
"""Of longer vectors the digest is taken first: the `repr` of bytes takes ten times as long."""


def row_digests(columns: Sequence[pa.Array]) -> list[bytes]:
    """Return a digest of 16 bytes for each row of columns of one length: the same for the same values, and only then.

    Nulls are the same, 0.0 and -0.0 are not; NaN are outside vectors, and within them if their bits are.
    """
    rows = zip(*map(_values, columns), strict=True)
    return [_digest(repr(row).encode("utf-8", "backslashreplace")) for row in rows]


def _digest(data: Any) -> bytes:
    return blake2b(data, digest_size=_DIGEST_BYTES).digest()


def _values(array: pa.Array) -> list[Any]:
    """Return the values as objects whose `repr` is the same for the same values of one type, and only then."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _values(array.storage)
    if pa.types.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if pa.types.is_temporal(kind):
        return list(array.view(pa.int32() if kind.bit_width == pa.int32().bit_width else pa.int64()).to_pylist())
    if not _has_values_within(kind):
        return list(array.to_pylist())
    dense = array.drop_null()
    within = iter(_struct_values(dense) if pa.types.is_struct(kind) else _list_values(dense))
    return [next(within) if is_valid else None for is_valid in array.is_valid().to_pylist()]


def _has_values_within(kind: pa.DataType) -> bool:
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(is_list or pa.types.is_struct(kind))


def _struct_values(array: pa.StructArray) -> list[Any]:
    """Return the values of structs, none of which is null."""
    return list(zip(*map(_values, array.flatten()), strict=True)) if array.type.num_fields else [()] * len(array)


def _list_values(array: pa.Array) -> list[Any]:
    """Return the values of lists, none of which is null; a vector of numbers as its bytes, or as their digest."""
    values = array.flatten()
    if pa.types.is_fixed_size_list(array.type):
        is_numeric = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
        if is_numeric and not values.null_count:
            rows = values.to_numpy().reshape(len(array), array.type.list_size)
            is_long = array.type.list_size * values.type.bit_width > 8 * _LONG_BYTES
            return list(map(_digest, rows)) if is_long else [row.tobytes() for row in rows]
        ends = np.arange(len(array) + 1) * array.type.list_size
    else:
        ends = np.concatenate([[0], np.cumsum(np.asarray(pc.list_value_length(array)))])
    objects = _values(values)
    return [tuple(objects[start:end]) for start, end in pairwise(ends.tolist())]
