"""Read a table in Spark: the driver pins a version and groups its fragments, tasks scan them with pylance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tiltyard.model.columns.blob_columns import check_no_blobs
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.datasource.spark_types import batch_schema, cast_for_spark
from tiltyard.pipeline.spark_tasks import freeze_imports, group_neighbors
from tiltyard.pipeline.table_location import TableLocation, scan_fragments

if TYPE_CHECKING:
    import lance
    from pyspark.sql.types import StructType

    from tiltyard.pipeline.datasource.options import DataSourceOptions

MAX_PARTITIONS = 32
MAX_BATCH_ROWS, MIN_BATCH_ROWS, BATCH_BYTES = 65_536, 512, 8 << 20
PARTITION_BYTES = 8 << 20
"""Minimum bytes of a partition: starting a Spark task takes longer than reading so much."""

_DEFAULT_VALUE_BYTES = 64
"""Assumed bytes of a value of variable width."""


@dataclass(frozen=True, slots=True)
class PinnedTable:
    """A version of a table and the query on it; `groups` are fragments, a partition each.

    A table that is only declared has the version 0, no schema, and no groups.
    """

    location: TableLocation
    version: int
    branch: str | None
    schema: pa.Schema | None
    scan: Mapping[str, Any]
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class FragmentGroup(InputPartition):
    """A partition: fragments of a version; () is the whole table, for a search."""

    version: int
    fragments: tuple[int, ...]


class EmptyPartition(InputPartition):
    """The only partition of a table without fragments: given none, Spark would add a default one."""


def pin_table(options: DataSourceOptions) -> PinnedTable:
    """Resolve the version to read, its columns and partitions.

    A table that is only declared can be read, unless a version of it is requested. Raises RefusedError,
    TableNotFoundError, InvalidTableStateError.
    """
    # Only planning needs the namespace client, whose import takes a second: tasks do not import it.
    from lance_namespace.errors import InvalidTableStateError  # noqa: PLC0415

    from tiltyard.pipeline.catalog_client import connection, table  # noqa: PLC0415

    catalog_table = table(connection(options.uri, options.properties, options.storage), options.table)
    try:
        dataset = catalog_table.dataset(options.version, options.branch)
    except InvalidTableStateError:
        if options.version is not None or options.branch is not None or catalog_table.latest_version():
            raise
        scan = {**options.scanner_arguments(), "batch_size": options.number("batch_rows") or MIN_BATCH_ROWS}
        return PinnedTable(catalog_table.location(), 0, None, None, scan, ())
    return _pin_dataset(options, dataset, catalog_table.location())


def _pin_dataset(options: DataSourceOptions, dataset: lance.LanceDataset, location: TableLocation) -> PinnedTable:
    columns = options.names("columns")
    for name in columns or []:
        if name not in dataset.schema.names and not name.startswith("_"):
            raise RefusedError(f"{options.table} has no column '{name}'; it has {', '.join(dataset.schema.names)}.")
    check_no_blobs(dataset.schema, columns)
    scan = options.scanner_arguments()
    if columns is not None:
        scan["columns"] = columns
    schema = dataset.scanner(**scan).projected_schema
    batch_rows = options.number("batch_rows") or _batch_rows(schema)
    sizes = [(part.fragment_id, part.metadata.num_rows) for part in dataset.get_fragments()]
    groups = (
        ((),)
        if options.scans_whole_table
        else group_neighbors(sizes, options.number("partitions") or _partition_count(schema, sizes))
    )
    return PinnedTable(
        location, int(dataset.version), options.branch, schema, {**scan, "batch_size": batch_rows}, tuple(groups)
    )


class PinnedReader(DataSourceReader):
    """Scans the fragments of the pinned version."""

    def __init__(self, source: PinnedTable, schema: StructType) -> None:
        self._source = source
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for each group of fragments; an empty one for a table without fragments."""
        return [FragmentGroup(self._source.version, group) for group in self._source.groups] or [EmptyPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Raises RefusedError for a value that Spark's type cannot hold."""
        if isinstance(partition, EmptyPartition):
            return iter(())
        assert isinstance(partition, FragmentGroup)
        return read_fragment_group(self._source, self._schema, partition)


def read_fragment_group(source: PinnedTable, schema: StructType, group: FragmentGroup) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some fragments, cast for Spark. Runs in a task."""
    dataset = source.location.open(group.version, source.branch)
    batches = (
        scan_fragments(dataset, group.fragments, **source.scan)
        if group.fragments
        else dataset.scanner(**source.scan).to_batches()
    )
    yield from cast_for_spark(batches, batch_schema(schema))
    freeze_imports("read")


def _partition_count(schema: pa.Schema, sizes: Sequence[tuple[int, int]]) -> int:
    """Return the number of partitions by the bytes to read."""
    size = sum(rows for _, rows in sizes) * sum(_value_bytes(field.type) for field in schema)
    return max(1, min(MAX_PARTITIONS, -(-size // PARTITION_BYTES)))


def _batch_rows(schema: pa.Schema) -> int:
    """Return the rows of a batch of a few megabytes."""
    width = sum(_value_bytes(field.type) for field in schema)
    return max(MIN_BATCH_ROWS, min(MAX_BATCH_ROWS, BATCH_BYTES // max(1, width)))


def _value_bytes(dtype: pa.DataType) -> int:
    if pa.types.is_fixed_size_list(dtype):
        return int(dtype.list_size) * _value_bytes(dtype.value_type)
    try:
        return max(1, int(dtype.bit_width) // 8)
    except ValueError:
        return _DEFAULT_VALUE_BYTES
