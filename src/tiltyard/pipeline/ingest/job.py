"""Ingest job: write files to a table. Tasks read and write; the driver plans, checks, and commits once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, Unpack

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.functions.call_options import CallOptions
from tiltyard.pipeline.jobs import Alias, ColumnNames, job
from tiltyard.pipeline.lineage import file_lineage
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import LazySession, started, task_slots
from tiltyard.pipeline.sources.casts import ColumnSelection, check_time_zones, select_columns
from tiltyard.pipeline.sources.discovery import (
    TASK_BYTES,
    Source,
    SourceOptions,
    find_source,
    group_pieces,
    spark_inspector,
)
from tiltyard.pipeline.sources.filesystem import absolute_path
from tiltyard.pipeline.sources.inspection import adapt_to_table, inferred_casts
from tiltyard.pipeline.sources.readers import Format
from tiltyard.pipeline.sources.spark_formats import read_spark_files, spark_format
from tiltyard.pipeline.sources.types import SchemaMode, parse_type
from tiltyard.pipeline.spark_tasks import run_tasks
from tiltyard.pipeline.table_location import CatalogConnection
from tiltyard.pipeline.writing.commit import KEY_ERRORS
from tiltyard.pipeline.writing.fragments import ROWS_PER_FILE, delete_fragment_files, fragment_files_exist
from tiltyard.pipeline.writing.options import WriteOptions, commit_checked, make_write_spec, parse_function
from tiltyard.pipeline.writing.quality_checks import parse_check
from tiltyard.pipeline.writing.target_table import TargetTable, WriteMode, forget_location, prepare_target
from tiltyard.pipeline.writing.tasks import PieceGroup, WriteResult, WriteSpec, infer_piece_schema, write_pieces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.model.lineage import JobLineage

MAX_DRIVER_BYTES = 16 << 20
"""A source of up to so many bytes is written by threads of this process: starting Spark's tasks takes longer."""

