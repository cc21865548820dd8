"""Arrow data of a request or a response, between the wire and the operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa


class ArrowBody(Protocol):
    """Arrow data of a request: held in memory when small, streamed from the connection when large."""

    @property
    def size(self) -> int | None:
        """The size of the body in bytes if it is in memory (small bodies are), None while it is streamed."""

    @property
    def failure(self) -> BaseException | None:
        """The error by which reading failed, if it did: the response to the client, whatever Lance made of it."""

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader of the record batches; may be called once.

        Raises InvalidInputError if the bytes are no Arrow IPC stream or file; the reader raises it later, too, on a
        corrupt or half-sent stream. An empty body has an empty schema and no batches.
        """


@dataclass(frozen=True, slots=True)
class ArrowAnswer:
    """Record batches of a response: a list if all are in memory, else an iterator that is closed once they are sent."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]
