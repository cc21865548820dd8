"""Arrow bodies as the API passes them to operations, without HTTP."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.api.bodies.uploads import MemoryBody

if TYPE_CHECKING:
    from collections.abc import Iterator


def small(table: pa.Table, compression: str | None = None) -> MemoryBody:
    """Return a body that is in memory."""
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return MemoryBody(sink.getvalue())


class Streamed:
    """A body that streams in, and may break off before its end."""

    size = None

    def __init__(self, table: pa.Table, breaks_off: bool = False) -> None:
        self._table = table
        self._breaks_off = breaks_off
        self.failure: BaseException | None = None

    def reader(self) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self._table.schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        yield from self._table.to_batches(max_chunksize=1000)
        if self._breaks_off:
            self.failure = InvalidInputError("The connection closed before the body was complete.")
            raise self.failure


def rows(count: int, start: int = 0) -> pa.Table:
    """Return rows with a key, a text and a vector."""
    keys = range(start, start + count)
    values = np.arange(start * 4, (start + count) * 4, dtype=np.float32)
    return pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "name": pa.array([f"n{key}" for key in keys], pa.string()),
            "v": pa.FixedSizeListArray.from_arrays(pa.array(values), 4),
        }
    )
