"""Read a complete Arrow body of a client: the one place that gives a client's bytes to pyarrow's readers.

`tests/unit/test_client_arrow.py` holds that. Uploads that are read as they come (`api/bodies/uploads`) pass the same
checks.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tiltyard.runtime.client_arrow.decoded_size import check_decoded_size, encoded_columns
from tiltyard.runtime.client_arrow.decompression_guard import ALLOWED_BYTES, MAX_RATIO, check_expansion

TRAILING_BYTES = "bytes follow the end of the stream"


def read_table(
    data: bytes, *, is_file: bool = False, allowed_bytes: int = ALLOWED_BYTES, max_ratio: int = MAX_RATIO
) -> pa.Table:
    """Read a body in the stream format, or the file format, that may become so many bytes and so many times larger.

    Raises ValueError, OSError, pa.ArrowException.
    """
    check_expansion(data, is_file=is_file, allowed_bytes=allowed_bytes, max_ratio=max_ratio)
    source = pa.BufferReader(data)
    table = (pa.ipc.open_file if is_file else pa.ipc.open_stream)(source).read_all()
    if not is_file and source.tell() != len(data):
        raise ValueError(TRAILING_BYTES)
    table.validate(full=True)
    check_decoded_size(table.to_batches(), encoded_columns(table.schema), len(data))
    return table


def read_schema(data: bytes) -> pa.Schema:
    """Read the schema that a stream begins with, and nothing behind it.

    Raises pa.ArrowException, OSError, ValueError.
    """
    return pa.ipc.open_stream(data).schema


def to_ipc(rows: pa.RecordBatch | pa.Table) -> pa.Buffer:
    """Return rows as an IPC stream, with their schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    return sink.getvalue()


def slice_batch(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """Slice a batch so that each slice has so many bytes at most; a row that has more is a slice by itself."""
    rows = max(1, batch.num_rows * most_bytes // max(1, batch.nbytes))
    if rows >= batch.num_rows:
        yield batch
        return
    for first in range(0, batch.num_rows, rows):
        yield batch.slice(first, rows)
