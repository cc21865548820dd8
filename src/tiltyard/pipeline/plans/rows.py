"""The rows of each table: written by tasks, from files or from SQL, before any version names them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import lance
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline import connecting
from tiltyard.pipeline.casts import Column, fit
from tiltyard.pipeline.datasource.reading import grouped
from tiltyard.pipeline.fragments import read_files
from tiltyard.pipeline.frames import frame_recipe, write_partitions
from tiltyard.pipeline.ingest import WITHDRAWN, forgotten, source_recipe, write_source
from tiltyard.pipeline.landing import Landing, land
from tiltyard.pipeline.lines import Bad
from tiltyard.pipeline.places import Connection, Place
from tiltyard.pipeline.plans.model import Plan, TablePlan
from tiltyard.pipeline.plans.parts import PartOfRun
from tiltyard.pipeline.recipes import check_written
from tiltyard.pipeline.refusing import RefusedError
from tiltyard.pipeline.session import slots
from tiltyard.pipeline.sources import TASK_BYTES, find_source
from tiltyard.pipeline.spark_types import batch_schema, spark_schema
from tiltyard.pipeline.writing import Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WRITTEN = "written"


@dataclass(frozen=True, slots=True)
class Filled:
    """A table whose rows are written: `schema` is that of its new version."""

    name: str
    plan: TablePlan
    run: PartOfRun
    landing: Landing
    written: tuple[Written, ...]
    schema: pa.Schema

    @property
    def fragments(self) -> list[str]:
        """All its new fragments."""
        return [fragment for part in self.written for fragment in part.fragments]


@dataclass(frozen=True, slots=True)
class _Rows:
    """A task: rows of fragments of a version, or else those of files that no version names."""

    place: Place
    version: int
    fragments: tuple[int, ...] = ()
    files: tuple[str, ...] = ()

    def read(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        if self.files:
            yield from read_files(self.place, self.files, columns)
        else:
            yield from self.place.scanned(self.version, self.fragments, columns=columns)


def fill(run: PartOfRun, where: Connection, spark: SparkSession, name: str, plan: TablePlan) -> Filled:
    """Write and check the rows of a table. What an earlier driver finished in this attempt is taken as it is.

    Raises InvalidInputError for what does not fit, RunCanceledError, what `land` raises.
    """
    landing = land(run, connecting.table(where, name), plan.asked().mode)
    try:
        filled = _kept(run, name, plan, landing) or _written(run, where, spark, name, plan, landing)
    except (RefusedError, InvalidInputError) as error:
        landing.withdraw(forgotten(run))
        raise InvalidInputError(f"{name}: {error}") from error
    return filled


def _kept(run: PartOfRun, name: str, plan: TablePlan, landing: Landing) -> Filled | None:
    text = run.kept().get(_WRITTEN)
    if text in (None, WITHDRAWN):
        return None
    told = json.loads(text)
    schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(told["schema"])))
    return Filled(name, plan, run, landing, tuple(map(Written.from_kept, told["parts"])), schema)


def _written(
    run: PartOfRun, where: Connection, spark: SparkSession, name: str, plan: TablePlan, landing: Landing
) -> Filled:
    asked = plan.asked()
    if plan.files is not None:
        source = find_source(plan.wanted(dict(where.storage)))
        recipe = source_recipe(run, spark, source, landing, asked)
        written = write_source(run, spark, source, recipe, TASK_BYTES)
    else:
        frame = _query(spark, plan.sql or "")
        recipe = frame_recipe(run, frame, landing, asked)
        written = write_partitions(run, frame, recipe)
    check_written(spark, landing, recipe, written)
    schema = recipe.target.schema
    told = {"parts": [part.kept() for part in written], "schema": schema.serialize().to_pybytes().hex()}
    run.keep(_WRITTEN, json.dumps(told))
    return Filled(name, plan, run, landing, tuple(written), schema)


def discard_all(tables: Iterable[Filled]) -> None:
    """Leave nothing of tables behind: their files are deleted, and the names that they were given."""
    for table in tables:
        forgotten(table.run)
        table.run.keep(_WRITTEN, WITHDRAWN)
        table.landing.withdraw(table.fragments)


@contextmanager
def views(where: Connection, spark: SparkSession, plan: Plan) -> Iterator[dict[str, DataFrame]]:
    """The tables that the plan reads, as views for the block, each at its newest version of now."""
    made: dict[str, DataFrame] = {}
    try:
        for name, source in plan.reads.items():
            table = connecting.table(where, source)
            dataset = table.dataset()
            show(spark, made, name, _frame(spark, dataset.schema, _of_version(spark, table.place(), dataset)))
        yield made
    finally:
        for name in made:
            spark.catalog.dropTempView(name)


def show(spark: SparkSession, made: dict[str, DataFrame], name: str, frame: DataFrame) -> None:
    """Make a view, which `views` takes away in the end."""
    frame.createOrReplaceTempView(name)
    made[name] = frame


def frame_of(spark: SparkSession, table: Filled) -> DataFrame:
    """The rows that this run has written to a table, before they are published. Raises RefusedError."""
    tasks = [_Rows(table.landing.place, 0, files=(fragment,)) for fragment in table.fragments]
    return _frame(spark, table.schema, tasks)


def _of_version(spark: SparkSession, place: Place, dataset: lance.LanceDataset) -> list[_Rows]:
    sizes = [(part.fragment_id, part.metadata.num_rows) for part in dataset.get_fragments()]
    return [_Rows(place, int(dataset.version), group) for group in grouped(sizes, slots(spark) * 2)]


def _frame(spark: SparkSession, schema: pa.Schema, tasks: list[_Rows]) -> DataFrame:
    shape = spark_schema(schema)
    wanted = batch_schema(shape)
    columns = [Column(field.with_nullable(True), field.name) for field in wanted]

    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            for batch in tasks[number].read(wanted.names):
                for fitted in fit(batch, columns):
                    if isinstance(fitted, Bad):
                        raise RefusedError(f"A value is more than Spark's type can hold: {fitted.reason}.")
                    yield pa.RecordBatch.from_arrays(fitted.columns, schema=wanted)

    if not tasks:
        return spark.createDataFrame([], shape)
    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(rows, shape)


def _query(spark: SparkSession, text: str) -> DataFrame:
    """A query. Raises InvalidInputError for one that Spark does not understand."""
    from pyspark.errors import AnalysisException, ParseException  # noqa: PLC0415  # an extra

    try:
        return spark.sql(text)
    except (AnalysisException, ParseException) as error:
        raise InvalidInputError(f"Spark cannot plan its SQL: {str(error).split(chr(10))[0]}") from error
