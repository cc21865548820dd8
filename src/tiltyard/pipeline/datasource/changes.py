"""Read a table's change feed in Spark: the driver plans, tasks read the changed rows; in batch, and as a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from tiltyard.change_feed.planning import change_schema, plan_changes, plan_rows
from tiltyard.change_feed.reader import read_changes
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.datasource.reader import MAX_PARTITIONS, EmptyPartition
from tiltyard.pipeline.datasource.spark_types import batch_schema, cast_for_spark
from tiltyard.pipeline.spark_tasks import freeze_imports, group_neighbors
from tiltyard.pipeline.table_location import TableLocation

if TYPE_CHECKING:
    import lance
    from pyspark.sql.types import StructType

    from tiltyard.change_feed.groups import ChangeGroup, ChangePlan
    from tiltyard.pipeline.datasource.options import DataSourceOptions

_MIN_PARTITION_ROWS = 16_384
"""Rows that a task reads at least: starting one takes longer."""


@dataclass(frozen=True, slots=True)
class PinnedChanges:
    """The feed that a query reads; `since` is None where no option says so, and `until` in a stream."""

    location: TableLocation
    branch: str | None
    since: int | None
    until: int | None
    newest: int
    schema: pa.Schema
    columns: tuple[str, ...]
    on: tuple[str, ...]

    def open(self, version: int | None) -> lance.LanceDataset:
        """Open a version on storage."""
        return self.location.open(version, self.branch)

    def plan(self, since: int, until: int) -> ChangePlan:
        """Plan the changes between two versions."""
        return plan_changes(self.open(until), since, columns=self.columns, on=self.on, branch=self.branch)


@dataclass(frozen=True)
class ChangePartition(InputPartition):
    """Groups of changed rows that one task reads."""

    groups: tuple[ChangeGroup, ...]


def pin_changes(options: DataSourceOptions) -> PinnedChanges:
    """Resolve the versions between which changes are read, their columns, and the key.

    Raises RefusedError, TableNotFoundError, InvalidTableStateError, TableTagNotFoundError.
    """
    # Only planning needs the namespace client, whose import takes a second: tasks do not import it.
    from tiltyard.pipeline.catalog_client import connection, table  # noqa: PLC0415
    from tiltyard.pipeline.table_changes import declared_key, resolve_version  # noqa: PLC0415

    catalog_table = table(connection(options.uri, options.properties, options.storage), options.table)
    since, until = (
        None if value is None else resolve_version(catalog_table, value, options.branch)
        for value in (options.version_of("since"), options.version_of("until"))
    )
    dataset = catalog_table.dataset(until, options.branch)
    columns, on = options.names("columns"), options.names("on")
    schema = change_schema(dataset, columns)
    return PinnedChanges(
        catalog_table.location(),
        options.branch,
        since,
        until,
        int(dataset.version),
        schema,
        tuple(dataset.schema.names if columns is None else columns),
        declared_key(catalog_table, dataset) if on is None else tuple(on),
    )


class ChangesReader(DataSourceReader):
    """Reads the changes between two versions."""

    def __init__(self, source: PinnedChanges, schema: StructType) -> None:
        if source.since is None:
            raise RefusedError("Set the option since to the version after which changes are read: 0 for all.")
        self._source = source
        self._since = source.since
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return partitions of similar row counts, in the order of versions."""
        return _partition(self._source.plan(self._since, self._source.newest)) or [EmptyPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a partition. Raises RefusedError for a value that Spark's type cannot hold."""
        return _read(self._source, self._schema, partition)


class ChangesStreamReader(DataSourceStreamReader):
    """Reads the changes that versions make. An offset is a version; before the first one, all rows are insertions."""

    def __init__(self, source: PinnedChanges, schema: StructType) -> None:
        if source.until is not None:
            raise RefusedError("The option until has no part in a stream, which reads on.")
        self._source = source
        self._schema = schema

    def initialOffset(self) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Begin after the version of the option `since`; without it, with all rows."""
        return {"version": self._source.since or 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802  # Spark's name
        """Return the newest version."""
        return {"version": int(self._source.open(None).version)}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the changes after one version and up to another."""
        source = self._source
        if start["version"]:
            return _partition(source.plan(start["version"], end["version"]))
        return _partition(plan_rows(source.open(end["version"]), columns=source.columns, branch=source.branch))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a partition. Runs in a task."""
        return _read(self._source, self._schema, partition)


def _partition(plan: ChangePlan) -> list[InputPartition]:
    """Group neighbouring groups of rows into partitions of similar row counts."""
    total = sum(group.rows for group in plan.groups)
    count = max(1, min(MAX_PARTITIONS, total // _MIN_PARTITION_ROWS))
    parts = group_neighbors(((group, group.rows) for group in plan.groups), count)
    return [ChangePartition(part) for part in parts]


def _read(source: PinnedChanges, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, ChangePartition):
        return
    batches = read_changes(partition.groups, source.schema, source.open)
    yield from cast_for_spark(batches, batch_schema(schema))
    freeze_imports("read")
