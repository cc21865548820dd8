"""Filter rows of a table by values of its columns, of the types for which storage finds the very same values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc


def is_filtered_type(kind: pa.DataType) -> bool:
    """Return whether `values_filter` takes values of a type: others may be equal and differ, or Lance refuses them."""
    is_time = pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us")
    is_plain = pa.types.is_signed_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind)
    return bool(is_plain or is_time)


def values_filter(values: Mapping[str, pa.Array]) -> pc.Expression | None:
    """Return the condition that each column has one of its values, nulls included; None without columns."""
    conditions = []
    for name, array in values.items():
        condition = pc.field(name).isin(array.drop_null())
        conditions.append(condition | pc.field(name).is_null() if array.null_count else condition)
    return reduce(lambda left, right: left & right, conditions) if conditions else None
