"""Compute a view's rows with Spark: register the sources for its SQL, run the query and the view's code, write files.

A view's code comes in the envelope that Lance's own clients send: JSON with the pickled callable (`chunker_payload`,
`udtf_payload`, base64) and the schema of its output. It is loaded in tasks only.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.model.columns.lineage import Origins, ReadColumns
from tiltyard.model.lineage import digest_code
from tiltyard.model.text.sql_text import quote_identifier
from tiltyard.model.views.definitions import DETERMINISTIC, ViewDefinition, ViewKind, query_columns
from tiltyard.pipeline.backfill.tasks import ColumnFunction
from tiltyard.pipeline.datasource.dataframes import TaskRows, plan_version_scan, read_frame
from tiltyard.pipeline.datasource.spark_types import arrow_schema
from tiltyard.pipeline.functions.call_policy import PLAIN_POLICY, CallPolicy
from tiltyard.pipeline.functions.calls import GuardedFunction
from tiltyard.pipeline.functions.user_functions import PickledFunction
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import task_slots
from tiltyard.pipeline.sources.casts import ColumnMapping, ColumnSelection, map_to_table, select_columns
from tiltyard.pipeline.spark_tasks import run_partitions, run_tasks
from tiltyard.pipeline.views.computed_columns import column_functions, find_code
from tiltyard.pipeline.views.computed_values import ReusableValues, ViewColumn
from tiltyard.pipeline.views.group_keys import GroupKeys
from tiltyard.pipeline.views.planning import QueryPart
from tiltyard.pipeline.views.query_analysis import analyze_query
from tiltyard.pipeline.views.sources import SourceTable
from tiltyard.pipeline.views.tasks import (
    ChangedSourceRows,
    Chunker,
    GroupRows,
    TableFunction,
    rewrite_first_rows,
    write_groups,
)
from tiltyard.pipeline.writing.fragments import FragmentRows, FragmentTarget, parse_fragments
from tiltyard.pipeline.writing.row_sources import write_partitions
from tiltyard.pipeline.writing.tasks import WriteResult, WriteSpec
from tiltyard.view_refresh.added_columns import AddedColumns, ColumnCounts
from tiltyard.view_refresh.net_changes import NetChanges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_ROWS_PER_CODE_TASK = 32
"""How many changed rows of a source are worth a task of their own, where code computes columns."""
_CHUNKER_BATCH_ROWS = "1000"
"""How many rows a chunker is called with at once, for each may become many."""


def register_schemas(spark: SparkSession, sources: Mapping[str, SourceTable]) -> None:
    """Register the sources as views of Spark for planning alone: nothing is read, and nothing can be."""
    for name, source in sources.items():
        _register(name, read_frame(spark, source.dataset.schema, [FragmentRows(source.location, 0)]))


@dataclass(frozen=True, slots=True)
class ViewWriter:
    """Compute and write the rows of parts of the sources; of the sources, only the columns `needed` are read.

    `policy` says how the view's code is called; rows that are parked are written to the folder `rejects`. `changes` are
    those of the tables that parts name as changed. Of a table with `groups`, only their rows are read. `columns` are
    computed by code, but for values that are `reusable`, once these are known.
    """

    run: Run
    spark: SparkSession
    table: str
    definition: ViewDefinition
    sources: Mapping[str, SourceTable]
    target: FragmentTarget
    needed: frozenset[str]
    policy: CallPolicy
    rejects: str | None
    storage: Mapping[str, str]
    changes: Mapping[str, NetChanges]
    groups: GroupKeys | None
    columns: Mapping[str, ColumnFunction] = field(default_factory=dict)
    reusable: Mapping[str, ReusableValues] | None = None

    def write_part(self, part: QueryPart, number: int) -> WriteResult:
        """Write the rows of a part; nothing is committed. Raises RefusedError, RunCanceledError."""
        for name, source in self.sources.items():
            frame = read_frame(self.spark, source.dataset.schema, self._plan_scan(part, source), self.needed)
            _register(self.definition.source_name(name), frame)
        frame = analyze_query(self.spark, self.definition.query)
        if part.removes:
            # Rows that the code fails on are not known to be in the view, whatever became of them when they were added.
            plain = replace(self, policy=replace(self.policy, on_error="fail"), rejects=None)
            results = plain._write_query(frame, number, AddedColumns(self.target.schema, (), ()))
        else:
            results = self._write_query(self._spread(frame, part), number, self._added_columns())
        return WriteResult(
            tuple(fragment for result in results for fragment in result.fragments),
            sum(result.rows for result in results),
            sum(result.rejected for result in results),
            sum(result.size for result in results),
            {},
            ColumnCounts(
                sum(result.columns.computed for result in results),
                sum(result.columns.reused for result in results),
                sum(result.columns.failed for result in results),
            ),
        )

    def _added_columns(self) -> AddedColumns:
        """Return how the columns besides those of the query are computed."""
        known = self.reusable or {}
        code = {name: ViewColumn(function, known.get(name)) for name, function in self.columns.items()}
        return AddedColumns.of(self.target.schema, code=code)

    def _spread(self, frame: DataFrame, part: QueryPart) -> DataFrame:
        """Spread changed rows over tasks where code computes columns of them: that takes longer than to read them."""
        if not (self.columns and part.changed):
            return frame
        rows = sum(map(len, self.changes[part.changed].gained))
        tasks = min(task_slots(self.spark), -(-rows // _ROWS_PER_CODE_TASK))
        return frame if tasks <= len(self.changes[part.changed].gained) else frame.repartition(tasks)

    def _plan_scan(self, part: QueryPart, source: SourceTable) -> Sequence[TaskRows]:
        """Return tasks that read a part's rows of a source."""
        if source.name == part.changed:
            changes = self.changes[source.name]
            parts = changes.lost if part.removes else changes.gained
            return [ChangedSourceRows(source.location, rows) for rows in parts]
        fragments = frozenset(part.fragments.get(source.name, ()))
        tasks = plan_version_scan(self.spark, source.location, source.dataset, fragments)
        if self.groups is None or self.groups.table != source.name:
            return tasks
        values = self.groups.values
        return [GroupRows(task.location, task.version, task.fragments, values) for task in tasks]

    def _write_query(self, frame: DataFrame, number: int, added: AddedColumns) -> list[WriteResult]:
        """Write the rows of the query, after the view's code if it has any."""
        columns = tuple(select_columns(arrow_schema(frame.schema), ColumnSelection()))
        schema = pa.schema([self.target.schema.field(name) for name in query_columns(self.target.schema)])
        if self.definition.kind is ViewKind.QUERY:
            table_columns = tuple(map_to_table(frame.columns, schema, ()))
            return write_partitions(self.run, frame, self._write_spec(columns, None, table_columns, added))
        code = parse_view_code(self.definition, schema, frame.columns, self.policy)
        view_columns = tuple(map_to_table(schema.names, schema, ()))
        if isinstance(code, Chunker):
            self.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", _CHUNKER_BATCH_ROWS)
            return write_partitions(
                self.run, frame, self._write_spec(columns, GuardedFunction(code, self.policy), view_columns, added)
            )
        groups = _partition_by_group(frame, code.partition_by)
        work = partial(write_groups, self._write_spec(view_columns, None, None, added), code, columns)
        return run_partitions(
            self.spark,
            self.run,
            groups,
            work,
            name=f"refresh {number}",
            reports_tasks=True,
            resources=self.policy.resources,
        )

    def _write_spec(
        self,
        columns: tuple[ColumnMapping, ...],
        code: GuardedFunction | None,
        table_columns: tuple[ColumnMapping, ...] | None,
        added: AddedColumns,
    ) -> WriteSpec:
        return WriteSpec(
            self.run.id, self.target, columns, code, table_columns, (), self.rejects, self.storage, hides_rows=True,
            added=added, column_resources=self.policy.resources if self.columns else (),
        )  # fmt: skip


