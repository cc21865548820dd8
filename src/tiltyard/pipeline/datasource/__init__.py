"""Tables in Spark: `spark.read.format("tiltyard")`, `df.write.format("tiltyard")`, and both as streams.

Filters are an option, and never pushed down: PySpark 4.3 keeps what was pushed on the shared source, so that a second
query on the same DataFrame would silently be filtered by the first one's filter.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from tiltyard.pipeline.datasource.options import Options
from tiltyard.pipeline.datasource.reader import TableReader, pinned
from tiltyard.pipeline.datasource.spark_types import spark_schema
from tiltyard.pipeline.datasource.streaming import StreamReader, StreamWriter
from tiltyard.pipeline.datasource.writer import TableWriter
from tiltyard.pipeline.task_errors import RefusedError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from tiltyard.pipeline.datasource.reader import Pinned


class TiltyardSource(DataSource):
    """A table, by the options `uri` and `table`. The version is chosen when the DataFrame is made, and stays."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._pinned: Pinned | None = None

    @classmethod
    def name(cls) -> str:
        """What stands in `format(…)`."""
        return "tiltyard"

    def schema(self) -> StructType:
        """The columns that are read. Raises RefusedError for a type that Spark lacks, and for a table without columns.

        Spark does not call this where the caller says the columns (`spark.read.schema(…)`).
        """
        found = self._pin()
        if found.schema is None:
            raise RefusedError(
                f"{self._options().table} is only declared, and has no columns yet: write to it first, or say which "
                "columns it will have (spark.read.schema)."
            )
        return spark_schema(found.schema)

    def reader(self, schema: StructType) -> TableReader:
        """Read a version."""
        return TableReader(self._pin(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:
        """Write rows with one commit."""
        return TableWriter(self._options(), schema, overwrite)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802  # Spark's name
        """Read what versions append."""
        return StreamReader(self._options(), self._pin(), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  # Spark's name
        """Append or upsert each batch once."""
        return StreamWriter(self._options(), schema, overwrite)

    def _options(self) -> Options:
        return Options.checked(self.options)

    def _pin(self) -> Pinned:
        self._pinned = self._pinned or pinned(self._options())
        return self._pinned
