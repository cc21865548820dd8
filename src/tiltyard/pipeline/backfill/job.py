"""Backfill job: compute a column's values, fragment by fragment, checkpointed by commits, beside concurrent writers.

    fragments that lack values → tasks write a file for each → commits add the files that are written so far

A file belongs to the physical rows of its fragment, so it stays valid through appends and deletes. A fragment that a
compaction replaced meanwhile is planned again: values committed before were compacted with it.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import lance
import pyarrow as pa
from lance import LanceOperation
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableColumnNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.model.computed_columns import ExpressionDeclaration, FunctionDeclaration, read_declaration
from tiltyard.model.functions import SCALAR
from tiltyard.model.schemas.column_names import check_column_name
from tiltyard.model.table_history import read_transactions
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.backfill.freshness import (
    ComputedColumn,
    FragmentState,
    files_appended_since,
    fragment_states,
    without_fields,
)
from tiltyard.pipeline.backfill.new_column import NewColumn, try_code
from tiltyard.pipeline.backfill.tasks import ColumnFunction, FilledFragment, FillFragment, fill_fragments
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.delete.job import check_condition
from tiltyard.pipeline.functions.code import FunctionCode
from tiltyard.pipeline.functions.registered import function_code
from tiltyard.pipeline.jobs import check_client_code_allowed, job
from tiltyard.pipeline.runs import ColumnRun
from tiltyard.pipeline.session import task_slots
from tiltyard.pipeline.sources.filesystem import delete_files
from tiltyard.pipeline.sources.types import parse_type
from tiltyard.pipeline.spark_tasks import run_tasks
from tiltyard.pipeline.table_location import CatalogConnection
from tiltyard.pipeline.user_functions import PickledFunction, UserFunction, parse_user_function
from tiltyard.pipeline.version_diff import field_ids, fragments_by_id, group_fragments
from tiltyard.pipeline.writing.commit import CommitConflictError, JobTable, check_column_list

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata
    from pyspark.sql import SparkSession

CHECKPOINT_SECONDS = 10.0
"""How long files that tasks have written wait for their commit, at most."""

ROWS_PER_TASK = 1 << 20
"""Small fragments share a task up to so many rows, which is the size of the fragments that jobs write."""

MAX_ROUNDS = 20


@job("backfill")
def backfill(
    run: ColumnRun,
    catalog: CatalogConnection,
    spark: SparkSession,
    table: Annotated[str, "The table."],
    column: Annotated[str, "The column to fill: one declared as computed, or any with --udf."],
    *,
    where: Annotated[str | None, "SQL condition: only rows that meet it."] = None,
    udf: Annotated[str | None, "A function RecordBatch → Array, as module:function or file.py:function."] = None,
    inputs: Annotated[list[str], "The input columns of the function."] = [],  # noqa: B006  # the registry copies it
    type: Annotated[str | None, "The column's type (float32[128], string, …), if the table lacks the column."] = None,  # noqa: A002  # the option's name
    udf_version: Annotated[str, "Version of the function; values of other versions are stale."] = "",
    branch: Annotated[str | None, "A branch of the table; not supported yet."] = None,
) -> Mapping[str, object]:
    """Compute the values of a column that are missing or stale.

    With --type a column that the table lacks is added, once the function was tried on a few rows. If the job fails or
    is canceled before any value was committed, the column is dropped again.

    \b
    Examples:
      tiltyard job backfill --uri http://127.0.0.1:2333 films embedding
      tiltyard job backfill --uri http://127.0.0.1:2333 films length --udf words.py:length --inputs title --type int64
    """
    if branch:
        raise UnsupportedOperationError("Columns of a branch are not backfilled: fill them on main, and branch then.")
    target = catalog_client.table(catalog, table)
    job_table = JobTable(target)
    dataset = job_table.latest()
    override = _CodeOverride(parse_user_function(udf), tuple(inputs), udf_version) if udf else None
    new_field = pa.field(column, parse_type(type)) if type else None
    if where is not None:
        check_condition(dataset, where)
    new_column = NewColumn.load(run, job_table, column)
    with new_column.dropped_if_empty():
        if override is not None:
            check_column_list(dataset.schema, inputs, "The inputs")
            if new_field is not None and column not in dataset.schema.names:
                check_column_name(column)
                try_code(run, spark, job_table, ColumnFunction(new_field, override.inputs, override.code), where)
                new_column.add(new_field)
                dataset = job_table.latest()
        return _plan_backfill(run, target, job_table, dataset, column, override).run_rounds(spark, where)


@dataclass(frozen=True, slots=True)
class _CodeOverride:
    """Code that the caller brings, used instead of the column's declaration."""

    code: UserFunction
    inputs: tuple[str, ...]
    version: str

    @property
    def identity(self) -> str:
        """Return the digest of the code; the names of files hold it, so its form never changes."""
        code = f"Code(module={self.code.module!r}, name={self.code.name!r}, text={self.code.text!r})"
        return hashlib.sha256(json.dumps([code, self.inputs, self.version]).encode()).hexdigest()


