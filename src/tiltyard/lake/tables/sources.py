"""What rows come from: files by their path, DataFrames of Spark, Arrow and all that can be read as Arrow, databases."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.dataset
from lance_namespace.errors import InvalidInputError

from tiltyard.model.text.sql_text import quote_identifier

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

BATCH_ROWS = 8192
JDBC_PREFIX = "jdbc:"
_POSTGRESQL = "jdbc:postgresql:"
_DRIVERS = {
    "postgresql": "org.postgresql.Driver",
    "mysql": "com.mysql.cj.jdbc.Driver",
    "mariadb": "org.mariadb.jdbc.Driver",
    "sqlserver": "com.microsoft.sqlserver.jdbc.SQLServerDriver",
    "oracle": "oracle.jdbc.OracleDriver",
}
"""The classes of drivers, by the word behind `jdbc:`; the option `driver` names any other."""
_KINDS = (
    "a path or URI of files, a DataFrame of Spark, an Arrow table, reader or data set, a frame of pandas or polars, a "
    "data set of Hugging Face, a relation of DuckDB, a tiltyard.Jdbc, a table of a lake, rows as mappings (a list or a "
    "generator), or a mapping of columns"
)


class ArrowStream(Protocol):
    """What can be read as Arrow: tables and readers of Arrow, frames of polars, relations of DuckDB."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the stream, in a capsule, as Arrow's C interface has it."""


class ArrowDataset(Protocol):
    """A data set of Hugging Face (`datasets`)."""

    def with_format(self, type: str | None = None) -> Any:  # noqa: A002  # its own name
        """Return the data set in another format, such as `arrow`."""


@dataclass(frozen=True, slots=True)
class Jdbc:
    """A table or a query of a database that Spark reads by JDBC; the driver's jar is of Spark's own properties.

    Times are those of the database: a timestamp without a zone gets none (`preferTimestampNTZ`), and PostgreSQL's times
    and dates are read as text, since Spark takes them through the zone and the calendar of its JVM, where two of them
    may be one.

    `options` are those of Spark's data source `jdbc` (`partitionColumn`, `numPartitions`, `fetchsize`, `driver`, …).
    The password is passed on to Spark alone: it is no argument of a job, and in no message.
    """

    url: str
    table: str | None = None
    query: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def read(self, spark: SparkSession) -> DataFrame:
        """Return the rows as a DataFrame. Raises InvalidInputError."""
        if not self.url.startswith(JDBC_PREFIX):
            raise InvalidInputError(f"url is '{self.url}': write {JDBC_PREFIX}…, as the database's driver has it.")
        if (self.table is None) == (self.query is None):
            raise InvalidInputError("Give a Jdbc source either a table or a query.")
        values = {
            "url": self.url, "dbtable": self.table, "query": self.query, "user": self.user, "password": self.password
        }  # fmt: skip
        present = {name: value for name, value in values.items() if value is not None}
        reader = spark.read.format("jdbc").option("preferTimestampNTZ", "true")
        if driver := _DRIVERS.get(self.url.split(":")[1]):  # Spark finds no driver by itself in `spark.jars`
            reader = reader.option("driver", driver)
        reader = reader.options(**{**self.options, **present})
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415  # no types; an extra

        try:
            frame = reader.load()
            return self._read_times_as_text(reader, frame) if self.url.startswith(_POSTGRESQL) else frame
        except Py4JJavaError as error:
            raise self._describe(str(error.java_exception)) from None

    def _describe(self, text: str) -> InvalidInputError:
        """Return an error that says in a sentence why the database cannot be read; `text` is Java's own."""
        if "No suitable driver" in text or "ClassNotFoundException" in text:
            scheme = ":".join(self.url.split(":")[:2])
            return InvalidInputError(
                f"Spark has no driver for {scheme}: connect with conf={{'spark.jars': 'driver.jar'}} (or "
                "'spark.jars.packages'), and name its class by options={'driver': …} where Spark does not find it."
            )
        line = text.splitlines()[0]
        for secret in filter(None, (self.password, self.options.get("password"))):
            line = line.replace(secret, "…")
        return InvalidInputError(f"The database of this Jdbc source cannot be read: {line.partition(': ')[2] or line}")

    def _read_times_as_text(self, reader: DataFrameReader, frame: DataFrame) -> DataFrame:
        """Return the frame with times and dates as the database writes them; `time`, no type of Spark, stays text.

        Not of arrays, nor of the column by which Spark parts the rows, nor where the options name types themselves.
        """
        from pyspark.sql import functions as spark_functions  # noqa: PLC0415  # an extra: PySpark
        from pyspark.sql.types import DateType, TimestampNTZType, TimestampType  # noqa: PLC0415  # likewise

        options = {name.lower(): value for name, value in self.options.items()}
        fields = [
            column
            for column in frame.schema.fields
            if isinstance(column.dataType, DateType | TimestampType | TimestampNTZType)
            and column.name != options.get("partitioncolumn")
        ]
        if not fields or "customschema" in options:
            return frame
        types = ", ".join(f"{quote_identifier(column.name)} STRING" for column in fields)
        times = {
            column.name: spark_functions.col(quote_identifier(column.name)).cast(column.dataType)
            for column in fields
            if not column.metadata.get("logical_time_type")
        }
        return reader.option("customSchema", types).load().withColumns(times)


