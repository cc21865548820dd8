"""Ingest and upsert jobs: the rows of files become rows of a table, by the write job (`writing.write_job`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal, Unpack

from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.jobs import ColumnNames, job
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import LazySession
from tiltyard.pipeline.table_location import CatalogConnection
from tiltyard.pipeline.writing.options import WriteJobOptions, WriteOptions
from tiltyard.pipeline.writing.row_sources import open_files
from tiltyard.pipeline.writing.write_job import write_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@job("ingest", lazy=True, creates=True)
def ingest(
    run: Run,
    catalog: CatalogConnection,
    spark: SparkSession | LazySession,
    source: Annotated[str, "A file, a folder or a pattern (data/*.parquet), local or on an object store."],
    table: Annotated[str, "The table to write."],
    *,
    mode: Annotated[
        Literal["create", "append", "overwrite"],
        "create makes the table, and fails if it has a version; append adds rows to one that exists, in its columns "
        "and types; overwrite replaces all rows and columns by a new version, or makes the table.",
    ] = "create",
    **options: Unpack[WriteJobOptions],
) -> Mapping[str, object]:
    """Read files into a table: Parquet, Arrow, CSV, JSON lines, Lance, data sets of them, folders of images.

    Nothing is visible until all is written and checked.

    \b
    Examples:
      tiltyard job ingest --uri http://127.0.0.1:2333 data/films.parquet films
      tiltyard job ingest --uri ./data 's3://lake/*.jsonl' films --mode append --cast 'vector=float32[128]' \\
        --rejects ./bad --checks 'unique(id)'
    """
    write_options = WriteOptions.of(options, mode)
    rows = open_files(run, catalog, spark, source, options, write_options.columns)
    return write_source(run, rows, catalog_client.table(catalog, table), write_options)


@job("upsert", lazy=True)
def upsert(
    run: Run,
    catalog: CatalogConnection,
    spark: SparkSession | LazySession,
    source: Annotated[str, "A file, a folder or a pattern (data/*.parquet), local or on an object store."],
    table: Annotated[str, "The table to change."],
    *,
    on: Annotated[list[str], "The key: one or more columns of the table.", ColumnNames()],
    must_exist: Annotated[bool, "Fail if the table lacks a key of the source, and insert nothing."] = False,
    **options: Unpack[WriteJobOptions],
) -> Mapping[str, object]:
    """Replace the rows of a table that have a key of the source, and insert the source's other rows: one commit.

    Rows keep their values of columns that the source lacks, where --null names none of them; new rows have nulls there.
    A key that is in the source twice, or null, fails the job, and nothing is changed; with `--rejects`, rows whose key
    is null are set aside.

    \b
    Example:
      tiltyard job upsert --uri http://127.0.0.1:2333 changed.parquet films --on id
    """
    write_options = WriteOptions.of(options, "append", on, must_exist=must_exist)
    rows = open_files(run, catalog, spark, source, options, write_options.columns)
    return write_source(run, rows, catalog_client.table(catalog, table), write_options, "upsert")