_SLOTS_KEY = "shares"
WITHDRAWN = "withdrawn"


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
    format: Annotated[  # noqa: A002  # the option's name, as in Spark
        Literal["parquet", "arrow", "csv", "json", "lance", "images", "orc", "avro"] | None,
        "The files' format, if their names do not tell it.",
    ] = None,
    split: Annotated[str | None, "Only this split of a data set (train, test, …)."] = None,
    delimiter: Annotated[str | None, "The separator of CSV values."] = None,
    schema: Annotated[
        Literal["union", "first", "strict"],
        "For files that differ: all columns, in types that hold all values (union, the default), the columns of the "
        "first file, or an error for any difference (strict).",
    ] = "union",
    partitions: Annotated[
        str, "Partition columns in folder names: hive (year=2013/…, the default), off, or the columns (year/month)."
    ] = "hive",
    null_value: Annotated[list[str], "An unquoted CSV value that is null (NA), besides the empty one."] = [],  # noqa: B006  # the registry copies it
    multiline: Annotated[
        bool, "One task reads each CSV file, and reads it once; values with line breaks are read without it, too."
    ] = False,
    select: Annotated[list[str], "Only these columns of the source: a,b.", ColumnNames()] = [],  # noqa: B006  # the same
    rename: Annotated[dict[str, str], "The new name of a column of the source."] = {},  # noqa: B006  # the same
    cast: Annotated[dict[str, str], "The type of a column: int64, float32[128], decimal(10, 2), …"] = {},  # noqa: B006  # the same
    null: Annotated[list[str], "Columns of the table that the source lacks; they become null.", ColumnNames()] = [],  # noqa: B006  # the same
    udf: Annotated[str | None, "A function RecordBatch → RecordBatch, as module:function or file.py:function."] = None,
    rejects: Annotated[str | None, "A folder for rows that do not fit; without one, such a row fails the job."] = None,
    checks: Annotated[
        list[str],
        "A check before publishing: 'rows >= 9', 'not_null(a)', 'between(a, 0, 1)', 'unique(a)', 'matches(a, [A-Z]+)', "
        "'in_set(a, x, y)', 'foreign_key(a, other.b)', 'freshness(a, 2d)', 'distribution(a, 0.1)'; 'warn: …' "
        "publishes all the same.",
        Alias("check"),
    ] = [],  # noqa: B006  # the same
    rows_per_file: Annotated[int, "Maximal rows of a fragment."] = ROWS_PER_FILE,
    task_mb: Annotated[int, "How much of the source a task reads, in MiB."] = TASK_BYTES >> 20,
    **call: Unpack[CallOptions],
) -> Mapping[str, object]:
    """Read files into a table: Parquet, Arrow, CSV, JSON lines, Lance, data sets of them, folders of images.

    Nothing is visible until all is written and checked.

    \b
    Examples:
      tiltyard job ingest --uri http://127.0.0.1:2333 data/films.parquet films
      tiltyard job ingest --uri ./data 's3://lake/*.jsonl' films --mode append --cast 'vector=float32[128]' \\
        --rejects ./bad --checks 'unique(id)'
    """
    for option, number in (("--rows-per-file", rows_per_file), ("--task-mb", task_mb)):
        if number < 1:
            raise RefusedError(f"{option} is {number}: it is at least 1.")
    types = {name: parse_type(text) for name, text in cast.items()}
    write_options = WriteOptions(
        WriteMode(mode),
        ColumnSelection(tuple(select), rename, types, tuple(null)),
        parse_function(udf, rejects, call),
        tuple(parse_check(text) for text in checks),
        absolute_path(rejects) if rejects else None,
        rows_per_file,
    )
    target_table = catalog_client.table(catalog, table)
    lineage = file_lineage("ingest", absolute_path(source), write_options.udf)
    if (kind := spark_format(source, format)) is not None:
        own = {"split": split, "delimiter": delimiter, "schema": schema, "partitions": partitions,
               "null_value": null_value, "multiline": multiline}  # fmt: skip
        frame = read_spark_files(started(spark), absolute_path(source), kind, own)
        from tiltyard.pipeline.writing.row_sources import FrameRows, ingest_rows  # noqa: PLC0415  # it uses this module

        return ingest_rows(run, FrameRows(frame), target_table, write_options, lineage)
    old_names = {new: old for old, new in rename.items()}
    source_options = SourceOptions(
        absolute_path(source),
        Format(format) if format else None,
        split,
        delimiter,
        {old_names.get(name, name): dtype for name, dtype in types.items()},
        dict(catalog.storage),
        SchemaMode(schema),
        partitions,
        (*select, *rename) if select else (),
        tuple(null_value),
        multiline,
    )
    files = find_source(source_options, spark_inspector(run, spark))
    return _ingest(run, spark, files, target_table, write_options, task_mb << 20, lineage)


def _ingest(
    run: Run,
    spark: SparkSession | LazySession,
    source: Source,
    table: Table,
    options: WriteOptions,
    task_bytes: int,
    lineage: JobLineage,
) -> Mapping[str, object]:
    target = prepare_target(run, table, options.mode, lineage)
    try:
        source = adapt_source(run, source, target, options)
        spec = source_write_spec(run, spark, source, target, options)
        is_small = options.udf is None and source.size <= MAX_DRIVER_BYTES
        results = write_source(run, None if is_small else spark, source, spec, task_bytes)
        return {**commit_checked(run, spark, target, spec, results), **inferred_types_figure(source)}
    except (RefusedError, InvalidInputError, *KEY_ERRORS):
        # A stopped run keeps its files: the next driver resumes with them; gc deletes those of a canceled one.
        target.discard_writes(reset_checkpoints(run))
        raise