def _partition_by_group(frame: DataFrame, column: str | None) -> DataFrame:
    """Put the rows of each group into one partition, next to each other; without a column, all rows into one."""
    if column is None:
        return frame.repartition(1)
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # Spark's own custom; an extra

    return frame.repartition(F.col(column)).sortWithinPartitions(F.col(column))


def _register(name: str, frame: DataFrame) -> None:
    frame.createOrReplaceTempView(quote_identifier(name))


def truncate(
    run: Run, target: FragmentTarget, fragments: list[str], limit: int
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Limit fragments to so many rows; return the fragments to commit, and those to delete.

    Of the fragment at the limit, the first rows are written again. Raises RefusedError.
    """
    within: list[str] = []
    rows = 0
    for position, fragment in enumerate(fragments):
        count = parse_fragments([fragment])[0].num_rows
        if rows + count <= limit:
            within.append(fragment)
            rows += count
            continue
        if rows < limit:
            within += run_tasks(None, run, partial(rewrite_first_rows, target, fragment), [limit - rows])[0]
        return tuple(within), tuple(fragments[position:])
    return tuple(within), ()


def parse_view_code(
    definition: ViewDefinition, view: pa.Schema, query_columns: Sequence[str], policy: CallPolicy
) -> Chunker | TableFunction:
    """Parse the code of a view whose query has these columns; nothing of it is loaded. Raises InvalidInputError."""
    udtf = json.loads(definition.udtf)
    kind, name = definition.kind, udtf["udtf_name"]
    envelope = _parse_envelope(udtf["udtf"], f"{kind}_payload")
    code = PickledFunction(envelope[f"{kind}_payload"])
    input_columns = udtf.get("input_columns")
    inputs = tuple(input_columns if input_columns is not None else envelope.get("input_columns") or ())
    if kind is ViewKind.UDTF:
        if udtf.get("partition_by_indexed_column"):
            raise InvalidInputError("Name the column to group by as 'partition_by': any column will do.")
        return TableFunction(
            name, GuardedFunction(code, policy), inputs, udtf.get("partition_by") or envelope.get("partition_by")
        )
    if not inputs:
        raise InvalidInputError(f"The chunker '{name}' reads no column: name its input_columns.")
    outputs = _output_columns(envelope, view, query_columns)
    batch = udtf.get("batch")
    return Chunker(name, code, inputs, outputs, view, bool(envelope.get("batch") if batch is None else batch))


def is_repeatable(definition: ViewDefinition) -> bool:
    """Return whether a view's rows can be computed again as they were: by no code, or a deterministic chunker's.

    Raises InvalidInputError.
    """
    if definition.kind is not ViewKind.CHUNKER:
        return definition.kind is ViewKind.QUERY
    return _parse_envelope(json.loads(definition.udtf)["udtf"], "chunker_payload").get(DETERMINISTIC) is True


def _output_columns(envelope: Mapping[str, Any], view: pa.Schema, query_columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that a chunker outputs: those of its schema, else those of the view that the query lacks."""
    if "output_schema_bytes" in envelope:
        names = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(envelope["output_schema_bytes"]))).names
        if unknown := [name for name in names if name not in view.names]:
            raise InvalidInputError(f"The view has no column '{unknown[0]}' for what its chunker makes.")
        return tuple(names)
    return tuple(name for name in view.names if name not in query_columns)


