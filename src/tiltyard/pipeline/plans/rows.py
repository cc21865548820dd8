"""The rows of each table: written by tasks, from files or from SQL, before any version names them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.datasource.fragment_frames import rows_of_version, shown
from tiltyard.pipeline.ingest.job import WITHDRAWN, for_landing, forgotten, source_recipe, write_source
from tiltyard.pipeline.jobs import is_worker_driver
from tiltyard.pipeline.plans.model import Plan, TablePlan
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.sources.discovery import TASK_BYTES, find_source, spark_inspector
from tiltyard.pipeline.sql.checks import analysed, check_analysed, check_parsed
from tiltyard.pipeline.sql.isolated_session import quoted
from tiltyard.pipeline.table_location import Connection
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.writing.dataframes import frame_write_spec, write_partitions
from tiltyard.pipeline.writing.fragments import FragmentRows, fragment_files_exist
from tiltyard.pipeline.writing.options import check_written
from tiltyard.pipeline.writing.target_table import TargetTable, prepare_target
from tiltyard.pipeline.writing.tasks import WriteResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WRITTEN = "written"


@dataclass(frozen=True, slots=True)
class PartOfRun:
    """The part `name` of `whole`. What it keeps belongs to one attempt: another one begins with nothing kept."""

    whole: Run
    attempt: int
    name: str

    @property
    def id(self) -> str:
        """Unique, and the same in all attempts: commits and the names of files with rejected rows have it."""
        return f"{self.whole.id}-{self.name}"

    def progress(self, **figures: object) -> None:
        """Set figures of the whole run, without their totals: how far that is, its steps say."""
        told = {name: value for name, value in figures.items() if not name.endswith("_total")}
        stage = f"{self.name}: {told.pop('stage')}" if "stage" in told else self.name
        if "guessed" in told:
            told[f"guessed:{self.name}"] = told.pop("guessed")
        self.whole.progress(**told, stage=stage)

    def check(self) -> None:
        """Raises RunCanceledError once the run has to stop."""
        self.whole.check()

    def checkpoints(self) -> Mapping[str, str]:
        """What this part has kept in this attempt."""
        return {
            key.removeprefix(self._mark): text
            for key, text in self.whole.checkpoints().items()
            if key.startswith(self._mark)
        }

    def save_checkpoint(self, key: str, value: str) -> None:
        """Remember that something is done."""
        self.whole.save_checkpoint(f"{self._mark}{key}", value)

    @property
    def _mark(self) -> str:
        return f"{self.attempt}/{self.name}/"


@dataclass(frozen=True, slots=True)
class Filled:
    """A table whose rows are written: `schema` is that of its new version."""

    name: str
    plan: TablePlan
    run: PartOfRun
    landing: TargetTable
    written: tuple[WriteResult, ...]
    schema: pa.Schema

    @property
    def fragments(self) -> list[str]:
        """All its new fragments."""
        return [fragment for part in self.written for fragment in part.fragments]


def fill(
    run: PartOfRun, where: Connection, spark: SparkSession, name: str, plan: TablePlan, readable: Collection[str]
) -> Filled:
    """Write and check the rows of a table. What an earlier driver finished in this attempt is taken as it is.

    `readable` are the views that its SQL may read.

    Raises InvalidInputError for what does not fit, RunCanceledError, what `prepare_target` raises.
    """
    landing = prepare_target(run, catalog_client.table(where, name), plan.asked().mode)
    try:
        filled = _kept(run, name, plan, landing)
        if filled is None or not fragment_files_exist(landing.location, filled.fragments):
            filled = _written(run, where, spark, name, plan, landing, readable)
    except (RefusedError, InvalidInputError) as error:
        landing.discard_writes(forgotten(run))
        raise InvalidInputError(f"{name}: {error}") from error
    return filled


def filled_before(run: PartOfRun, where: Connection, name: str, plan: TablePlan) -> Filled | None:
    """A table that this run has filled, to see whether it was published: if not, its files may be gone by now.

    None if it was withdrawn.
    """
    return _kept(run, name, plan, prepare_target(run, catalog_client.table(where, name), plan.asked().mode))


def _kept(run: PartOfRun, name: str, plan: TablePlan, landing: TargetTable) -> Filled | None:
    """The rows that an earlier driver of this run wrote, whether their files are still there or not."""
    text = run.checkpoints().get(_WRITTEN)
    if text in (None, WITHDRAWN):
        return None
    told = json.loads(text)
    schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(told["schema"])))
    return Filled(name, plan, run, landing, tuple(map(WriteResult.from_json, told["parts"])), schema)


def _written(
    run: PartOfRun,
    where: Connection,
    spark: SparkSession,
    name: str,
    plan: TablePlan,
    landing: TargetTable,
    readable: Collection[str],
) -> Filled:
    asked = plan.asked()
    if plan.files is not None:
        found = find_source(plan.wanted(dict(where.storage)), spark_inspector(run, spark))
        source = for_landing(run, found, landing, asked)
        recipe = source_recipe(run, spark, source, landing, asked)
        written = write_source(run, spark, source, recipe, TASK_BYTES)
    else:
        frame = _query(spark, plan.sql or "", readable)
        recipe = frame_write_spec(run, frame, landing, asked)
        written = write_partitions(run, frame, recipe)
    check_written(spark, landing, recipe, written)
    schema = recipe.target.schema
    told = {"parts": [part.to_json() for part in written], "schema": schema.serialize().to_pybytes().hex()}
    run.save_checkpoint(_WRITTEN, json.dumps(told))
    return Filled(name, plan, run, landing, tuple(written), schema)


def discard_all(tables: Iterable[Filled]) -> None:
    """Leave nothing of tables behind: their files are deleted, and the names that they were given."""
    for table in tables:
        forgotten(table.run)
        table.run.save_checkpoint(_WRITTEN, WITHDRAWN)
        table.landing.discard_writes(table.fragments)


@contextmanager
def views(where: Connection, spark: SparkSession, plan: Plan) -> Iterator[dict[str, DataFrame]]:
    """The tables that the plan reads, as views for the block, each at its newest version of now."""
    made: dict[str, DataFrame] = {}
    try:
        for name, source in plan.reads.items():
            table = catalog_client.table(where, source)
            dataset = table.dataset()
            tasks = rows_of_version(spark, table.location(), dataset)
            show(spark, made, name, shown(spark, dataset.schema, tasks))
        yield made
    finally:
        for name in made:
            spark.catalog.dropTempView(name)


def show(spark: SparkSession, made: dict[str, DataFrame], name: str, frame: DataFrame) -> None:
    """Make a view, which `views` takes away in the end."""
    frame.createOrReplaceTempView(quoted(name))
    made[name] = frame


def frame_of(spark: SparkSession, table: Filled) -> DataFrame:
    """The rows that this run has written to a table, before they are published. Raises RefusedError."""
    tasks = [FragmentRows(table.landing.location, 0, files=(fragment,)) for fragment in table.fragments]
    return shown(spark, table.schema, tasks)


def _query(spark: SparkSession, text: str, readable: Collection[str]) -> DataFrame:
    """A query. Raises InvalidInputError for one that Spark does not understand.

    On a worker also for one that does more than read these views: who submits a job is not who runs the worker.
    """
    if not is_worker_driver():
        return analysed(spark, text)
    check_parsed(spark, text, readable)
    frame = analysed(spark, text)
    check_analysed(frame)
    return frame