def _plan_backfill(
    run: ColumnRun,
    table: Table,
    job_table: JobTable,
    dataset: lance.LanceDataset,
    name: str,
    override: _CodeOverride | None,
) -> _Backfill:
    """Find what computes the column. Raises TableColumnNotFoundError, InvalidInputError (nothing computes it)."""
    if name not in dataset.schema.names:
        raise TableColumnNotFoundError(f"The table has no column '{name}': declare it, or give --udf and --type.")
    schema_field = dataset.schema.field(name)
    declaration = read_declaration(schema_field.metadata)
    plain_field = pa.field(name, schema_field.type)
    if override is not None:
        identity = override.identity
        function = ColumnFunction(plain_field, override.inputs, override.code)
    elif isinstance(declaration, ExpressionDeclaration):
        expression = declaration.expression
        inputs = tuple(other for other in dataset.schema.names if re.search(rf"\b{re.escape(other)}\b", expression))
        identity, function = declaration.identity, ColumnFunction(plain_field, inputs, None, expression)
    elif isinstance(declaration, FunctionDeclaration):
        check_client_code_allowed()
        check_column_list(dataset.schema, declaration.columns, "The inputs")
        identity = declaration.identity
        code = function_code(run.read_function(), declaration.initialization)
        result = "" if declaration.result == SCALAR else declaration.result
        function = ColumnFunction(plain_field, declaration.columns, code, struct_field=result)
    elif declaration is not None:
        check_client_code_allowed()
        check_column_list(dataset.schema, declaration.inputs, "The inputs")
        identity = declaration.identity
        pickled = PickledFunction(declaration.code)
        function = ColumnFunction(plain_field, declaration.inputs, pickled, struct_field=declaration.struct_field)
    else:
        raise InvalidInputError(
            f"The table does not declare how '{name}' is computed: declare it as a virtual column, or give --udf."
        )
    input_fields = frozenset(number for other in function.inputs for number in field_ids(dataset, other))
    column = ComputedColumn(name, field_ids(dataset, name), input_fields, identity)
    return _Backfill(run, table, job_table, column, function, int(dataset.version))


@dataclass(frozen=True, slots=True)
class _PendingFile:
    """A file that waits for its commit; computed from inputs with this digest, when so many rows were deleted."""

    filled: FilledFragment
    digest: str
    deletions: int