def _parse_envelope(text: str, payload: str) -> Mapping[str, Any]:
    """Parse an envelope, which has to have this payload. Raises InvalidInputError."""
    try:
        envelope = json.loads(base64.b64decode(text))
    except ValueError as error:
        raise InvalidInputError(f"The udtf is no JSON in base64: {error}.") from error
    if not isinstance(envelope, dict) or not isinstance(envelope.get(payload), str):
        raise InvalidInputError(f"The udtf is JSON with the pickled callable, in base64, as '{payload}'.")
    return envelope


def view_origins(
    view: pa.Schema, definition: ViewDefinition, query: Sequence[str], read: ReadColumns
) -> Origins | None:
    """Return the origins of the columns of a view whose query has the columns `query`, made as `read` says."""
    if read.inputs is None:
        return None
    schema = pa.schema([view.field(name) for name in query_columns(view)])
    made = _made_by_query(schema, definition, query, read)
    if made is None:
        return None
    functions = column_functions(find_code(definition, view), view, PLAIN_POLICY)
    added = AddedColumns.of(view, code={name: ViewColumn(each) for name, each in functions.items()})
    return (*made, *added.origins(made))


def _made_by_query(
    schema: pa.Schema, definition: ViewDefinition, query: Sequence[str], read: ReadColumns
) -> Origins | None:
    if definition.kind is ViewKind.QUERY:
        return read.origins([(name, name) for name in schema.names])
    code = parse_view_code(definition, schema, query, PLAIN_POLICY)
    digest, inputs = digest_code(definition.udtf), [name.partition(".")[0] for name in code.inputs or query]
    if not isinstance(code, Chunker):
        return read.made_by(digest, schema.names, inputs)
    kept = read.origins([(name, name) for name in schema.names if name not in code.outputs]) or ()
    return (*kept, *(read.made_by(digest, code.outputs, inputs) or ()))
