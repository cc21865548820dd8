"""Values of a view's columns of code, in tasks: those that the view has of equal inputs are taken, others computed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tiltyard.change_feed.row_digests import row_digests
from tiltyard.change_feed.table_history import split_by_fragment
from tiltyard.change_feed.version_rows import VersionRows, take_rows
from tiltyard.pipeline.backfill.tasks import ColumnFunction
from tiltyard.pipeline.table_location import TableLocation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tiltyard.view_refresh.added_columns import ColumnCounts

_DIGEST = np.dtype([("first", np.uint64), ("second", np.uint64)])
"""The digest of a row's inputs, in two halves: rows are sorted by the first."""


@dataclass(frozen=True, slots=True)
class ReusableValues:
    """Where a version of a view has values of a column, by the digests of the inputs that they were computed of.

    `digests` are of 16 bytes, `addresses` of 8, both sorted by the digests' first halves.
    """

    location: TableLocation
    version: int
    column: str
    digests: bytes
    addresses: bytes

    @classmethod
    def of(
        cls, location: TableLocation, version: int, column: str, digests: Sequence[bytes], addresses: NDArray[np.uint64]
    ) -> ReusableValues:
        """Return the values of rows by their digests and addresses."""
        halves = np.frombuffer(b"".join(digests), _DIGEST)
        order = np.argsort(halves["first"], kind="stable")
        return cls(location, version, column, halves[order].tobytes(), addresses[order].tobytes())

    def __len__(self) -> int:
        return len(self.addresses) // 8

    def find(self, inputs: Sequence[pa.Array]) -> tuple[NDArray[np.intp], pa.Array]:
        """Return which rows have a value, by their numbers in ascending order, and these values, none of them null."""
        wanted = np.frombuffer(b"".join(row_digests(inputs)), _DIGEST)
        known = np.frombuffer(self.digests, _DIGEST)
        places = np.minimum(np.searchsorted(known["first"], wanted["first"]), len(known) - 1)
        rows = np.flatnonzero(known[places] == wanted)
        addresses = np.frombuffer(self.addresses, np.uint64)[places[rows]]
        values = self._read(addresses)
        is_valid = np.asarray(values.is_valid())
        return rows[is_valid], values.filter(pa.array(is_valid))

    def _read(self, addresses: NDArray[np.uint64]) -> pa.Array:
        """Return the values of rows by their addresses, in their order."""
        dataset = self.location.open(self.version)
        kind = dataset.schema.field(self.column).type
        distinct, inverse = np.unique(addresses, return_inverse=True)
        version = VersionRows(dataset, None, (self.column,))
        parts = [pa.array([], kind)]
        numbers, offsets, _ = split_by_fragment(distinct)
        for number, within in zip(numbers, offsets, strict=True):
            positions = version.positions(number, within.astype(np.uint32))
            parts += take_rows(dataset, number, [self.column], positions).column(0).chunks
        return pa.concat_arrays(parts).take(pa.array(inverse))


@dataclass(frozen=True, slots=True)
class ViewColumn:
    """A column of a view that code computes: see `ColumnCode`."""

    function: ColumnFunction
    reusable: ReusableValues | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.function.inputs

    def compute(self, rows: pa.RecordBatch, counts: ColumnCounts) -> pa.Array:
        """Return a value for each row. Raises RefusedError."""
        inputs = rows.select(list(self.inputs))
        if not self.reusable:
            return self._call(inputs, counts)
        found, values = self.reusable.find(inputs.columns)
        counts.reused += len(found)
        missing = np.setdiff1d(np.arange(rows.num_rows), found, assume_unique=True)
        if not len(missing):
            return values
        computed = self._call(inputs.take(pa.array(missing)), counts)
        order = np.argsort(np.concatenate([found, missing]), kind="stable")
        return pa.concat_arrays([values, computed]).take(pa.array(order))

    def _call(self, inputs: pa.RecordBatch, counts: ColumnCounts) -> pa.Array:
        result = self.function.compute(inputs, self.function.outputs)
        counts.computed += inputs.num_rows - result.failed
        counts.failed += result.failed
        return result.columns[0]
