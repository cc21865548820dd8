"""Read rows of a split by their numbers: from the files of the source's version, wherever the process is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tiltyard.lake.errors import naming
from tiltyard.model.columns.blob_columns import is_blob
from tiltyard.pipeline import catalog_client

if TYPE_CHECKING:
    import lance
    from numpy.typing import NDArray

    from tiltyard.pipeline.table_location import CatalogConnection

MAX_NUMBERS_IN_MEMORY = 1 << 24
"""Rows of a split whose offsets are held in memory (128 MB); those of a larger one are read with each block of rows."""
PIECE_ROWS = 4096
"""Rows of a call of Lance: more of 1 KB in one cost twice the processor time, for memory that is new each time."""
_SAMPLED_ROWS = 64


@dataclass(frozen=True, slots=True)
class RowReader:
    """The rows of a split: those of the set's table from `first` on, `count` of them. It can be pickled."""

    catalog: CatalogConnection
    table: tuple[str, ...]
    table_version: int
    source: tuple[str, ...]
    source_version: int
    first: int
    count: int

    def open(self, columns: Sequence[str]) -> OpenSplit:
        """Open the files. Raises TableNotFoundError, TableVersionNotFoundError, PermissionDeniedError."""
        source = catalog_client.table(self.catalog, self.source).dataset(self.source_version)
        own = catalog_client.table(self.catalog, self.table).dataset(self.table_version)
        numbers = None
        if self.count <= MAX_NUMBERS_IN_MEMORY:
            scanned = own.scanner(columns=["row"], offset=self.first, limit=self.count)
            numbers = scanned.to_table()["row"].to_numpy()
        return OpenSplit(source, tuple(columns), own, self.first, numbers)


@dataclass(frozen=True, slots=True)
class OpenSplit:
    """A split whose rows are read; `numbers` are the offsets of all in the source, None where they are too many."""

    source: lance.LanceDataset
    columns: tuple[str, ...]
    table: lance.LanceDataset
    first: int
    numbers: NDArray[np.uint64] | None

    def take(self, rows: NDArray[np.int64]) -> pa.Table:
        """Return rows of the split by their numbers, which ascend."""
        if self.numbers is not None:
            offsets = self.numbers[rows]
        else:
            offsets = self.table.take(pa.array(self.first + rows), ["row"])["row"].to_numpy()
        pieces = [offsets[start : start + PIECE_ROWS] for start in range(0, len(offsets), PIECE_ROWS)]
        taken = [take_rows(self.source, piece, self.columns) for piece in pieces]
        return pa.concat_tables(taken).combine_chunks()


def take_rows(dataset: lance.LanceDataset, offsets: NDArray[np.uint64], columns: Sequence[str]) -> pa.Table:
    """Return columns of rows by their offsets, which ascend; of blobs their bytes."""
    blobs = [name for name in columns if is_blob(dataset.schema.field(name))]
    plain = [name for name in columns if name not in blobs]
    indices = pa.array(offsets)
    with naming("columns"):
        table = dataset.take(indices, plain) if plain else None
        values = {
            name: pa.array(
                [data for _, data in dataset.read_blobs(name, indices=indices, preserve_order=True)], pa.large_binary()
            )
            for name in blobs
        }
    return pa.table({name: values[name] if name in values else table[name] for name in columns})  # type: ignore[index]  # there is one


def row_bytes(dataset: lance.LanceDataset, columns: Sequence[str] | None, offsets: NDArray[np.uint64]) -> int:
    """Return how many bytes a row has in memory, by some rows from all over."""
    chosen = np.unique(offsets[np.linspace(0, len(offsets) - 1, _SAMPLED_ROWS).astype(np.int64)])
    size: int = take_rows(dataset, chosen, columns or dataset.schema.names).nbytes
    return max(1, size // len(chosen))
