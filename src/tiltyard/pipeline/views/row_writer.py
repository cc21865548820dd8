"""A view's rows, made by Spark: tables are shown to its SQL, and what comes of that is written as Lance files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tiltyard.model.view_definitions import ViewDefinition, ViewKind
from tiltyard.pipeline.datasource.fragment_frames import rows_of_version, shown
from tiltyard.pipeline.datasource.spark_types import arrow_schema
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.spark_tasks import run_partitions, run_tasks
from tiltyard.pipeline.sql.isolated_session import quoted
from tiltyard.pipeline.views.code import code_of
from tiltyard.pipeline.views.planning import Part
from tiltyard.pipeline.views.query_analysis import planned
from tiltyard.pipeline.views.sources import Source
from tiltyard.pipeline.views.tasks import Chunker, first_rows, write_groups
from tiltyard.pipeline.writing.casts import ColumnMapping, ColumnSelection, map_to_table, select_columns
from tiltyard.pipeline.writing.dataframes import write_partitions
from tiltyard.pipeline.writing.fragments import FragmentRows, FragmentTarget, delete_fragment_files, parse_fragments
from tiltyard.pipeline.writing.tasks import WriteResult, WriteSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CHUNKED_ROWS = "1000"
"""How many rows a chunker is given at once, for each may become many."""


def show_nothing(spark: SparkSession, sources: Mapping[str, Source]) -> None:
    """Show the tables to the planner alone: nothing is read, and nothing can be."""
    for name, source in sources.items():
        _show(name, shown(spark, source.dataset.schema, [FragmentRows(source.location, 0)]))


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes rows of parts of tables. `target` is how they are written."""

    run: Run
    spark: SparkSession
    definition: ViewDefinition
    sources: Mapping[str, Source]
    target: FragmentTarget
    needed: frozenset[str]

    def make(self, part: Part, number: int) -> WriteResult:
        """Write the rows of a part, which no version names yet. Raises RefusedError, RunCanceledError."""
        for name, source in self.sources.items():
            only = frozenset(part.get(name, ()))
            tasks = rows_of_version(self.spark, source.location, source.dataset, only)
            _show(name, shown(self.spark, source.dataset.schema, tasks, self.needed))
        written = self._written(planned(self.spark, self.definition.query), number)
        return WriteResult(
            tuple(fragment for one in written for fragment in one.fragments),
            sum(one.rows for one in written),
            0,
            sum(one.size for one in written),
            {},
        )

    def _written(self, frame: DataFrame, number: int) -> list[WriteResult]:
        columns = tuple(select_columns(arrow_schema(frame.schema), ColumnSelection()))
        view = self.target.schema
        if self.definition.kind is ViewKind.QUERY:
            fitted = tuple(map_to_table(frame.columns, view, ()))
            return write_partitions(self.run, frame, self._recipe(columns, None, fitted))
        code = code_of(self.definition, view, frame.columns)
        whole = tuple(map_to_table(view.names, view, ()))
        if isinstance(code, Chunker):
            self.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", _CHUNKED_ROWS)
            return write_partitions(self.run, frame, self._recipe(columns, code, whole))
        grouped = _grouped(frame, code.partition_by)
        work = partial(write_groups, self._recipe(whole, None, None), code, columns)
        return run_partitions(self.spark, self.run, grouped, work, name=f"refresh {number}", told=True)

    def _recipe(
        self, columns: tuple[ColumnMapping, ...], code: Chunker | None, fitted: tuple[ColumnMapping, ...] | None
    ) -> WriteSpec:
        return WriteSpec(self.run.id, self.target, columns, code, fitted, discreet=True)


def _grouped(frame: DataFrame, by: str | None) -> DataFrame:
    """The rows of each group in one partition, one after the other; without groups, all in one."""
    if by is None:
        return frame.repartition(1)
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # Spark's own custom; an extra

    return frame.repartition(F.col(by)).sortWithinPartitions(F.col(by))


def _show(name: str, frame: DataFrame) -> None:
    frame.createOrReplaceTempView(quoted(name))


@dataclass(frozen=True, slots=True)
class Cut:
    """Fragments for at most so many rows: those that are taken, and those that nobody commits."""

    taken: tuple[str, ...]
    left: tuple[str, ...]


def cut(run: Run, target: FragmentTarget, fragments: list[str], most: int) -> Cut:
    """Take fragments up to `most` rows; of the last one, only the first rows are written again. Raises RefusedError."""
    taken: list[str] = []
    rows = 0
    for position, fragment in enumerate(fragments):
        count = parse_fragments([fragment])[0].num_rows
        if rows + count <= most:
            taken.append(fragment)
            rows += count
            continue
        if rows < most:
            taken += run_tasks(None, run, partial(first_rows, target, fragment), [most - rows])[0]
        return Cut(tuple(taken), tuple(fragments[position:]))
    return Cut(tuple(taken), ())


def throw_away(target: FragmentTarget, fragments: tuple[str, ...]) -> None:
    """Delete files that nobody will commit."""
    delete_fragment_files(target.location, fragments)
