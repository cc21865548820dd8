"""What a source of a stream hands to the table: rows in order, keys to delete, rows that cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from tiltyard.pipeline.sources.text_blocks import RejectedRow

SEQUENCE = "__stream_sequence"
"""The column of a batch that orders its rows and its deletes; it is not written. A table cannot have this column."""

Position = Mapping[str, int]
"""How far each part of a source was read: the next offset of a partition, the finished pieces of a file.

A newer position overrides an older one part by part, so a batch need only say what it has changed.
"""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """When a batch is complete: after so many rows or bytes, or so many seconds after its first row."""

    rows: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """Rows of a source, each with its SEQUENCE, and keys whose rows are to be deleted, with theirs.

    `position` has the parts of the source that the batch has advanced; `describe` names the place of a sequence number
    in the source. `rejected` are rows that could not be read, their reasons complete.
    """

    rows: Sequence[pa.RecordBatch]
    position: Position
    describe: Callable[[int], str]
    deletes: Sequence[pa.RecordBatch] = ()
    rejected: Sequence[RejectedRow] = field(default_factory=tuple)


class StreamSource(Protocol):
    """A source that is read from a position on. Its methods raise RefusedError, ServiceUnavailableError."""

    @property
    def position(self) -> Position:
        """Return the position behind the last batch; of a source that was opened just now, where it begins."""

    def read(self, schema: pa.Schema | None, limits: BatchLimits, check: Callable[[], None]) -> StreamBatch | None:
        """Return the next batch, in the types of the table where it exists; None if nothing has arrived.

        It advances the source. `check` is called while it waits, and ends the wait by raising.
        """

    def lag(self) -> int:
        """Return how much is there and was not read: messages of a topic, files of a folder."""

    def is_caught_up(self) -> bool:
        """Return whether all was read that was there when the source was opened."""

    def live_position(self, position: Position) -> Position:
        """Return a position without the parts that the source no longer has."""

    def close(self) -> None:
        """Release connections."""


def with_sequence(batch: pa.RecordBatch, numbers: pa.Array) -> pa.RecordBatch:
    """Return a batch with its sequence numbers as the last column."""
    fields = [*batch.schema.remove_metadata(), pa.field(SEQUENCE, pa.int64())]
    return pa.RecordBatch.from_arrays([*batch.columns, numbers], schema=pa.schema(fields))