def reset_checkpoints(run: Run) -> list[str]:
    """Invalidate the checkpoints of piece groups, so that a resumed run writes them anew; return their fragments.

    The caller deletes the fragments.
    """
    completed = _completed_groups(run)
    for key in completed:
        run.save_checkpoint(key, WITHDRAWN)
    forget_location(run)
    return [fragment for result in completed.values() for fragment in result.fragments]


def _completed_groups(run: Run) -> dict[str, WriteResult]:
    """Return the checkpointed results of piece groups, by key."""
    texts = {key: text for key, text in run.checkpoints().items() if key.startswith("share-") and text != WITHDRAWN}
    return {key: WriteResult.from_json(text) for key, text in texts.items()}


def adapt_source(run: Run, source: Source, target: TargetTable, options: WriteOptions) -> Source:
    """Adapt a text source's types to the table that it is appended to; report its inferred types."""
    if target.schema is not None and options.udf is None:
        source = replace(source, reader=adapt_to_table(source.reader, target.schema, options.columns))
    run.progress(**inferred_types_figure(source))
    return source


def inferred_types_figure(source: Source) -> dict[str, object]:
    """Return the figure `guessed` where types were inferred: options that would choose them."""
    text = inferred_casts(source.reader)
    return {"guessed": text} if text else {}


def source_write_spec(
    run: Run, spark: SparkSession | LazySession, source: Source, target: TargetTable, options: WriteOptions
) -> WriteSpec:
    """Return how tasks produce rows. Where a function decides on the columns, a task tries it on the first rows."""
    columns = select_columns(source.reader.schema, options.columns)
    schema = pa.schema([column.field for column in columns])
    storage = source.reader.storage
    if options.udf is not None:
        trial = WriteSpec(
            run.id, target.fragment_target(schema), tuple(columns), options.udf, None, (), options.rejects, storage
        )
        work = partial(infer_piece_schema, trial, source.reader)
        schema = run_tasks(spark, run, work, source.pieces[:1], name="try the UDF", resources=options.udf.resources)[0]
    spec = make_write_spec(run, target, options, chosen_schema=schema, columns=tuple(columns), storage=storage)
    if options.udf is None:
        check_time_zones(schema, spec.target.schema)
    return spec


def write_source(
    run: Run, spark: SparkSession | LazySession | None, source: Source, spec: WriteSpec, task_bytes: int
) -> list[WriteResult]:
    """Write all piece groups of the source; return their results.

    Groups that an earlier driver of this run has written are skipped if their files still exist.
    """
    checkpoints = run.checkpoints()
    slots = int(checkpoints[_SLOTS_KEY]) if _SLOTS_KEY in checkpoints else task_slots(spark)  # the same for all drivers
    if _SLOTS_KEY not in checkpoints:
        run.save_checkpoint(_SLOTS_KEY, str(slots))
    key = source.reader.key
    groups = [PieceGroup(pieces, key) for pieces in group_pieces(source.pieces, slots, task_bytes)]
    completed = _completed_groups(run)
    location = spec.target.location
    reusable = {group.key: completed[group.key] for group in groups if group.key in completed}
    results = {key: result for key, result in reusable.items() if fragment_files_exist(location, result.fragments)}
    remaining = [group for group in groups if group.key not in results]
    stale = [result for key, result in completed.items() if key not in reusable]  # their source files have changed
    delete_fragment_files(location, [fragment for result in stale for fragment in result.fragments])

    def save(position: int, result: WriteResult) -> None:
        run.save_checkpoint(remaining[position].key, result.to_json())
        results[remaining[position].key] = result
        run.progress(
            rows=sum(part.rows for part in results.values()),
            fragments=sum(len(part.fragments) for part in results.values()),
            bytes=sum(part.size for part in results.values()),
            tasks=len(results),
            tasks_total=len(groups),
        )

    work = partial(write_pieces, spec, source.reader)
    run_tasks(spark, run, work, remaining, on_result=save, name=f"ingest {run.id}", resources=spec.resources)
    return [results[group.key] for group in groups]
