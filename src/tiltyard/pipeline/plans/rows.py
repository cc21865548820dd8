"""Write the rows of each table of a pipeline, from files or from SQL, before any version names them."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.model.lineage import JobLineage, LineageSource, digest_code
from tiltyard.model.text.sql_text import quote_identifier
from tiltyard.model.views.definitions import parse_sources
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.datasource.dataframes import plan_version_scan, read_frame
from tiltyard.pipeline.jobs import is_worker_driver
from tiltyard.pipeline.lineage import function_digest, plan_columns, table_source
from tiltyard.pipeline.plans.plan_file import Plan, TablePlan
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.spark_sql.checks import analyze_sql, check_analyzed_query, check_parsed_query
from tiltyard.pipeline.table_location import CatalogConnection
from tiltyard.pipeline.writing.fragments import FragmentRows, fragment_files_exist
from tiltyard.pipeline.writing.options import WriteOptions
from tiltyard.pipeline.writing.row_sources import FrameRows, open_files
from tiltyard.pipeline.writing.target_table import TargetTable, prepare_target
from tiltyard.pipeline.writing.tasks import WriteResult
from tiltyard.pipeline.writing.write_job import (
    WITHDRAWN,
    RowSource,
    WrittenRows,
    discarding,
    withdraw_results,
    write_uncommitted,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CHECKPOINT_KEY = "written"


@dataclass(frozen=True, slots=True)
class TableRun:
    """The run of one table of a pipeline: its figures and checkpoints are apart from those of other tables.

    Checkpoints belong to one attempt: another attempt starts without any.
    """

    pipeline_run: Run
    attempt: int
    name: str

    @property
    def id(self) -> str:
        """Return a unique id, the same in all attempts: commits and files of rejected rows have it in their names."""
        return f"{self.pipeline_run.id}-{self.name}"

    def progress(self, **figures: object) -> None:
        """Set figures of the whole run, without totals: its progress is counted in steps."""
        texts = {name: value for name, value in figures.items() if not name.endswith("_total")}
        stage = f"{self.name}: {texts.pop('stage')}" if "stage" in texts else self.name
        for figure in {"guessed", "checks"} & texts.keys():  # what is of one table alone
            texts[f"{figure}:{self.name}"] = texts.pop(figure)
        self.pipeline_run.progress(**texts, stage=stage)

    def check(self) -> None:
        self.pipeline_run.check()

    def checkpoints(self) -> Mapping[str, str]:
        return {
            key.removeprefix(self._prefix): text
            for key, text in self.pipeline_run.checkpoints().items()
            if key.startswith(self._prefix)
        }

    def save_checkpoint(self, key: str, value: str) -> None:
        self.pipeline_run.save_checkpoint(f"{self._prefix}{key}", value)

    @property
    def _prefix(self) -> str:
        return f"{self.attempt}/{self.name}/"


@dataclass(frozen=True, slots=True)
class WrittenTable:
    """A table whose rows are written but not published: `schema` is that of its new version.

    `properties` are those of its commit.
    """

    name: str
    plan: TablePlan
    run: TableRun
    target: TargetTable
    results: tuple[WriteResult, ...]
    schema: pa.Schema
    properties: Mapping[str, str]

    @property
    def fragments(self) -> list[str]:
        """Return all its new fragments."""
        return [fragment for part in self.results for fragment in part.fragments]


def write_table(
    run: TableRun,
    catalog: CatalogConnection,
    spark: SparkSession,
    name: str,
    plan: TablePlan,
    readable: ReadableViews,
) -> WrittenTable:
    """Write and check the rows of a table, unless an earlier driver finished them in this attempt.

    `readable` are the views that its SQL may read. Raises InvalidInputError for rows that do not fit, RunCanceledError,
    what `prepare_target` raises.
    """
    options = plan.write_options()
    lineage = _lineage_of(plan, options, readable)
    target = prepare_target(run, catalog_client.table(catalog, name), options.mode, lineage)
    results: list[WriteResult] = []
    try:
        table = _load_checkpoint(run, name, plan, target)
        if table is None or not fragment_files_exist(target.location, table.fragments):
            with discarding(run, target, results, can_resume=True):
                source = _open_source(run, catalog, spark, plan, readable, lineage)
            with discarding(run, target, results, can_resume=source.can_resume):
                written = write_uncommitted(run, source, target, options, results)
            table = _keep(run, name, plan, target, written)
    except InvalidInputError as error:
        raise InvalidInputError(f"{name}: {error}") from error
    return table


def load_written_table(run: TableRun, catalog: CatalogConnection, name: str, plan: TablePlan) -> WrittenTable | None:
    """Return a table that this run has written; None if it was withdrawn.

    It tells whether the table was published: if not, its files may be deleted by now.
    """
    return _load_checkpoint(
        run, name, plan, prepare_target(run, catalog_client.table(catalog, name), plan.write_options().mode)
    )


def _load_checkpoint(run: TableRun, name: str, plan: TablePlan, target: TargetTable) -> WrittenTable | None:
    """Return the rows that an earlier driver of this run wrote, whether or not their files still exist."""
    text = run.checkpoints().get(_CHECKPOINT_KEY)
    if text in (None, WITHDRAWN):
        return None
    state = json.loads(text)
    schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(state["schema"])))
    results = tuple(map(WriteResult.from_json, state["parts"]))
    if lineage := state.get("lineage"):
        target = replace(target, lineage=msgspec.json.decode(lineage, type=JobLineage))
    return WrittenTable(name, plan, run, target, results, schema, state.get("properties", {}))


def _open_source(
    run: TableRun,
    catalog: CatalogConnection,
    spark: SparkSession,
    plan: TablePlan,
    readable: ReadableViews,
    lineage: JobLineage,
) -> RowSource:
    if plan.files is not None:
        return open_files(run, catalog, spark, plan.files, plan.options, plan.write_options().columns)
    frame = _query(spark, plan.sql or "", readable.frames)
    views = {view: source.name for view, source in readable.sources.items()}
    positions = {source.name: number for number, source in enumerate(lineage.sources)}
    return FrameRows(lineage.sources, frame, plan_columns(frame, views, positions))


def _keep(run: TableRun, name: str, plan: TablePlan, target: TargetTable, written: WrittenRows) -> WrittenTable:
    """Keep what was written, for the driver that publishes it."""
    run.progress(**{name: text for name, text in written.figures.items() if name == "checks"})
    schema = written.schema.serialize().to_pybytes().hex()
    target = replace(target, lineage=written.lineage or target.lineage)
    lineage = None if target.lineage is None else msgspec.json.encode(target.lineage).decode()
    parts = [result.to_json() for result in written.results]
    state = {"parts": parts, "schema": schema, "properties": written.properties, "lineage": lineage}
    run.save_checkpoint(_CHECKPOINT_KEY, json.dumps(state))
    return WrittenTable(name, plan, run, target, tuple(written.results), written.schema, written.properties)


def discard_tables(tables: Iterable[WrittenTable]) -> None:
    """Delete the files of tables, and the tables that this run declared."""
    for table in tables:
        withdraw_results(table.run)
        table.run.save_checkpoint(_CHECKPOINT_KEY, WITHDRAWN)
        table.target.discard_writes(table.fragments)


@dataclass(frozen=True, slots=True)
class ReadableViews:
    """The views that the SQL of a plan's tables reads, and the tables that they are of, by their names."""

    frames: dict[str, DataFrame] = field(default_factory=dict)
    sources: dict[str, LineageSource] = field(default_factory=dict)


