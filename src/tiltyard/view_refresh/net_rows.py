"""Read the rows that a view's source lost or gained, and filter rows by values: in the driver, in Spark's tasks or in a
server's worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.change_feed.reader import OpenVersion, read_changes

if TYPE_CHECKING:
    from tiltyard.change_feed.groups import ChangeGroup


@dataclass(frozen=True, slots=True)
class NetRows:
    """Rows of a change feed with this schema, by their 64-bit numbers among the rows of the groups."""

    schema: pa.Schema
    groups: tuple[ChangeGroup, ...]
    numbers: bytes

    def __len__(self) -> int:
        return len(self.numbers) // np.dtype(np.int64).itemsize

    def read(self, open_version: OpenVersion, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows, with these columns. Raises RefusedError."""
        numbers = np.frombuffer(self.numbers, np.int64)
        start = 0
        for batch in read_changes(self.groups, self.schema, open_version):
            end = start + batch.num_rows
            within = numbers[np.searchsorted(numbers, start) : np.searchsorted(numbers, end)] - start
            if len(within):
                yield batch.select(list(columns)).take(pa.array(within))
            start = end


def is_filtered_type(kind: pa.DataType) -> bool:
    """Return whether `values_filter` takes values of a type: others may be equal and differ, or Lance refuses them."""
    is_time = pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us")
    is_plain = pa.types.is_signed_integer(kind) or pa.types.is_string(kind) or pa.types.is_boolean(kind)
    return bool(is_plain or is_time)


def values_filter(values: Mapping[str, pa.Array]) -> pc.Expression | None:
    """Return the condition that each column has one of its values, nulls included; None without columns.

    Its columns are of types for which storage finds the very same values (`is_filtered_type`).
    """
    conditions = []
    for name, array in values.items():
        condition = pc.field(name).isin(array.drop_null())
        conditions.append(condition | pc.field(name).is_null() if array.null_count else condition)
    return reduce(lambda left, right: left & right, conditions) if conditions else None
