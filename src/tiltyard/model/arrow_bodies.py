"""Arrow on its way in and out, between the wire and the operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


class ArrowBody(Protocol):
    """Arrow data that a client sends: held in memory when small, read from the wire as it comes when large."""

    @property
    def size(self) -> int | None:
        """Bytes of the whole body if it is already here (small bodies are), None while it streams in."""

    @property
    def failure(self) -> BaseException | None:
        """Why reading failed, if it did: the answer to the client, whatever the reader's reader made of it."""

    def reader(self) -> pa.RecordBatchReader:
        """The record batches; may be called once.

        Raises InvalidInputError if the bytes are no Arrow IPC stream or file; the reader raises it later, too, on a
        corrupt or half-sent stream. An empty body has an empty schema and no batches.
        """


@dataclass(frozen=True, slots=True)
class ArrowAnswer:
    """Record batches for a client: a list if all are here, else consumed as they are sent, and closed at the end."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]
