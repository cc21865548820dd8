"""Backfill job: compute a column's values in Spark's tasks, checkpointed by commits, beside concurrent writers.

What is computed, and how it is committed, is `tiltyard.column_refresh`, which the server's own worker uses, too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Unpack

import lance
import pyarrow as pa
from lance import LanceOperation
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

from tiltyard.column_refresh.fragment_files import BATCH_ROWS, FilledFragment, FragmentPlan
from tiltyard.column_refresh.freshness import ComputedColumn
from tiltyard.column_refresh.refresh import ColumnRefresh
from tiltyard.model.branches import Branch
from tiltyard.model.columns.computed_columns import (
    ExpressionDeclaration,
    FunctionDeclaration,
    find_siblings,
    input_columns,
    read_declaration,
    result_field,
)
from tiltyard.model.columns.lineage import ColumnOrigin, Origins, function_origins, sql_inputs
from tiltyard.model.lineage import digest_code
from tiltyard.model.schemas.column_names import check_column_name
from tiltyard.model.schemas.type_names import parse_type
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.backfill.new_column import NewColumn, try_code
from tiltyard.pipeline.backfill.parked import parked_conditions
from tiltyard.pipeline.backfill.tasks import ColumnFunction, FilledColumn, FillFragment, Rejects, fill_fragments
from tiltyard.pipeline.delete.job import check_condition
from tiltyard.pipeline.functions.call_options import CallOptions, make_policy
from tiltyard.pipeline.functions.code import FunctionCode
from tiltyard.pipeline.functions.registered import function_code
from tiltyard.pipeline.functions.user_functions import (
    PickledFunction,
    UserFunction,
    find_result_type,
    parse_user_function,
)
from tiltyard.pipeline.jobs import Alias, ColumnNames, check_client_code_allowed, job
from tiltyard.pipeline.lineage import own_rows_lineage
from tiltyard.pipeline.runs import ColumnRun
from tiltyard.pipeline.session import LazySession, task_slots
from tiltyard.pipeline.sources.filesystem import absolute_path, delete_files
from tiltyard.pipeline.spark_tasks import group_for_tasks, run_tasks
from tiltyard.pipeline.table_location import CatalogConnection
from tiltyard.pipeline.version_diff import has_only_appends
from tiltyard.pipeline.writing.commit import CommitConflictError, JobTable, check_column_list

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_PER_TASK = 1 << 20
"""Small fragments share a task up to so many rows, which is the size of the fragments that jobs write."""

_BASE_KEY = "base"
"""The checkpoint of the version at which the first driver of a run began."""


@job("backfill", lazy=True)
def backfill(
    run: ColumnRun,
    catalog: CatalogConnection,
    spark: SparkSession | LazySession,
    table: Annotated[str, "The table."],
    column: Annotated[str, "The column to fill: one declared as computed, or any with --udf."],
    *,
    filter: Annotated[str | None, "SQL condition: only rows that meet it.", Alias("where")] = None,  # noqa: A002  # Lance's own name
    udf: Annotated[
        str | None,
        "A function RecordBatch → Array, as module:function or file.py:function; or a ready-made one: "
        "embed_text(model='wordllama').",
    ] = None,
    inputs: Annotated[list[str], "The input columns of the function: a,b.", ColumnNames()] = [],  # noqa: B006  # the registry copies it
    type: Annotated[  # noqa: A002  # the option's name
        str | None,
        "The column's type (float32[128], string, …), if the table lacks the column; not of ready-made functions.",
    ] = None,
    udf_version: Annotated[str, "Version of the function; values of other versions are stale."] = "",
    branch: Annotated[str | None, "A branch of the table [default: main]."] = None,
    rejects: Annotated[
        str | None, "A folder for rows that the code fails on, which become null, besides the errors that are kept."
    ] = None,
    concurrency: Annotated[int | None, "How many tasks compute values at once, at most."] = None,
    batch_rows: Annotated[int, "How many rows the code is called with at once, at most."] = BATCH_ROWS,
    rows_per_task: Annotated[int, "Small fragments share a task up to so many rows."] = ROWS_PER_TASK,
    parked: Annotated[bool, "Only the rows that earlier backfills have parked, and that have no value yet."] = False,
    **call: Unpack[CallOptions],
) -> Mapping[str, object]:
    """Compute the values of a column that are missing or stale.

    With --type a column that the table lacks is added, once the function was tried on a few rows. If the job fails or
    is canceled before any value was committed, the column is dropped again.

    \b
    Examples:
      tiltyard job backfill --uri http://127.0.0.1:2333 films embedding
      tiltyard job backfill --uri http://127.0.0.1:2333 films length --udf words.py:length --inputs title --type int64
      tiltyard job backfill --uri http://127.0.0.1:2333 films language --udf detect_language --inputs description
    """
    _check_sizes(concurrency=concurrency, batch_rows=batch_rows, rows_per_task=rows_per_task)
    target = catalog_client.table(catalog, table)
    job_table = JobTable(target, Branch.parse(branch).lance_name)
    dataset = job_table.latest()
    override = _CodeOverride(parse_user_function(udf), tuple(inputs), udf_version) if udf else None
    if parked and filter is not None:
        raise InvalidInputError("parked names the rows to compute: leave filter out.")
    kind = parse_type(type) if type else find_result_type(udf)
    new_field = pa.field(column, kind) if kind is not None else None
    if filter is not None:
        check_condition(dataset, filter)
    new_column = NewColumn.load(run, job_table, column)
    with new_column.dropped_if_empty():
        if override is not None:
            check_column_list(dataset.schema, inputs, "The inputs")
            if new_field is not None and column not in dataset.schema.names:
                check_column_name(column)
                function = ColumnFunction((FilledColumn(new_field),), override.inputs, override.code)
                function = _with_policy(run, catalog, function, call, rejects)
                try_code(run, spark, job_table, function, filter)
                new_column.add(new_field)
                dataset = job_table.latest()
        function, columns = _find_function(run, dataset, column, override)
        function = _with_policy(run, catalog, function, call, rejects)
        code = digest_code(json.dumps(sorted(each.identity for each in columns)))
        made = _origins(dataset, function, columns)
        job_table.lineage = own_rows_lineage("backfill", target, int(dataset.version), job_table.branch, code, made)
        host = SparkHost(run, spark, job_table, function, udf_version, concurrency, batch_rows, rows_per_task)
        only = parked_conditions(catalog.caller(), target, dataset, column) if parked else None
        return ColumnRefresh(host, str(target), columns, filter, only).run()


def _check_sizes(**sizes: int | None) -> None:
    """Raise InvalidInputError for a size below 1; None is that of the job."""
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise InvalidInputError(f"{name} is {size}: it is 1 or more.")


def _with_policy(
    run: ColumnRun, catalog: CatalogConnection, function: ColumnFunction, options: CallOptions, folder: str | None
) -> ColumnFunction:
    """Return the function with how it is called, and with the folder for rows that it fails on, if one is given.

    Raises InvalidInputError, RefusedError for what its kind of code cannot.
    """
    if isinstance(function.code, FunctionCode):
        if folder is not None:
            raise InvalidInputError(
                f"The column '{function.name}' is computed by a registered function, whose errors the catalog keeps: "
                "leave --rejects out."
            )
        if options.get("requirements"):
            raise InvalidInputError(
                f"The column '{function.name}' is computed by a registered function, whose definition says what it "
                "needs: leave requirements out."
            )
        policy = make_policy(options)
        return replace(function, policy=replace(policy, on_error=options.get("on_error") or "park"))
    if folder is not None and function.code is None:
        raise InvalidInputError(f"The column '{function.name}' is computed by an SQL expression: leave --rejects out.")
    policy = make_policy(options, has_function=function.code is not None, rejects=folder)
    rejects = Rejects(absolute_path(folder), run.id, dict(catalog.storage)) if folder is not None else None
    return replace(function, policy=policy, rejects=rejects)


@dataclass(frozen=True, slots=True)
class _CodeOverride:
    """Code that the caller brings, used instead of the column's declaration."""

    code: UserFunction | PickledFunction
    inputs: tuple[str, ...]
    version: str

    @property
    def identity(self) -> str:
        """Return the digest of the code; the names of files hold it, so its form never changes."""
        code = self.code.code if isinstance(self.code, PickledFunction) else _describe_code(self.code)
        return hashlib.sha256(json.dumps([code, self.inputs, self.version]).encode()).hexdigest()


