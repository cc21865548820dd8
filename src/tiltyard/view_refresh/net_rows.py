"""Read the rows that a view's source lost or gained: in the driver, in Spark's tasks or in a server's worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

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