Source: TypeAlias = (
    "str | os.PathLike[str] | DataFrame | ArrowStream | ArrowDataset | pyarrow.dataset.Dataset | pd.DataFrame | Jdbc "
    "| Iterable[Mapping[str, Any]] | Iterable[pa.RecordBatch] | Mapping[str, Sequence[Any]]"
)
"""What `ingest`, `write` and `upsert` take."""


def path_of(source: Source) -> str | None:
    """Return the path or URI of a source of files; None for any other. Raises InvalidInputError for JDBC's URLs."""
    if not isinstance(source, str | os.PathLike):
        return None
    path = os.fspath(source)
    if path.startswith(JDBC_PREFIX):
        raise InvalidInputError(f"source is an address of JDBC: write tiltyard.Jdbc('{path}', table=…) or query=….")
    if not path:
        raise InvalidInputError(f"source is empty: it is {_KINDS}.")
    return path


def is_frame(source: Source) -> bool:
    """Return whether a source is a DataFrame of Spark, on Connect too."""
    return _is_of(source, "pyspark.sql", "DataFrame")


def open_stream(source: Any) -> pa.RecordBatchReader:
    """Return the rows of a source that is neither files nor Spark's, as they are read. Raises InvalidInputError."""
    if isinstance(source, pyarrow.dataset.Dataset):
        return source.scanner(batch_size=BATCH_ROWS).to_reader()
    if isinstance(source, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(source.schema, [source])
    if _is_of(source, "pandas", "DataFrame"):
        return _read_pandas(source)
    if _is_of(source, "polars", "LazyFrame"):
        source = source.collect()
    if hasattr(source, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(source)
    return _open_other_stream(source)


def _open_other_stream(source: Any) -> pa.RecordBatchReader:
    """Return the rows of a source without Arrow's own interface."""
    if _is_of(source, "datasets", "DatasetDict", "IterableDatasetDict"):
        raise InvalidInputError(f"source has several splits ({', '.join(source)}): give one of them, source['train'].")
    if hasattr(source, "with_format"):
        return _read_items(source.with_format("arrow").iter(batch_size=BATCH_ROWS))
    if hasattr(source, "fetch_record_batch"):  # DuckDB before its relations had Arrow's interface
        reader: pa.RecordBatchReader = source.fetch_record_batch(BATCH_ROWS)
        return reader
    if isinstance(source, Mapping):
        return _read_columns(source)
    if isinstance(source, list | tuple) and all(isinstance(row, Mapping) for row in source):
        return _read_mappings(source)
    if isinstance(source, Iterable) and not isinstance(source, str | bytes):
        return _read_items(iter(source))
    raise InvalidInputError(f"source is a {type(source).__name__}: it has to be {_KINDS}.")


def _read_pandas(frame: Any) -> pa.RecordBatchReader:
    """Read a frame of pandas; an index that has a name is a column, any other index is left out."""
    if any(name is not None for name in frame.index.names):
        frame = frame.reset_index()
    try:
        return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None).to_reader(BATCH_ROWS)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(f"source: Arrow has no type for a column of this frame: {error}") from error


def _read_columns(columns: Mapping[str, Any]) -> pa.RecordBatchReader:
    try:
        return pa.table(dict(columns)).to_reader(BATCH_ROWS)
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError) as error:
        raise InvalidInputError(f"source is a mapping, and not one of columns: {error}") from error