def _describe_code(code: UserFunction) -> str:
    return f"Code(module={code.module!r}, name={code.name!r}, text={code.text!r})"


def _find_function(
    run: ColumnRun, dataset: lance.LanceDataset, name: str, override: _CodeOverride | None
) -> tuple[ColumnFunction, tuple[ComputedColumn, ...]]:
    """Return what computes the column, and the columns that it fills: with it, those of the same call's other results.

    Raises TableColumnNotFoundError, InvalidInputError (nothing computes it).
    """
    if name not in dataset.schema.names:
        raise TableColumnNotFoundError(f"The table has no column '{name}': declare it, or give --udf and --type.")
    declaration = read_declaration(dataset.schema.field(name).metadata)
    if override is not None:
        function = ColumnFunction((_output(dataset, name),), override.inputs, override.code)
        identities = {name: override.identity}
    elif isinstance(declaration, ExpressionDeclaration):
        inputs = input_columns(dataset.schema, declaration.expression)
        function = ColumnFunction((_output(dataset, name),), inputs, None, declaration.expression)
        identities = {name: declaration.identity}
    elif declaration is not None:
        check_client_code_allowed()
        siblings = find_siblings(dataset.schema, name, declaration)
        identities = {sibling: found.identity for sibling, found in siblings.items()}
        outputs = tuple(_output(dataset, sibling, result_field(found)) for sibling, found in siblings.items())
        if isinstance(declaration, FunctionDeclaration):
            code: FunctionCode | PickledFunction = function_code(run.read_function(), declaration.initialization)
            inputs = declaration.columns
        else:
            code, inputs = PickledFunction(declaration.code), declaration.inputs
        check_column_list(dataset.schema, inputs, "The inputs")
        function = ColumnFunction(outputs, inputs, code)
    else:
        raise InvalidInputError(
            f"The table does not declare how '{name}' is computed: declare it as a virtual column, or give --udf."
        )
    columns = (ComputedColumn.of(dataset, other, function.inputs, identity) for other, identity in identities.items())
    return function, tuple(columns)


