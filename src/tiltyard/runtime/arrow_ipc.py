"""Serialize rows as an Arrow IPC stream."""

from __future__ import annotations

import pyarrow as pa


def to_ipc(rows: pa.RecordBatch | pa.Table) -> pa.Buffer:
    """Return rows as an IPC stream, with their schema."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    return sink.getvalue()
