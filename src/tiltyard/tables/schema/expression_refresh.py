"""Refresh columns of SQL expressions over small tables by the servers' own workers, without Spark.

It is the refresh that Spark runs (`tiltyard.column_refresh`), fragment by fragment in one thread: the same engine
computes the same values, and the same commits record them. Code of callers never runs here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance.fragment import DataFile
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, TableColumnNotFoundError

from tiltyard.catalog.jobs.authorization import authorize_submitter
from tiltyard.column_refresh.fragment_files import (
    BATCH_ROWS,
    Computation,
    ComputedRows,
    FilledFragment,
    write_column_files,
)
from tiltyard.column_refresh.freshness import ComputedColumn
from tiltyard.column_refresh.refresh import ColumnRefresh
from tiltyard.model.branches import Branch
from tiltyard.model.columns.blob_columns import has_blobs
from tiltyard.model.columns.computed_columns import ExpressionDeclaration, input_columns, read_declaration
from tiltyard.model.columns.lineage import ColumnOrigin, sql_inputs
from tiltyard.model.jobs import Job, JobCanceledError, job
from tiltyard.model.lineage import CommitLineage, JobLineage, LineageSource
from tiltyard.model.schemas.nested_types import cast_array
from tiltyard.storage.caches.version_cache import CachedVersion
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locks import LockKind
from tiltyard.storage.writing import commit_next, discard_files, make_files_durable
from tiltyard.tables.lance_sql.expressions import check_expression
from tiltyard.tables.query.batch_sizes import batch_options
from tiltyard.tables.rows.write_target import WriteTarget
from tiltyard.tables.versions.lineage import add_commit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    import lance

    from tiltyard.column_refresh.fragment_files import FragmentPlan
    from tiltyard.context import Context, OpenTable
    from tiltyard.model.columns.computed_columns import Declaration

REFRESH_COLUMN = "refresh_column"

_REPORTED_ROWS = 100_000


def is_refreshed_here(ctx: Context, table: OpenTable, column: str, declaration: Declaration | None) -> bool:
    """Return whether a server's worker refreshes a column, and not Spark.

    It does for SQL over a table of at most `column_refresh_rows` rows that this catalog commits to by itself. SQL that
    a request could not declare, as it may have come with a manifest of a client, is left to Spark, and so are columns
    of blobs and expressions that read such.
    """
    if not isinstance(declaration, ExpressionDeclaration) or table.record.mount_id is not None:
        return False
    schema = table.dataset.schema
    names = (column, *input_columns(schema, declaration.expression))
    if has_blobs(schema.field(name) for name in names if name in schema.names):
        return False
    try:
        check_expression(declaration.expression, "expression")
    except InvalidInputError:
        return False
    return table.snapshot.count_rows() <= ctx.settings.column_refresh_rows


@job(REFRESH_COLUMN)
def refresh_column(ctx: Context, running: Job) -> Mapping[str, str]:
    """Refresh a column of SQL. Idempotent: what an earlier attempt has committed is found fresh, and counted.

    Raises what `authorize_submitter` raises, TableColumnNotFoundError, InvalidInputError (an expression that fails on a
    row, or is none), ConcurrentModificationError (the worker tries again), JobCanceledError.
    """
    authorize_submitter(ctx, ctx.store.describe_transaction(running.id))
    arguments = running.payload["arguments"]
    branch, column = Branch.parse(arguments.get("branch")), arguments["column"]
    target = WriteTarget(ctx, ctx.store.table_by_id(running.table_id or 0), branch)
    ctx.storage.manifests.check_history(target.location, branch)
    host = _WorkerHost(ctx, running, target, column)
    refresh = ColumnRefresh(host, str(arguments["table"]), (host.column,), arguments.get("where"))
    try:
        figures = refresh.run()
    except (JobCanceledError, InvalidInputError):  # neither comes from a commit, which might have been made
        refresh.discard_pending()
        raise
    return {name: str(figure) for name, figure in figures.items()} | {"progress": "1.0"}


class _WorkerHost:
    """Runs a refresh in this thread; commits as the server does."""

    def __init__(self, ctx: Context, running: Job, target: WriteTarget, column: str) -> None:
        self._ctx, self._job, self._target = ctx, running, target
        dataset = self.latest()
        if column not in dataset.schema.names:
            raise TableColumnNotFoundError(f"The column '{column}' was dropped after its refresh was submitted.")
        field = dataset.schema.field(column)
        declaration = read_declaration(field.metadata)
        if not isinstance(declaration, ExpressionDeclaration):
            raise InvalidInputError(f"The column '{column}' is no longer computed by SQL: refresh it again.")
        self._field = pa.field(column, field.type)
        self._expression = check_expression(declaration.expression, f"expression of '{column}'")
        inputs = input_columns(dataset.schema, self._expression)
        self.column = ComputedColumn.of(dataset, column, inputs, declaration.identity)
        others = [name for name in dataset.schema.names if name != column]
        self._origins = (ColumnOrigin(column, sql_inputs(self._expression, others)),)
        self._name = str(running.payload["arguments"]["table"])
        self._reported = self._computed = 0

    @property
    def id(self) -> str:
        return self._job.id

    def base_version(self) -> int | None:
        """Return the version that an earlier attempt of the job has reported."""
        version = self._ctx.store.describe_transaction(self._job.id).properties.get("source_version")
        return None if version is None else int(version)

    def latest(self) -> lance.LanceDataset:
        return self._target.exclusive_dataset()

    def committing(self) -> AbstractContextManager[object]:
        """Hold the lock of the machine's appends. Raises TooBusyError, which is a conflict."""
        return self._ctx.storage.locks.hold(LockKind.COMMITS, self._target.key, self._ctx.settings.conflict_timeout)

    def commit(self, dataset: lance.LanceDataset, operation: Any, properties: Mapping[str, str]) -> int | None:
        lineage = self._lineage(int(dataset.version))
        try:
            with lance_errors(dataset):
                own = {**properties, **lineage.to_properties()}
                committed = commit_next(dataset, operation, own, self._target.commit_route)
        except ConcurrentModificationError:
            return None
        version = self._target.finish_commit(committed, is_direct=True)
        add_commit(self._ctx, self._target.record, self._target.branch, version, lineage, replaces=False)
        return version

    def _lineage(self, version: int) -> CommitLineage:
        """Return the lineage of the commit that is made on a version."""
        source = LineageSource(self._name, self._target.location, version, self._target.branch.key)
        return JobLineage("backfill", (source,), self.column.identity, self._origins).of_run(self._job.id)

    def fill(
        self,
        plans: Sequence[FragmentPlan],
        rows: Mapping[int, int],
        on_filled: Callable[[Sequence[FilledFragment]], None],
    ) -> None:
        """Write one fragment's file after the other. Raises InvalidInputError, JobCanceledError, what Lance raises."""
        dataset = self.latest().checkout_version((self._target.branch.lance_name, plans[0].version))
        label = f"expression of '{self._field.name}'"
        options = batch_options(CachedVersion(dataset), [self._field.name], {label: self._expression})
        batch_rows = min(BATCH_ROWS, options.get("batch_size", BATCH_ROWS))
        for plan in plans:
            on_filled([self._fill_fragment(dataset, plan, batch_rows)])

    def _fill_fragment(self, dataset: lance.LanceDataset, plan: FragmentPlan, batch_rows: int) -> FilledFragment:
        names = [file.name for file in plan.files]
        computation = Computation((self._field,), {self._field.name: self._expression}, self._compute)
        storage = self._ctx.storage
        options = {"storage_options": storage.options(self._target.location) or None}
        try:
            with lance_errors(dataset):
                written = write_column_files(
                    dataset, plan, computation, f"{self._target.base}/data", batch_rows=batch_rows, **options
                )
                make_files_durable(storage, self._target.base, names)
                files = tuple(DataFile.create(dataset, name) for name in names)
        except BaseException:
            discard_files(storage, self._target.base, names)
            raise
        return FilledFragment(plan.fragment_id, files, written.rows)

    def _compute(self, rows: pa.RecordBatch) -> ComputedRows:
        """Cast what Lance has computed to the column's type. Raises InvalidInputError, JobCanceledError."""
        self._computed += rows.num_rows
        if self._computed - self._reported >= _REPORTED_ROWS:
            self._reported = self._computed
            self.progress(stage="read", rows_read=self._computed)
        try:
            return ComputedRows((cast_array(rows.column(0), self._field.type),))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidInputError(
                f"The expression of '{self._field.name}' has to be {self._field.type}: {error}"
            ) from error

    def delete_files(self, names: Sequence[str]) -> None:
        discard_files(self._ctx.storage, self._target.base, names)

    def record_failures(self, filled: FilledFragment, version: int) -> None:
        """Never called: SQL fails as a whole."""

    def progress(self, **figures: object) -> None:
        self._job.progress(**figures)
