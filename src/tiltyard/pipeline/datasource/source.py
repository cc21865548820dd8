"""The data source of Spark: what reads and writes a table for `format("tiltyard")`, in batches and as streams.

Filters are an option, without pushdown: PySpark 4.3 keeps pushed filters on the shared source, so that a second query
on the same DataFrame would silently be filtered by the first one's filter.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.datasource.changes import ChangesReader, ChangesStreamReader, PinnedChanges, pin_changes
from tiltyard.pipeline.datasource.options import DataSourceOptions
from tiltyard.pipeline.datasource.reader import PinnedReader, pin_table
from tiltyard.pipeline.datasource.spark_types import spark_schema
from tiltyard.pipeline.datasource.streaming import StreamReader, StreamWriter
from tiltyard.pipeline.datasource.writer import TableWriter
from tiltyard.pipeline.spark_tasks import freeze_imports

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tiltyard.pipeline.datasource.reader import PinnedTable


class TiltyardSource(DataSource):
    """A table, by the options `uri` and `table`. The version is chosen when the DataFrame is created, and stays."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._pinned: PinnedTable | None = None
        self._changes: PinnedChanges | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(…)`."""
        return "tiltyard"

    def schema(self) -> StructType:
        """Return the columns. Raises RefusedError for a type that Spark lacks, and for a table without columns.

        Spark does not call this where the caller sets the columns (`spark.read.schema(…)`).
        """
        if self._options().reads_changes:
            return spark_schema(self._pin_changes().schema)
        table = self._pin()
        if table.schema is None:
            raise RefusedError(
                f"{self._options().table} is only declared, and has no columns yet: write to it first, or say which "
                "columns it will have (spark.read.schema)."
            )
        columns = spark_schema(table.schema)
        freeze_imports("schema")
        return columns

    def reader(self, schema: StructType) -> PinnedReader | ChangesReader:
        """Return a reader of the pinned version, or of the changes up to it."""
        if self._options().reads_changes:
            return ChangesReader(self._pin_changes(), schema)
        reader = PinnedReader(self._pin(), schema)
        freeze_imports("reader")
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        """Return a writer that commits all rows at once."""
        return TableWriter(self._options(), schema, overwrite)

    def streamReader(self, schema: StructType) -> StreamReader | ChangesStreamReader:  # noqa: N802  # Spark's name
        """Return a stream reader of the rows that versions append, or of all changes."""
        if self._options().reads_changes:
            return ChangesStreamReader(self._pin_changes(), schema)
        return StreamReader(self._options(), self._pin(), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  # Spark's name
        """Return a stream writer that appends or upserts each batch once."""
        return StreamWriter(self._options(), schema, overwrite)

    def _options(self) -> DataSourceOptions:
        return DataSourceOptions.parse(self.options)

    def _pin(self) -> PinnedTable:
        self._pinned = self._pinned or pin_table(self._options())
        return self._pinned

    def _pin_changes(self) -> PinnedChanges:
        self._changes = self._changes or pin_changes(self._options())
        return self._changes
