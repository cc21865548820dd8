"""Ingest: files into a table. Tasks read and write; the driver plans, checks, and commits once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.jobs import job
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import task_slots
from tiltyard.pipeline.sources.discovery import (
    TASK_BYTES,
    Source,
    SourceOptions,
    find_source,
    group_pieces,
    spark_inspector,
)
from tiltyard.pipeline.sources.filesystem import absolute_path
from tiltyard.pipeline.sources.readers import Format
from tiltyard.pipeline.sources.schema_merge import SchemaMode
from tiltyard.pipeline.sources.text_schema import adapt_to_table, inferred_casts
from tiltyard.pipeline.spark_tasks import run_tasks
from tiltyard.pipeline.table_location import Connection
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.type_names import parse_type
from tiltyard.pipeline.user_functions import parse_user_function
from tiltyard.pipeline.writing.casts import ColumnSelection, check_time_zones, select_columns
from tiltyard.pipeline.writing.fragments import ROWS_PER_FILE, delete_fragment_files, fragment_files_exist
from tiltyard.pipeline.writing.options import WriteOptions, commit_checked, make_write_spec
from tiltyard.pipeline.writing.quality_checks import parse_check
from tiltyard.pipeline.writing.target_table import TargetTable, WriteMode, forget_location, prepare_target
from tiltyard.pipeline.writing.tasks import PieceGroup, WriteResult, WriteSpec, infer_piece_schema, write_pieces

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHARES = "shares"
WITHDRAWN = "withdrawn"


@job("ingest")
def ingest(
    run: Run,
    where: Connection,
    spark: SparkSession,
    source: Annotated[str, "A file, a folder or a pattern (data/*.parquet), local or of an object store."],
    table: Annotated[str, "The table to write."],
    *,
    mode: Annotated[Literal["create", "append", "overwrite"], "What becomes of a table that is there."] = "create",
    format: Annotated[  # noqa: A002  # the option's name, as in Spark
        Literal["parquet", "arrow", "csv", "json", "lance", "images"] | None, "What the files are, if not by name."
    ] = None,
    split: Annotated[str | None, "Only this split of a data set (train, test, …)."] = None,
    delimiter: Annotated[str | None, "What parts the values of CSV."] = None,
    schema: Annotated[
        Literal["union", "first", "strict"],
        "Of files that differ: all columns in types that hold the values of all (union, the default), those of the "
        "first file, or an error for any difference (strict).",
    ] = "union",
    partitions: Annotated[
        str, "Columns that folders hold: hive (year=2013/…, the default), off, or the names of folders (year/month)."
    ] = "hive",
    null_value: Annotated[list[str], "An unquoted text of CSV that is null (NA), besides the empty one."] = [],  # noqa: B006  # the registry copies it
    multiline: Annotated[bool, "Values of CSV hold line breaks: each file is read by one task."] = False,
    select: Annotated[list[str], "Only these columns of the source."] = [],  # noqa: B006  # the same
    rename: Annotated[dict[str, str], "The new name of a column of the source."] = {},  # noqa: B006  # the same
    cast: Annotated[dict[str, str], "The type of a column: int64, float32[128], decimal(10, 2), …"] = {},  # noqa: B006  # the same
    null: Annotated[list[str], "Columns of the table that the source has not, and that shall be null."] = [],  # noqa: B006  # the same
    udf: Annotated[str | None, "A function RecordBatch → RecordBatch, as module:function or file.py:function."] = None,
    rejects: Annotated[str | None, "A folder for rows that do not fit; without one, such a row ends the job."] = None,
    check: Annotated[list[str], "Before publishing: 'rows >= 9', 'not_null(a)', 'between(a, 0, 1)', 'unique(a)'."] = [],  # noqa: B006  # the same
    rows_per_file: Annotated[int, "How many rows a fragment holds at most."] = ROWS_PER_FILE,
    task_mb: Annotated[int, "How much of the source one task reads, in MiB."] = TASK_BYTES >> 20,
) -> Mapping[str, object]:
    """Read files into a table: Parquet, Arrow, CSV, JSON lines, Lance, data sets of them, folders of images.

    Nothing is visible until all is written and checked.

    \b
    Examples:
      tiltyard job ingest --uri http://127.0.0.1:2333 data/films.parquet films
      tiltyard job ingest --uri ./data 's3://lake/*.jsonl' films --mode append --cast vector=float32[128] \\
        --rejects ./bad --check 'unique(id)'
    """
    for option, number in (("--rows-per-file", rows_per_file), ("--task-mb", task_mb)):
        if number < 1:
            raise RefusedError(f"{option} is {number}: it is at least 1.")
    types = {name: parse_type(text) for name, text in cast.items()}
    asked = WriteOptions(
        WriteMode(mode),
        ColumnSelection(tuple(select), rename, types, tuple(null)),
        parse_user_function(udf) if udf else None,
        tuple(parse_check(text) for text in check),
        absolute_path(rejects) if rejects else None,
        rows_per_file,
    )
    old_names = {new: old for old, new in rename.items()}
    wanted = SourceOptions(
        absolute_path(source),
        Format(format) if format else None,
        split,
        delimiter,
        {old_names.get(name, name): dtype for name, dtype in types.items()},
        dict(where.storage),
        SchemaMode(schema),
        partitions,
        (*select, *rename) if select else (),
        tuple(null_value),
        multiline,
    )
    files = find_source(wanted, spark_inspector(run, spark))
    return _ingest(run, spark, files, catalog_client.table(where, table), asked, task_mb << 20)


def _ingest(
    run: Run, spark: SparkSession, source: Source, table: Table, asked: WriteOptions, task_bytes: int
) -> Mapping[str, object]:
    landing = prepare_target(run, table, asked.mode)
    try:
        source = for_landing(run, source, landing, asked)
        recipe = source_recipe(run, spark, source, landing, asked)
        written = write_source(run, spark, source, recipe, task_bytes)
        return {**commit_checked(run, spark, landing, recipe, written), **told_types(source)}
    except (RefusedError, InvalidInputError):
        # A run that was stopped keeps its files: the next driver goes on with them; gc takes those of a canceled one.
        landing.discard_writes(forgotten(run))
        raise


def forgotten(run: Run) -> list[str]:
    """Take back what was kept of shares, so that a resumed run writes them anew; their fragments, to be deleted."""
    kept = _shares(run)
    for key in kept:
        run.save_checkpoint(key, WITHDRAWN)
    forget_location(run)
    return [fragment for part in kept.values() for fragment in part.fragments]


def _shares(run: Run) -> dict[str, WriteResult]:
    """What was kept of shares."""
    told = {key: text for key, text in run.checkpoints().items() if key.startswith("share-") and text != WITHDRAWN}
    return {key: WriteResult.from_json(text) for key, text in told.items()}


def for_landing(run: Run, source: Source, landing: TargetTable, asked: WriteOptions) -> Source:
    """A source of text in the types of the table that it is added to; the run is told which types are guesses."""
    if landing.schema is not None and asked.udf is None:
        source = replace(source, reader=adapt_to_table(source.reader, landing.schema, asked.columns))
    run.progress(**told_types(source))
    return source


def told_types(source: Source) -> dict[str, object]:
    """The figure `guessed`, where types were guessed: options that name others."""
    text = inferred_casts(source.reader)
    return {"guessed": text} if text else {}


def source_recipe(
    run: Run, spark: SparkSession, source: Source, landing: TargetTable, asked: WriteOptions
) -> WriteSpec:
    """How tasks make rows. Where a function decides on the columns, a task tries it on the first rows."""
    chosen = select_columns(source.reader.schema, asked.columns)
    made_schema = pa.schema([column.field for column in chosen])
    storage = source.reader.storage
    if asked.udf is not None:
        trial = WriteSpec(
            run.id, landing.fragment_target(made_schema), tuple(chosen), asked.udf, None, (), asked.rejects, storage
        )
        work = partial(infer_piece_schema, trial, source.reader)
        made_schema = run_tasks(spark, run, work, source.pieces[:1], name="try the UDF")[0]
    recipe = make_write_spec(run, landing, asked, chosen_schema=made_schema, columns=tuple(chosen), storage=storage)
    if asked.udf is None:
        check_time_zones(made_schema, recipe.target.schema)
    return recipe


def write_source(
    run: Run, spark: SparkSession | None, source: Source, recipe: WriteSpec, task_bytes: int
) -> list[WriteResult]:
    """All shares of the source, written now or by an earlier driver of this run, if their files are still there."""
    kept = run.checkpoints()
    number = int(kept[_SHARES]) if _SHARES in kept else task_slots(spark)  # another driver may have other slots
    if _SHARES not in kept:
        run.save_checkpoint(_SHARES, str(number))
    key = source.reader.key
    shares = [PieceGroup(pieces, key) for pieces in group_pieces(source.pieces, number, task_bytes)]
    there = _shares(run)
    location = recipe.target.location
    wanted = {share.key: there[share.key] for share in shares if share.key in there}
    found = {key: part for key, part in wanted.items() if fragment_files_exist(location, part.fragments)}
    left = [share for share in shares if share.key not in found]
    stale = [part for key, part in there.items() if key not in wanted]
    delete_fragment_files(
        location, [fragment for part in stale for fragment in part.fragments]
    )  # of files since changed

    def done(position: int, written: WriteResult) -> None:
        run.save_checkpoint(left[position].key, written.to_json())
        found[left[position].key] = written
        run.progress(
            rows=sum(part.rows for part in found.values()),
            fragments=sum(len(part.fragments) for part in found.values()),
            bytes=sum(part.size for part in found.values()),
            tasks=len(found),
            tasks_total=len(shares),
        )

    run_tasks(spark, run, partial(write_pieces, recipe, source.reader), left, on_result=done, name=f"ingest {run.id}")
    return [found[share.key] for share in shares]
