"""Compare two columns row by row, of any type of Arrow's: for rows that may have been rewritten as they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]


def differing_rows(before: pa.Array, after: pa.Array) -> Mask:
    """Return for each row whether the values differ, of two arrays of one type and length.

    Nulls are the same, and floating-point numbers of the same bits, so that NaN is.
    """
    valid_before, valid_after = (np.asarray(array.is_valid()) for array in (before, after))
    differs: Mask = valid_before != valid_after
    both = np.flatnonzero(valid_before & valid_after)
    if len(both):
        positions = pa.array(both)
        differs[both] = _differing_values(before.take(positions), after.take(positions))
    return differs


def _differing_values(before: pa.Array, after: pa.Array) -> Mask:
    """Return as `differing_rows`, of arrays without nulls."""
    kind = before.type
    if isinstance(before, pa.ExtensionArray):
        return differing_rows(before.storage, after.storage)
    if pa.types.is_dictionary(kind):
        return differing_rows(before.dictionary_decode(), after.dictionary_decode())
    if pa.types.is_floating(kind):
        bits = f"u{kind.bit_width // 8}"
        return np.asarray(before.to_numpy().view(bits) != after.to_numpy().view(bits))
    if pa.types.is_struct(kind):
        differs = np.zeros(len(before), bool)
        for left, right in zip(before.flatten(), after.flatten(), strict=True):
            differs |= differing_rows(left, right)
        return differs
    if pa.types.is_fixed_size_list(kind):
        values = differing_rows(before.flatten(), after.flatten())
        return np.asarray(values.reshape(len(before), kind.list_size).any(axis=1))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _differing_lists(before, after)
    if pa.types.is_nested(kind):
        pairs = zip(before.to_pylist(), after.to_pylist(), strict=True)
        return np.fromiter((left != right for left, right in pairs), bool, len(before))
    return np.asarray(pc.not_equal(before, after))


def _differing_lists(before: pa.Array, after: pa.Array) -> Mask:
    differs = np.array(pc.not_equal(pc.list_value_length(before), pc.list_value_length(after)))
    same_length = pa.array(np.flatnonzero(~differs))
    left, right = before.take(same_length), after.take(same_length)
    parents = np.asarray(pc.list_parent_indices(left))
    values = differing_rows(left.flatten(), right.flatten())
    differs[np.asarray(same_length)[parents[values]]] = True
    return differs
