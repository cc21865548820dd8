"""Any DataFrame (SQL, JDBC, a join) into a table: Arrow batches from Spark's partitions, Lance files, one commit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.datasource.spark_types import arrow_schema
from tiltyard.pipeline.runs import Run, RunCanceledError
from tiltyard.pipeline.spark_tasks import run_partitions
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.writing.casts import select_columns
from tiltyard.pipeline.writing.options import WriteOptions, commit_checked, make_write_spec
from tiltyard.pipeline.writing.target_table import TargetTable, prepare_target
from tiltyard.pipeline.writing.tasks import WriteResult, WriteSpec, infer_partition_schema, write_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TRIAL_ROWS = 100
"""Rows on which a function is tried, to learn which columns it makes."""


def write_frame(run: Run, frame: DataFrame, table: Table, asked: WriteOptions) -> Mapping[str, object]:
    """Write a DataFrame's rows to a table; the figures. Each partition becomes a fragment, or several if it is large.

    Nothing is visible until all is written and checked. Raises InvalidInputError, RunCanceledError, what `prepare_target` and
    the commit raise.
    """
    landing = prepare_target(run, table, asked.mode)
    written: list[WriteResult] = []
    try:
        recipe = frame_write_spec(run, frame, landing, asked)
        spark = frame.sparkSession
        written += write_partitions(run, frame, recipe)
        run.progress(
            rows=sum(part.rows for part in written),
            fragments=sum(len(part.fragments) for part in written),
            bytes=sum(part.size for part in written),
        )
        return commit_checked(run, spark, landing, recipe, written)
    except (RefusedError, InvalidInputError, RunCanceledError) as error:
        landing.discard_writes([fragment for part in written for fragment in part.fragments])
        if isinstance(error, RefusedError):
            raise InvalidInputError(str(error)) from error
        raise


def write_partitions(run: Run, frame: DataFrame, recipe: WriteSpec) -> list[WriteResult]:
    """Write the rows of each partition; no version names them yet. Raises RefusedError, RunCanceledError."""
    work = partial(write_partition, recipe)
    return run_partitions(frame.sparkSession, run, frame, work, name=f"write {run.id}", told=True)


def frame_write_spec(run: Run, frame: DataFrame, landing: TargetTable, asked: WriteOptions) -> WriteSpec:
    """How batches become rows of the table. A function is tried on the first rows."""
    columns = tuple(select_columns(arrow_schema(frame.schema), asked.chosen))
    schema = pa.schema([column.field for column in columns])
    if asked.udf is not None:
        trial = WriteSpec(run.id, landing.target(schema), columns, asked.udf, rejects=asked.rejects)
        few = frame.limit(_TRIAL_ROWS).coalesce(1)
        found = run_partitions(frame.sparkSession, run, few, partial(infer_partition_schema, trial), name="try the UDF")
        schema = next((one for one in found if one is not None), None)
        if schema is None:
            raise RefusedError(f"The UDF takes none of the first {_TRIAL_ROWS} rows.")
    storage = dict(landing.table.connection.storage)
    return make_write_spec(run, landing, asked, chosen_schema=schema, columns=columns, storage=storage)
