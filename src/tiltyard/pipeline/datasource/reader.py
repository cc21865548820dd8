"""Reading a table: the driver picks a version and groups its fragments, tasks scan them with pylance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tiltyard.pipeline.datasource.spark_types import batch_schema, for_spark
from tiltyard.pipeline.spark_tasks import freeze_imports
from tiltyard.pipeline.table_location import TableLocation, check_no_blobs, scan_fragments
from tiltyard.pipeline.task_errors import RefusedError

if TYPE_CHECKING:
    import lance
    from pyspark.sql.types import StructType

    from tiltyard.pipeline.datasource.options import Options

PARTITIONS = 32
MOST_BATCH_ROWS, LEAST_BATCH_ROWS, BATCH_BYTES = 65_536, 512, 8 << 20
PARTITION_BYTES = 8 << 20
"""What one partition reads, if that makes fewer: a task takes Spark longer to start than so much takes to read."""

_UNKNOWN_WIDTH = 64
"""Bytes of a value whose type does not tell."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """A version of a table and what is asked of it; `groups` are fragments, a partition each.

    A table that is only declared has the version 0, no schema, and no groups.
    """

    location: TableLocation
    version: int
    branch: str | None
    schema: pa.Schema | None
    scan: Mapping[str, Any]
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Group(InputPartition):
    """A partition: fragments of a version; () is the table as one, for a search."""

    version: int
    fragments: tuple[int, ...]


class NoRows(InputPartition):
    """The one partition of a table without fragments: Spark makes one of its own where it is given none."""


def pinned(options: Options) -> Pinned:
    """The version to read, its columns and partitions. Raises RefusedError, TableNotFoundError, InvalidTableStateError.

    A table that is only declared can be read, too, unless a version of it is asked for.
    """
    # Planning alone needs the namespace client, whose import takes a second: tasks do without.
    from lance_namespace.errors import InvalidTableStateError  # noqa: PLC0415

    from tiltyard.pipeline.catalog_client import connection, table  # noqa: PLC0415

    found = table(connection(options.uri, options.properties, options.storage), options.table)
    try:
        dataset = found.dataset(options.version, options.branch)
    except InvalidTableStateError:
        if options.version is not None or options.branch is not None or found.latest_version():
            raise
        scan = {**options.scanned(), "batch_size": options.number("batch_rows") or LEAST_BATCH_ROWS}
        return Pinned(found.location(), 0, None, None, scan, ())
    return _pinned(options, dataset, found.location())


def _pinned(options: Options, dataset: lance.LanceDataset, location: TableLocation) -> Pinned:
    columns = options.names("columns")
    for name in columns or []:
        if name not in dataset.schema.names and not name.startswith("_"):
            raise RefusedError(f"{options.table} has no column '{name}'; it has {', '.join(dataset.schema.names)}.")
    check_no_blobs(dataset.schema, columns)
    scan = options.scanned()
    if columns is not None:
        scan["columns"] = columns
    schema = dataset.scanner(**scan).projected_schema
    batch_rows = options.number("batch_rows") or _batch_rows(schema)
    sizes = [(part.fragment_id, part.metadata.num_rows) for part in dataset.get_fragments()]
    groups = ((),) if options.whole else grouped(sizes, options.number("partitions") or _partitions(schema, sizes))
    return Pinned(
        location, int(dataset.version), options.branch, schema, {**scan, "batch_size": batch_rows}, tuple(groups)
    )


def grouped(sizes: Sequence[tuple[int, int]], count: int) -> list[tuple[int, ...]]:
    """Neighbouring fragments, given with their rows, in so many groups of about the same rows, or fewer."""
    total = sum(rows for _, rows in sizes)
    groups: list[list[int]] = []
    seen = 0
    for number, rows in sizes:
        share = min(count - 1, seen * count // max(1, total))
        if not groups or share >= len(groups):
            groups.append([])
        groups[-1].append(number)
        seen += rows
    return [tuple(group) for group in groups]


class TableReader(DataSourceReader):
    """Scans fragments of the pinned version."""

    def __init__(self, source: Pinned, schema: StructType) -> None:
        self._source = source
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """A partition for each group of fragments; one without rows where there are none."""
        return [Group(self._source.version, group) for group in self._source.groups] or [NoRows(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of a partition. Raises RefusedError for a value that Spark's type cannot hold."""
        if isinstance(partition, NoRows):
            return iter(())
        assert isinstance(partition, Group)
        return read_group(self._source, self._schema, partition)


def read_group(source: Pinned, schema: StructType, group: Group) -> Iterator[pa.RecordBatch]:
    """Rows of some fragments, as Spark takes them. Runs in a task."""
    dataset = source.location.open(group.version, source.branch)
    found = (
        scan_fragments(dataset, group.fragments, **source.scan)
        if group.fragments
        else dataset.scanner(**source.scan).to_batches()
    )
    yield from for_spark(found, batch_schema(schema))
    freeze_imports("read")


def _partitions(schema: pa.Schema, sizes: Sequence[tuple[int, int]]) -> int:
    """As many partitions as there is work for."""
    size = sum(rows for _, rows in sizes) * sum(_width(field.type) for field in schema)
    return max(1, min(PARTITIONS, -(-size // PARTITION_BYTES)))


def _batch_rows(schema: pa.Schema) -> int:
    """As many rows as make a batch of a few megabytes."""
    width = sum(_width(field.type) for field in schema)
    return max(LEAST_BATCH_ROWS, min(MOST_BATCH_ROWS, BATCH_BYTES // max(1, width)))


def _width(dtype: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(dtype):
        return int(dtype.list_size) * _width(dtype.value_type)
    try:
        return max(1, int(dtype.bit_width) // 8)
    except ValueError:
        return _UNKNOWN_WIDTH