def _read_mappings(rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatchReader:
    if not rows:
        raise InvalidInputError("source is an empty list, which has no columns: give at least one row.")
    return _to_table(rows).to_reader(BATCH_ROWS)


def _to_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows with all columns that one of them has. Raises InvalidInputError for a column of several types."""
    names = list(dict.fromkeys(chain.from_iterable(rows)))
    columns: dict[str, pa.Array] = {}
    for name in names:
        try:
            columns[name] = pa.array([row.get(name) for row in rows])
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise InvalidInputError(f"source: the rows have no common type of '{name}': {error}") from error
    return pa.table(columns)


def _read_items(items: Iterator[Any]) -> pa.RecordBatchReader:
    """Read what an iterator yields: batches or tables, or rows as mappings, of one schema, that of the first ones.

    Raises InvalidInputError for anything else.
    """
    first = next(items, None)
    if isinstance(first, Mapping):
        return _read_rows(chain([first], items))
    if not isinstance(first, pa.RecordBatch | pa.Table):
        kind = "nothing" if first is None else type(first).__name__
        raise InvalidInputError(f"source yields {kind}: it has to be {_KINDS}.")

    def batches() -> Iterator[pa.RecordBatch]:
        yield from _to_batches(first)
        for item in items:
            yield from _to_batches(item)

    return pa.RecordBatchReader.from_batches(first.schema, batches())


def _read_rows(rows: Iterator[Any]) -> pa.RecordBatchReader:
    """Read rows as mappings as they come; those of the first batch say which columns there are, and of which types."""
    first = _to_table(_checked_rows(islice(rows, BATCH_ROWS)))
    schema = first.schema

    def batches() -> Iterator[pa.RecordBatch]:
        yield from first.to_batches()
        while part := _checked_rows(islice(rows, BATCH_ROWS)):
            table = _to_table(part)
            if unknown := [name for name in table.column_names if name not in schema.names]:
                raise InvalidInputError(
                    f"source yields the column '{unknown[0]}' after {BATCH_ROWS} rows without it: give the first row "
                    "all columns."
                )
            yield from _fit(table, schema).to_batches()

    return pa.RecordBatchReader.from_batches(schema, batches())


def _checked_rows(rows: Iterator[Any]) -> list[Mapping[str, Any]]:
    part = list(rows)
    if other := next((row for row in part if not isinstance(row, Mapping)), None):
        raise InvalidInputError(f"source yields a {type(other).__name__} among its rows.")
    return part


def _fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows in the columns and types of the first ones. Raises InvalidInputError where a value does not fit."""
    columns = []
    for each in schema:
        values = table[each.name] if each.name in table.column_names else pa.nulls(table.num_rows, each.type)
        try:
            columns.append(values.cast(each.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidInputError(
                f"source: '{each.name}' is {each.type} in the first {BATCH_ROWS} rows, and not later: {error}"
            ) from error
    return pa.table(columns, schema=schema)


def _to_batches(item: Any) -> list[pa.RecordBatch]:
    if isinstance(item, pa.Table):
        batches: list[pa.RecordBatch] = item.to_batches()
        return batches
    if isinstance(item, pa.RecordBatch):
        return [item]
    raise InvalidInputError(f"source yields a {type(item).__name__} among its batches.")


def _is_of(source: object, package: str, *names: str) -> bool:
    """Return whether a value is of a class of a package that need not be installed."""
    return any(
        kind.__name__ in names and (kind.__module__ == package or kind.__module__.startswith(f"{package}."))
        for kind in type(source).__mro__
    )