def _lineage_of(plan: TablePlan, options: WriteOptions, views: ReadableViews) -> JobLineage:
    """Return what the rows of a table are made from: its files, or the tables that its SQL names."""
    digest = function_digest(options.udf)
    if plan.files is not None:
        return JobLineage("pipeline", (LineageSource.of_uri(plan.files),), digest)
    try:
        names = parse_sources(plan.sql or "")
    except InvalidInputError:  # the query of a driver of the user's own: it may read more than these views
        names = tuple(views.sources)
    sources = tuple(views.sources[name] for name in names if name in views.sources)
    return JobLineage("pipeline", sources, digest_code(f"{plan.sql}{digest}"))


@contextmanager
def readable_views(catalog: CatalogConnection, spark: SparkSession, plan: Plan) -> Iterator[ReadableViews]:
    """Create views of the tables that the plan reads, for the block, each at its newest version."""
    views = ReadableViews()
    try:
        for name, source in plan.reads.items():
            table = catalog_client.table(catalog, source)
            dataset = table.dataset()
            tasks = plan_version_scan(spark, table.location(), dataset)
            frame = read_frame(spark, dataset.schema, tasks)
            create_view(spark, views, name, frame, table_source(table, int(dataset.version)))
        yield views
    finally:
        for name in views.frames:
            spark.catalog.dropTempView(name)


def create_view(spark: SparkSession, views: ReadableViews, name: str, frame: DataFrame, source: LineageSource) -> None:
    """Create a view of the rows of a table, which `readable_views` drops at the end."""
    frame.createOrReplaceTempView(quote_identifier(name))
    views.frames[name], views.sources[name] = frame, source


def read_written_rows(spark: SparkSession, table: WrittenTable) -> DataFrame:
    """Return the rows that this run has written to a table, before they are published. Raises RefusedError."""
    tasks = [FragmentRows(table.target.location, 0, files=(fragment,)) for fragment in table.fragments]
    return read_frame(spark, table.schema, tasks)


def _query(spark: SparkSession, text: str, readable: Collection[str]) -> DataFrame:
    """Run a query. Raises InvalidInputError for one that Spark does not understand.

    On a worker also for one that does more than read these views: the caller who submits a job is not the operator of
    the worker.
    """
    if not is_worker_driver():
        return analyze_sql(spark, text)
    check_parsed_query(spark, text, readable)
    frame = analyze_sql(spark, text)
    check_analyzed_query(frame)
    return frame