@dataclass(slots=True)
class _Backfill:
    """A backfill in progress. `base` is the version at its beginning; `rows` and `fragments` count committed values."""

    run: ColumnRun
    table: Table
    job_table: JobTable
    column: ComputedColumn
    function: ColumnFunction
    base: int
    rows: int = 0
    fragments: int = 0
    version: int = 0
    _pending: dict[int, _PendingFile] = field(default_factory=dict)
    _partly_done: set[tuple[int, str]] = field(default_factory=set)
    """Fragments, with the digest of their inputs, whose rows that match the condition are computed."""
    _failed: dict[int, int] = field(default_factory=dict)
    """How many rows of a fragment the function failed on."""
    _last_commit: float = field(default_factory=time.monotonic)

    def run_rounds(self, spark: SparkSession, where: str | None) -> Mapping[str, object]:
        """Plan, compute and commit, until all fragments of the beginning are up to date; return the figures.

        Raises ConcurrentModificationError if others replace fragments in each of `MAX_ROUNDS` rounds.
        """
        self.version = self.base
        self.run.progress(source_version=self.base)
        for number in range(MAX_ROUNDS):
            dataset = self.job_table.latest()
            self._check_same_column(dataset)
            tasks = self._plan_tasks(dataset, where, is_first=number == 0)
            if not tasks:
                self._report_remaining(dataset, where)
                return {"rows": self.rows, "fragments": self.fragments, "version": self.version}
            total = self.fragments + len(tasks)
            fragments = fragments_by_id(dataset)

            def handle_result(
                _: int,
                filled: list[FilledFragment],
                planned: Mapping[int, FragmentMetadata] = fragments,
                fragments_total: int = total,
            ) -> None:
                for result in filled:
                    self._record_failures(result)
                    self._add_pending(result, planned[result.fragment_id], partly=where is not None)
                self.run.progress(rows=self.rows, fragments=self.fragments, fragments_total=fragments_total)

            rows = {fragment_id: fragments[fragment_id].physical_rows for fragment_id in tasks}
            groups = group_fragments(rows, ROWS_PER_TASK, task_slots(spark))
            payloads = [tuple(tasks[fragment_id] for fragment_id in group) for group in groups]
            name = f"backfill {self.column.name}"
            run_tasks(spark, self.run, fill_fragments, payloads, on_result=handle_result, name=name)
            self._commit_pending()
        raise ConcurrentModificationError(
            f"Concurrent commits replaced fragments of {self.table} {MAX_ROUNDS} times while they were computed: run "
            "the job again when no compaction runs. Computed values are kept."
        )

    def _plan_tasks(self, dataset: lance.LanceDataset, where: str | None, *, is_first: bool) -> dict[int, FillFragment]:
        """Return a task for each fragment that lacks values; rows appended meanwhile are left to a later run."""
        fragments = fragments_by_id(dataset)
        appended = frozenset() if is_first else files_appended_since(dataset, self.base)
        candidates = [
            fragment
            for fragment in fragments.values()
            if not appended & {str(file.path) for file in fragment.files} and fragment.num_rows
        ]
        location = self.table.location()
        tasks = {}
        for fragment_id, state in fragment_states(dataset, self.column, candidates).items():
            fragment = fragments[fragment_id]
            digest = self.column.digest(fragment)
            if state is FragmentState.FRESH or (fragment_id, digest) in self._partly_done:
                continue
            has_no_values = state is FragmentState.ALL and self.column.file(fragment) is None
            task_state = FragmentState.NULLS if has_no_values and where else state
            file_name = self.column.file_name(fragment, state, partly=where is not None)
            tasks[fragment_id] = FillFragment(
                location, int(dataset.version), fragment_id, task_state, where, self.function, file_name
            )
        return tasks

    def _add_pending(self, filled: FilledFragment, fragment: FragmentMetadata, *, partly: bool) -> None:
        """Hold a task's file until the next commit; a partial file without any new value is deleted instead."""
        digest = self.column.digest(fragment)
        if partly or filled.failed:
            self._partly_done.add((filled.fragment_id, digest))
        if (partly or filled.failed) and not filled.rows:
            self._delete_files([filled])
        else:
            self._pending[filled.fragment_id] = _PendingFile(filled, digest, fragment.num_deletions)
        if time.monotonic() - self._last_commit > CHECKPOINT_SECONDS:
            self._commit_pending()

    def _record_failures(self, filled: FilledFragment) -> None:
        """Record the rows that the function failed on, which stay null."""
        code = self.function.code
        if not filled.failed or not isinstance(code, FunctionCode):
            return
        self._failed[filled.fragment_id] = filled.failed
        self.run.record_errors(
            column=self.column.name,
            fragment_id=filled.fragment_id,
            rows_skipped=filled.failed,
            function=code.name,
            function_version=str(code.version),
            table_version=self.base,
            records=[
                {"row_offset": error.offset, "error_type": error.kind, "error_message": error.message}
                for error in filled.errors
            ],
        )

    def _report_remaining(self, dataset: lance.LanceDataset, where: str | None) -> None:
        """Report how many rows have no value: those that failed and, under a condition, those that it left out."""
        failed = remaining = sum(self._failed.values())
        if where is not None:
            remaining = dataset.scanner(
                columns=[], filter=f"`{self.column.name}` IS NULL", with_row_id=True
            ).count_rows()
        if failed or remaining:
            self.run.progress(rows_failed=failed, rows_remaining=remaining)

    def _delete_files(self, filled: Sequence[FilledFragment]) -> None:
        if not filled:
            return
        location = self.table.location()
        delete_files([f"{location.uri}/data/{result.file.path}" for result in filled], location.options)

    def _commit_pending(self) -> None:
        """Commit the pending files on the newest version; delete those that do not fit its fragments any more."""
        while self._pending:
            self.run.check()
            dataset = self.job_table.latest()
            self._check_same_column(dataset)
            updated = self._apply_pending(dataset)
            if not updated:
                break
            operation = LanceOperation.Update(
                updated_fragments=list(updated.values()),
                fields_modified=sorted(self.column.fields),
                update_mode="rewrite_columns",
            )
            verify = partial(_has_only_appends, dataset)
            try:
                self.version = self.job_table.commit(dataset, operation, self.run, self.column.name, verify=verify)
            except CommitConflictError:
                continue
            self.fragments += len(updated)
            self.rows += sum(self._pending.pop(fragment_id).filled.rows for fragment_id in updated)
            break
        for fragment_id in self._pending:
            self._failed.pop(fragment_id, None)  # another fragment has its rows by now
        self._delete_files([pending.filled for pending in self._pending.values()])
        self._pending.clear()
        self._last_commit = time.monotonic()
        if self.version > self.base:
            self.run.progress(version=self.version)

    def _apply_pending(self, dataset: lance.LanceDataset) -> dict[int, FragmentMetadata]:
        """Return the fragments of `dataset` with their pending files, of those whose inputs have not changed."""
        fragments = fragments_by_id(dataset)
        updated = {}
        for fragment_id, pending in self._pending.items():
            fragment = fragments.get(fragment_id)
            if fragment is None or self.column.digest(fragment) != pending.digest:
                continue
            # A restored version may have rows again that were deleted, and so not computed.
            if fragment.num_deletions >= pending.deletions:
                files = [without_fields(file, self.column.fields) for file in fragment.files]
                updated[fragment_id] = replace(fragment, files=[*(file for file in files if file), pending.filled.file])
        return updated

    def _check_same_column(self, dataset: lance.LanceDataset) -> None:
        """Raise ConcurrentModificationError if the column was changed, dropped or replaced."""
        name = self.column.name
        if name not in dataset.schema.names or dataset.schema.field(name).type != self.function.field.type:
            raise ConcurrentModificationError(f"The column '{name}' was changed or dropped meanwhile.")
        if field_ids(dataset, name) != self.column.fields:
            raise ConcurrentModificationError(
                f"The column '{name}' was dropped and created again meanwhile: run the job again."
            )


def _has_only_appends(old: lance.LanceDataset, new: lance.LanceDataset) -> bool:
    """Return whether all commits after `old`, up to `new`, are appends."""
    operations = [transaction.operation for _, transaction in read_transactions(new, old.version)]
    return len(operations) == new.version - old.version and all(
        isinstance(operation, LanceOperation.Append) for operation in operations
    )