def _origins(dataset: lance.LanceDataset, function: ColumnFunction, columns: Sequence[ComputedColumn]) -> Origins:
    """Return what the columns of a backfill are made from, for its lineage."""
    names = dataset.schema.names
    if function.code is None:
        inputs = sql_inputs(function.expression, (name for name in names if name != function.name))
        return (ColumnOrigin(function.name, inputs),)
    return function_origins(names, function.inputs, [(each.name, each.identity) for each in columns])


def _output(dataset: lance.LanceDataset, name: str, struct_field: str = "") -> FilledColumn:
    return FilledColumn(pa.field(name, dataset.schema.field(name).type), struct_field)


@dataclass(frozen=True, slots=True)
class SparkHost:
    """Runs a refresh in Spark's tasks, up to `concurrency` at once; commits through the namespace."""

    run: ColumnRun
    spark: SparkSession | LazySession
    job_table: JobTable
    function: ColumnFunction
    udf_version: str
    concurrency: int | None
    batch_rows: int
    rows_per_task: int

    @property
    def id(self) -> str:
        return self.run.id

    def base_version(self) -> int | None:
        """Return the version that the first driver of this run has saved; save it, if this is the first."""
        saved = self.run.checkpoints().get(_BASE_KEY)
        if saved is None:
            self.run.save_checkpoint(_BASE_KEY, str(self.job_table.latest().version))
        return None if saved is None else int(saved)

    def latest(self) -> lance.LanceDataset:
        return self.job_table.latest()

    def committing(self) -> AbstractContextManager[object]:
        return nullcontext()

    def commit(
        self, dataset: lance.LanceDataset, operation: LanceOperation.Update, properties: Mapping[str, str]
    ) -> int | None:
        verify = partial(has_only_appends, dataset)
        self._check_rights()
        try:
            return self.job_table.commit(
                dataset, operation, self.run, self.function.name, verify=verify, properties=properties
            )
        except CommitConflictError:
            return None

    def fill(
        self,
        plans: Sequence[FragmentPlan],
        rows: Mapping[int, int],
        on_filled: Callable[[Sequence[FilledFragment]], None],
    ) -> None:
        """Run the plans in tasks, of which small fragments share some. Raises what `run_tasks` raises."""
        self._check_rights()
        location, branch = self.job_table.table.location(), self.job_table.branch
        tasks = {
            plan.fragment_id: FillFragment(location, branch, plan, self.function, self.run.id, self.batch_rows)
            for plan in plans
        }
        slots = task_slots(self.spark) if self.concurrency is None else min(self.concurrency, task_slots(self.spark))
        groups = group_for_tasks(rows.items(), self.rows_per_task, slots)
        run_tasks(
            self.spark,
            self.run,
            fill_fragments,
            [tuple(tasks[fragment_id] for fragment_id in group) for group in groups],
            on_result=lambda _, filled: on_filled(filled),
            name=f"backfill {self.function.name}",
            at_once=self.concurrency,
            resources=self.function.policy.resources,
        )

    def _check_rights(self) -> None:
        """Check that a registered function may still be run, with its secrets. Raises as ReadJobFunction does."""
        if isinstance(self.function.code, FunctionCode):
            self.run.read_function()

    def delete_files(self, names: Sequence[str]) -> None:
        location = self.job_table.table.location()
        folder = location.data_folder(self.job_table.branch)
        delete_files([f"{folder}/{name}" for name in names], location.options)

    def record_failures(self, filled: FilledFragment, version: int) -> None:
        if self.function.policy.on_error != "park":
            return
        code = self.function.code
        self.run.record_errors(
            column=self.function.name,
            fragment_id=filled.fragment_id,
            rows_skipped=filled.failed,
            function=code.name if isinstance(code, FunctionCode | UserFunction) else self.function.name,
            function_version=str(code.version) if isinstance(code, FunctionCode) else self.udf_version,
            table_version=version,
            records=[
                {"row_offset": error.row, "error_type": error.kind, "error_message": error.message}
                for error in filled.errors
            ],
        )

    def progress(self, **figures: object) -> None:
        self.run.progress(**figures)
