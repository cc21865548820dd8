"""Stream tables in Spark: each written batch is appended once, and reads follow the versions that append.

A batch carries `tiltyard.run = stream-NAME-BATCH` in its Lance transaction. A restarted query commits its last batch
again: the transaction is found, and nothing is added. NAME is the option `stream`, the same for all starts.
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

from tiltyard.change_feed.table_history import fragments_by_id, read_transaction
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.datasource.reader import FragmentGroup, PinnedTable, read_fragment_group
from tiltyard.pipeline.datasource.writer import TableWriter, WrittenPartition
from tiltyard.pipeline.spark_tasks import group_neighbors
from tiltyard.pipeline.version_diff import diff_fragments

if TYPE_CHECKING:
    import lance
    from pyspark.sql.types import StructType

    from tiltyard.pipeline.datasource.options import DataSourceOptions


class StreamWriter(DataSourceStreamArrowWriter):
    """Appends batches, or upserts them. With `overwrite` (complete mode) each batch replaces all rows."""

    def __init__(self, options: DataSourceOptions, schema: StructType, overwrite: bool) -> None:
        name = options.values.get("stream")
        if not name:
            raise RefusedError("Set the option 'stream' to a name of this query's own, which identifies its batches.")
        self._name = name
        self._writer = TableWriter(options, schema, overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPartition:
        """Write a partition of a batch. Runs in a task."""
        return self._writer.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Commit a batch, unless it is committed already."""
        self._writer.commit_batch(messages, self._name, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # the same
        """Delete the files of a batch that failed."""
        self._writer.abort(messages)


class StreamReader(DataSourceStreamReader):
    """Reads the rows that versions append. An offset is a version.

    A version that changes, removes or replaces rows ends the query with an error: it has to be started anew.
    """

    def __init__(self, options: DataSourceOptions, source: PinnedTable, schema: StructType) -> None:
        self._options = options
        self._source = source
        self._schema = schema

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Begin with all existing rows; with the option `version`, after that version."""
        return {"version": self._options.number("version") or 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Return the newest version; 0 while the table is only declared."""
        try:
            return {"version": int(self._dataset().version)}
        except (OSError, ValueError) as error:
            if self._source.version or "not found" not in str(error).lower():
                raise
            return {"version": 0}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return what was appended after one version and up to another, as it was in each version."""
        if not end["version"]:
            return []
        if not start["version"]:
            return self._groups(self._dataset(end["version"]), ())
        partitions: list[InputPartition] = []
        for version in range(start["version"] + 1, end["version"] + 1):
            dataset, before = self._dataset(version), self._dataset(version - 1)
            transaction = read_transaction(dataset, version)
            operation = None if transaction is None else transaction.operation
            changes = diff_fragments(before, dataset)
            if isinstance(operation, LanceOperation.Append):
                partitions += self._groups(dataset, list(fragments_by_id(before)))
            elif (changes.changed or changes.removed) and not isinstance(operation, LanceOperation.Rewrite):
                raise RefusedError(
                    f"Version {version} of {self._options.table} changes rows, and a stream reads appends only: start "
                    "the query anew, with another checkpoint."
                )
        return partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Runs in a task."""
        assert isinstance(partition, FragmentGroup)
        return read_fragment_group(self._source, self._schema, partition)

    def _dataset(self, version: int | None = None) -> lance.LanceDataset:
        return self._source.location.open(version, self._source.branch)

    @staticmethod
    def _groups(dataset: lance.LanceDataset, excluded: Sequence[int]) -> list[InputPartition]:
        sizes = [(fragment.fragment_id, fragment.metadata.num_rows) for fragment in dataset.get_fragments()]
        added = [size for size in sizes if size[0] not in frozenset(excluded)]
        return [FragmentGroup(int(dataset.version), group) for group in group_neighbors(added, 32)] if added else []
