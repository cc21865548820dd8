"""Streams: each batch is appended once, and versions are read as they append.

A batch carries `tiltyard.run = stream-NAME-BATCH` in its Lance transaction. A query that is started again commits its
last batch again: the transaction is found, and nothing is added. NAME is the option `stream`, the same for all starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance import LanceOperation
from pyspark.sql.datasource import (
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from tiltyard.model.table_history import read_transaction
from tiltyard.pipeline.datasource.reader import Group, Pinned, grouped, read_group
from tiltyard.pipeline.datasource.writer import Message, TableWriter
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.version_diff import diff_fragments, fragments_by_id

if TYPE_CHECKING:
    import lance
    from pyspark.sql.types import StructType

    from tiltyard.pipeline.datasource.options import Options


class StreamWriter(DataSourceStreamArrowWriter):
    """Appends batches, or upserts them. `overwrite` (complete mode) puts each in the place of all rows."""

    def __init__(self, options: Options, schema: StructType, overwrite: bool) -> None:
        name = options.given.get("stream")
        if not name:
            raise RefusedError("Set the option 'stream' to a name of this query's own: its batches are told by it.")
        self._name = name
        self._writer = TableWriter(options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Write a partition of a batch. Runs in a task."""
        return self._writer.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Make a batch visible, unless it is already."""
        self._writer.commit_batch(messages, self._name, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # the same
        """Leave nothing of a batch that failed."""
        self._writer.abort(messages)


class StreamReader(DataSourceStreamReader):
    """Reads the rows of versions that append. An offset is a version.

    A version that changes or removes rows, or replaces them all, ends the query with an error: start it anew.
    """

    def __init__(self, options: Options, source: Pinned, schema: StructType) -> None:
        self._options = options
        self._source = source
        self._schema = schema

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Begin with all rows there are; with the option `version`, after that version."""
        return {"version": self._options.number("version") or 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802  # Spark's name
        """The newest version; 0 while the table is only declared."""
        try:
            return {"version": int(self._dataset().version)}
        except (OSError, ValueError) as error:
            if self._source.version or "not found" not in str(error).lower():
                raise
            return {"version": 0}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """What was appended after one version and up to another, each version's rows as they were in it."""
        if not end["version"]:
            return []
        if not start["version"]:
            return self._groups(self._dataset(end["version"]), ())
        found: list[InputPartition] = []
        for version in range(start["version"] + 1, end["version"] + 1):
            dataset, before = self._dataset(version), self._dataset(version - 1)
            transaction = read_transaction(dataset, version)
            operation = None if transaction is None else transaction.operation
            changed = diff_fragments(before, dataset)
            if isinstance(operation, LanceOperation.Append):
                found += self._groups(dataset, list(fragments_by_id(before)))
            elif (changed.changed or changed.removed) and not isinstance(operation, LanceOperation.Rewrite):
                raise RefusedError(
                    f"Version {version} of {self._options.table} changes rows, and a stream reads appends only: start "
                    "the query anew, with another checkpoint."
                )
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of a partition. Runs in a task."""
        assert isinstance(partition, Group)
        return read_group(self._source, self._schema, partition)

    def _dataset(self, version: int | None = None) -> lance.LanceDataset:
        return self._source.location.open(version, self._source.branch)

    @staticmethod
    def _groups(dataset: lance.LanceDataset, without: Sequence[int]) -> list[InputPartition]:
        sizes = [(part.fragment_id, part.metadata.num_rows) for part in dataset.get_fragments()]
        new = [one for one in sizes if one[0] not in frozenset(without)]
        return [Group(int(dataset.version), group) for group in grouped(new, 32)] if new else []
