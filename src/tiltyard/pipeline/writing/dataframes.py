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
from tiltyard.pipeline.writing.casts import chosen_columns
from tiltyard.pipeline.writing.recipes import Asked, finish, recipe_for
from tiltyard.pipeline.writing.target_table import Landing, land
from tiltyard.pipeline.writing.tasks import Recipe, Written, schema_of_partition, write_partition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_TRIED = 100
"""Rows on which a function is tried, to learn which columns it makes."""


def write_frame(run: Run, frame: DataFrame, table: Table, asked: Asked) -> Mapping[str, object]:
    """Write a DataFrame's rows to a table; the figures. Each partition becomes a fragment, or several if it is large.

    Nothing is visible until all is written and checked. Raises InvalidInputError, RunCanceledError, what `land` and
    the commit raise.
    """
    landing = land(run, table, asked.mode)
    written: list[Written] = []
    try:
        recipe = frame_recipe(run, frame, landing, asked)
        spark = frame.sparkSession
        written += write_partitions(run, frame, recipe)
        run.progress(
            rows=sum(part.rows for part in written),
            fragments=sum(len(part.fragments) for part in written),
            bytes=sum(part.size for part in written),
        )
        return finish(run, spark, landing, recipe, written)
    except (RefusedError, InvalidInputError, RunCanceledError) as error:
        landing.withdraw([fragment for part in written for fragment in part.fragments])
        if isinstance(error, RefusedError):
            raise InvalidInputError(str(error)) from error
        raise


def write_partitions(run: Run, frame: DataFrame, recipe: Recipe) -> list[Written]:
    """Write the rows of each partition; no version names them yet. Raises RefusedError, RunCanceledError."""
    work = partial(write_partition, recipe)
    return run_partitions(frame.sparkSession, run, frame, work, name=f"write {run.id}", told=True)


def frame_recipe(run: Run, frame: DataFrame, landing: Landing, asked: Asked) -> Recipe:
    """How batches become rows of the table. A function is tried on the first rows."""
    columns = tuple(chosen_columns(arrow_schema(frame.schema), asked.chosen))
    schema = pa.schema([column.field for column in columns])
    if asked.udf is not None:
        trial = Recipe(run.id, landing.target(schema), columns, asked.udf, rejects=asked.rejects)
        few = frame.limit(_TRIED).coalesce(1)
        found = run_partitions(frame.sparkSession, run, few, partial(schema_of_partition, trial), name="try the UDF")
        schema = next((one for one in found if one is not None), None)
        if schema is None:
            raise RefusedError(f"The UDF takes none of the first {_TRIED} rows.")
    storage = dict(landing.table.connection.storage)
    return recipe_for(run, landing, asked, chosen_schema=schema, columns=columns, storage=storage)
