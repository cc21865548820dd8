"""Materialized views that the server computes itself: infer their schema, and refresh them by its own workers.

    source at a pinned version → the rows to read → files → one commit, which records the source's version

That commit is the version right after the one that was planned on, or there is none: so of two refreshes that run at
once, one plans again and finds nothing left to do. Rows that were added to the source are added to the view. Of rows
that were changed or deleted, the same commit removes the view's rows of what they were, and adds those of what they
are. What the source's change feed cannot tell makes a full refresh, whose figures say why.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.catalog.jobs.authorization import authorize_submitter
from tiltyard.change_feed.table_history import read_transactions
from tiltyard.model.branches import MAIN
from tiltyard.model.columns.blob_columns import has_blobs
from tiltyard.model.columns.lineage import ColumnInput, ColumnOrigin, Origins, sql_inputs
from tiltyard.model.ids import parse_id, table_id
from tiltyard.model.jobs import Job, JobCanceledError, job
from tiltyard.model.lineage import RUN_PROPERTY, CommitLineage, refresh_lineage
from tiltyard.model.refusals import RefusedError
from tiltyard.model.views.definitions import LINEAGE_PROPERTY, SourceVersion, ViewDefinition, ViewLineage, query_columns
from tiltyard.storage.caches.version_cache import CachedVersion
from tiltyard.storage.errors import lance_errors, may_have_committed
from tiltyard.storage.locks import LockKind
from tiltyard.storage.reference_files import list_references
from tiltyard.storage.writing import commit_next, discard, discard_transaction, write_rows
from tiltyard.tables.lance_sql.expressions import check_expression
from tiltyard.tables.lance_sql.select_queries import SelectQuery, VectorDedup, parse_select
from tiltyard.tables.opening import open_for_reading
from tiltyard.tables.query.batch_sizes import batch_options
from tiltyard.tables.rows.write_target import WriteTarget
from tiltyard.tables.versions.lineage import add_commit
from tiltyard.tables.views.changed_view_rows import ChangedViewRows, scan_columns
from tiltyard.tables.views.view_sources import find_definer, resolve_sources
from tiltyard.view_refresh.added_columns import AddedColumns
from tiltyard.view_refresh.near_duplicates import find_duplicates, find_partitions, leave_out
from tiltyard.view_refresh.removal import Removal, remove_rows
from tiltyard.view_refresh.source_changes import (
    FullRefreshRequiredError,
    RowsChangedError,
    find_added_fragments,
    find_last_refresh,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from lance.fragment import FragmentMetadata

    from tiltyard.context import Context
    from tiltyard.model.branches import Branch
    from tiltyard.model.ids import Id

REFRESH_SELECT = "refresh_view"

_JOB_PROPERTY = "tiltyard.view.job"
"""The property of a Lance transaction that names the job whose commit it is, and has its figures."""
_MAX_TRIES = 20
_OWN_COMMITS = 20
"""Versions among which a job that is run again looks for a commit of its own."""
_REPORTED_ROWS = 100_000
_SCAN_OPTIONS: Mapping[str, Any] = {"batch_size": 8192, "fragment_readahead": 1, "io_buffer_size": 64 << 20}
_SERVER_METADATA = b"tiltyard."
_NOTHING = Removal(0, (), ())


def infer_schema(dataset: lance.LanceDataset, query: SelectQuery) -> pa.Schema:
    """Return the schema of a query's rows: of the columns that it computes, or of all columns of its table.

    Raises TableColumnNotFoundError, InvalidInputError, UnsupportedOperationError (columns of blobs).
    """
    with lance_errors(dataset):
        if query.dedup is not None:
            find_partitions(dataset, query.dedup.column)
        scanner = dataset.scanner(columns=scan_columns(dataset.schema, query), filter=query.filter, limit=1)
        scanner.explain_plan()
        schema = scanner.projected_schema
    return pa.schema([_view_field(schema.field(name)) for name in (query.columns or dataset.schema.names)])


def _view_field(field: pa.Field) -> pa.Field:
    """Return a column of a view: nullable, and without what declares how the source computes its values."""
    metadata = {key: value for key, value in (field.metadata or {}).items() if not key.startswith(_SERVER_METADATA)}
    if has_blobs([field]):
        raise UnsupportedOperationError(
            f"The column '{field.name}' has blobs, which a view does not copy: leave it out."
        )
    return pa.field(field.name, field.type, metadata=metadata or None)


@job(REFRESH_SELECT)
def refresh_select(ctx: Context, running: Job) -> Mapping[str, str]:
    """Refresh a view. Idempotent: a worker that died after its commit has committed what the next one finds.

    Raises what `authorize_submitter` and `resolve_sources` raise, UnsupportedOperationError (too many rows),
    TableVersionNotFoundError, ConcurrentModificationError (the worker tries again), JobCanceledError.
    """
    submitter_ctx, path = authorize_submitter(ctx, ctx.store.describe_transaction(running.id))
    arguments = running.payload["arguments"]
    full = bool(arguments.get("full"))
    return _refresh(ctx, submitter_ctx, running, path, arguments["definition"], arguments.get("source_version"), full)


def compute_anew(ctx: Context, submitter_ctx: Context, running: Job, path: Id) -> Mapping[str, str]:
    """Refresh a view in full, as a part of another job; return the figures. Raises as `refresh_select` does."""
    return _refresh(ctx, submitter_ctx, running, path, None, None, full=True)


def _refresh(
    ctx: Context,
    submitter_ctx: Context,
    running: Job,
    path: Id,
    definition: str | None,
    version: int | None,
    full: bool,
) -> Mapping[str, str]:
    """Refresh a view, again after each concurrent commit; `definition` is the digest that it has to have."""
    for _ in range(_MAX_TRIES):
        view = _SelectView.open(ctx, submitter_ctx, running, path)
        if definition not in (None, view.definition.digest):
            raise InvalidTableStateError("The definition of the view was changed after this refresh was submitted.")
        try:
            return view.refresh(version, full=full)
        except ConcurrentModificationError:
            running.progress(stage="plan")
    raise ConcurrentModificationError("Concurrent writes to the view do not stop: refresh it without them.")


class _SelectView:
    """A view at its latest version, and the job that refreshes it."""

    def __init__(
        self,
        ctx: Context,
        running: Job,
        target: WriteTarget,
        definition: ViewDefinition,
        source: tuple[str, str],
    ) -> None:
        self._ctx = ctx
        self._job = running
        self._target = target
        self._name, self._source_location = source
        self._origin = self._source_location
        """What the view's commit records as its source: another branch of the same name is another one."""
        self._query = parse_select(definition.query)
        self.definition = definition
        ctx.storage.manifests.check_history(target.location, MAIN)
        self._dataset = target.exclusive_dataset()
        self._added = AddedColumns.of(self._dataset.schema, _is_allowed)

    @classmethod
    def open(cls, ctx: Context, submitter_ctx: Context, running: Job, path: Id) -> _SelectView:
        """Open a view that the submitter and the definer may still refresh. Raises as `refresh_select` does."""
        record = ctx.store.table_by_id(running.table_id or 0)
        target = WriteTarget(ctx, record)
        definition = ViewDefinition.from_metadata(target.dataset().schema.metadata)
        if definition is None:
            raise InvalidInputError(f"The table '{path}' is not a materialized view.")
        sources = resolve_sources(submitter_ctx, path, definition, find_definer(submitter_ctx, record, definition))
        return cls(ctx, running, target, definition, next(iter(sources.items())))

    def refresh(self, version: int | None, *, full: bool) -> Mapping[str, str]:
        """Bring the view up to date; return the figures. Raises ConcurrentModificationError if it was changed."""
        if (figures := self._find_own_commit()) is not None:
            return figures
        self._job.progress(stage="plan")
        source = self._open_source(version)
        try:
            before = self._find_last_source(full=full)
            added = self._find_added_fragments(source, before)
            if added is None:
                return self._follow_changes(source, before.version)
            return self._add_fragments(source, added)
        except FullRefreshRequiredError as error:
            reason = str(error)
        return self._compute_all(source, reason)

    def _find_own_commit(self) -> Mapping[str, str] | None:
        """Return the figures of the commit that this job has made in an earlier run, None without one."""
        for _, entry in read_transactions(self._dataset, int(self._dataset.version) - _OWN_COMMITS):
            own = json.loads((entry.transaction_properties or {}).get(_JOB_PROPERTY, "{}"))
            if own.get("job") == self._job.id:
                self._index_lineage(int(own["figures"]["version"]), entry.transaction_properties)
                return dict(own["figures"])
        return None

    def _find_last_source(self, *, full: bool) -> SourceVersion:
        """Return what the last refresh read of the source. Raises FullRefreshRequiredError."""
        last = find_last_refresh(self._dataset)
        if isinstance(last, str):
            raise FullRefreshRequiredError(last)
        if full:
            raise FullRefreshRequiredError("a full refresh was requested")
        if last.definition != self.definition.digest:
            raise FullRefreshRequiredError("the definition has changed")
        if (before := last.sources.get(self._name)) is None:
            raise FullRefreshRequiredError(f"{self._name} is not the view's source table")
        return before

    def _find_added_fragments(self, source: lance.LanceDataset, before: SourceVersion) -> list[int] | None:
        """Return the fragments that were added to the source, None if other rows were changed or deleted.

        Raises FullRefreshRequiredError.
        """
        try:
            return find_added_fragments(self._name, self._origin, source, before)
        except RowsChangedError:
            return None

    def _add_fragments(self, source: lance.LanceDataset, added: Sequence[int]) -> Mapping[str, str]:
        """Add the rows of new fragments of the source; those of the others are unchanged."""
        limit = self._query.limit
        if limit is not None:
            limit = max(0, limit - self._dataset.count_rows())
        reason = "rows were only added" if added else "no rows were added"
        if not added or limit == 0:
            return self._unchanged(source, reason)
        written = self._write_fragments(source, added, limit)
        return self._commit("incremental", reason, source, written, _NOTHING)

    def _compute_all(self, source: lance.LanceDataset, reason: str) -> Mapping[str, str]:
        """Replace all rows of the view by those of the source."""
        fragments = [fragment.fragment_id for fragment in source.get_fragments()]
        if (dedup := self._query.dedup) is not None:
            self._check_size(source, fragments)
            with lance_errors(source):
                written = self._write(self._without_duplicates(source, dedup))
        else:
            written = self._write_fragments(source, fragments, self._query.limit)
        replaced = tuple(fragment.fragment_id for fragment in self._dataset.get_fragments())
        return self._commit("full", reason, source, written, Removal(self._dataset.count_rows(), (), replaced))

    def _without_duplicates(self, source: lance.LanceDataset, dedup: VectorDedup) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the source that stay."""

        def report() -> None:
            self._job.progress(stage="compare")

        removed = find_duplicates(source, dedup.column, dedup.threshold, report)
        for batch in source.scanner(with_row_id=True, scan_in_order=True, **_SCAN_OPTIONS).to_batches():
            yield leave_out(batch, removed)

    def _follow_changes(self, source: lance.LanceDataset, since: int) -> Mapping[str, str]:
        """Replace the view's rows of what was changed in the source after a version.

        Raises FullRefreshRequiredError.
        """
        most = self._ctx.settings.view_refresh_rows
        with lance_errors(source):
            changes = ChangedViewRows.find(self._name, self._query, source, since, most)
            if not changes:
                return self._unchanged(source, "no rows that the view shows were changed")
            self._job.progress(stage="read")
            lost = changes.find_lost(self._dataset)
            written = self._write(changes.gained())
        reason = f"rows of {self._name} were changed or deleted: these alone are computed"
        try:
            with lance_errors(self._dataset):
                removal = remove_rows(self._dataset, lost)
        except BaseException:
            discard(self._ctx.storage, self._target.base, written)
            raise
        return self._commit("incremental", reason, source, written, removal)

    def _open_source(self, version: int | None) -> lance.LanceDataset:
        """Open the source, as a handle that is not shared. Raises TableVersionNotFoundError, InvalidInputError."""
        if (dedup := self._query.dedup) is not None:
            if version not in (None, dedup.version):
                raise InvalidInputError(f"The view is of the version {dedup.version} of its source, always.")
            version = dedup.version
        path, branch = table_id(parse_id(self._name)), self._query.branch
        opened = open_for_reading(self._ctx, path, branch=branch, version=version)
        if opened.record.location != self._source_location:
            raise TableNotFoundError(f"Another table is called {self._name} by now: refresh the view again.")
        storage = self._ctx.storage
        storage.manifests.check_history(opened.record.location, branch)
        dataset = storage.datasets.open_for_writing(opened.record.location, branch)
        with lance_errors(dataset):
            if not branch.is_main:
                self._origin = _branch_origin(self._source_location, dataset, branch)
            return dataset.checkout_version((branch.lance_name, int(opened.dataset.version)))

    def _check_size(self, source: lance.LanceDataset, fragments: Sequence[int]) -> None:
        """Raise UnsupportedOperationError if more rows are to be read than a server's worker may read."""
        most = self._ctx.settings.view_refresh_rows
        chosen = set(fragments)
        rows = sum(fragment.count_rows() for fragment in source.get_fragments() if fragment.fragment_id in chosen)
        if rows > most:
            raise UnsupportedOperationError(
                f"This refresh reads {rows} rows, and a server's worker reads {most} at most (view_refresh_rows): "
                "create the view with kind 'query', which Spark refreshes."
            )

    def _write_fragments(
        self, source: lance.LanceDataset, fragments: Sequence[int], limit: int | None
    ) -> list[FragmentMetadata]:
        """Write the query's rows from fragments of the source, as files of the view."""
        self._check_size(source, fragments)
        chosen = set(fragments)
        with lance_errors(source):
            scanner = source.scanner(
                columns=scan_columns(source.schema, self._query),
                filter=self._query.filter,
                limit=limit,
                fragments=[fragment for fragment in source.get_fragments() if fragment.fragment_id in chosen],
                scan_in_order=True,
                **_SCAN_OPTIONS,
            )
            return self._write(scanner.to_reader())

    def _write(self, batches: Iterable[pa.RecordBatch]) -> list[FragmentMetadata]:
        """Write the query's rows, as files of the view."""
        rows = _ReportedRows(self._job, batches, self._added)
        try:
            return write_rows(self._ctx.storage, rows.reader(), self._dataset, self._target.base)
        except Exception:
            if rows.failure is not None:
                raise rows.failure from None
            raise

    def _commit(
        self,
        mode: str,
        reason: str,
        source: lance.LanceDataset,
        written: Sequence[FragmentMetadata],
        removal: Removal,
    ) -> Mapping[str, str]:
        """Commit files, and the removal of rows, as the next version; return the figures.

        Raises ConcurrentModificationError if there is one already.
        """
        target = self._target
        rows, base = sum(fragment.num_rows for fragment in written), int(self._dataset.version)
        figures = {**self._figures(mode, reason, source, base + 1, rows), "removed": str(removal.rows)}
        read = {self._name: SourceVersion(self._origin, int(source.version))}
        lineage = ViewLineage(read, self.definition.digest)
        made_from = refresh_lineage(read, self.definition.digest, self._find_origins(source.schema))
        own = json.dumps({"job": self._job.id, "figures": figures})
        properties = {
            LINEAGE_PROPERTY: lineage.to_json(),
            **made_from.of_run(self._job.id).to_properties(),
            RUN_PROPERTY: self._job.id,
            _JOB_PROPERTY: own,
        }
        operation = removal.with_rows(written)
        try:
            self._job.progress(stage="commit", rows=figures["rows"])
            with (
                lance_errors(self._dataset),
                target.ctx.storage.locks.hold(LockKind.COMMITS, target.key, target.ctx.settings.conflict_timeout),
            ):
                committed = commit_next(self._dataset, operation, properties, target.commit_route)
        except BaseException as error:
            if isinstance(error, JobCanceledError) or not may_have_committed(error):
                discard_transaction(target.ctx.storage, target.base, lance.Transaction(base, operation), self._dataset)
            raise
        target.finish_commit(committed, is_direct=True)
        self._index_lineage(int(figures["version"]), properties)
        return figures

    def _find_origins(self, source: pa.Schema) -> Origins:
        """Return what the columns of the view are made from, for its lineage."""
        columns = self._query.columns
        if columns is None:
            made = tuple(ColumnOrigin(name, (ColumnInput(0, name),)) for name in source.names)
        else:
            made = tuple(ColumnOrigin(name, sql_inputs(text, source.names)) for name, text in columns.items())
        return (*made, *self._added.origins(made))

    def _index_lineage(self, version: int, properties: Mapping[str, str] | None) -> None:
        lineage = CommitLineage.from_properties(properties)
        if lineage is not None:
            add_commit(self._ctx, self._target.record, MAIN, version, lineage, replaces=True)

    def _unchanged(self, source: lance.LanceDataset, reason: str) -> Mapping[str, str]:
        return self._figures("unchanged", reason, source, int(self._dataset.version), 0)

    def _figures(
        self, mode: str, reason: str, source: lance.LanceDataset, version: int, rows: int
    ) -> Mapping[str, str]:
        sources = json.dumps({self._name: int(source.version)})
        figures = {"mode": mode, "reason": reason, "sources": sources, "version": str(version), "rows": str(rows)}
        return {**figures, **self._added.figures(), "progress": "1.0"}


def _branch_origin(location: str, dataset: lance.LanceDataset, branch: Branch) -> str:
    """Return the folder of a branch with what Lance identifies the branch by."""
    identifier = list_references(dataset.branches)[branch.name]["branch_identifier"]
    return f"{branch.base(location)}#{json.dumps(identifier)}"


class _ReportedRows:
    """Rows on their way into files, which report how many there are; `failure` is why they ended early."""

    def __init__(self, running: Job, source: Iterable[pa.RecordBatch], added: AddedColumns) -> None:
        self._job = running
        self._source = source
        self._added = added
        self._names = query_columns(added.view)
        self.failure: JobCanceledError | InvalidInputError | None = None

    def reader(self) -> pa.RecordBatchReader:
        """Return the rows, with the fields of the view."""
        return pa.RecordBatchReader.from_batches(self._added.view, self._whole_rows())

    def _whole_rows(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._added.add(self._batches(), _choose_rows)
        except RefusedError as error:
            self.failure = InvalidInputError(str(error))
            raise self.failure from error

    def _batches(self) -> Iterator[pa.RecordBatch]:
        rows = reported = 0
        for batch in self._source:
            rows += batch.num_rows
            if rows - reported >= _REPORTED_ROWS:
                reported = rows
                try:
                    self._job.progress(stage="read", rows=rows)
                except JobCanceledError as error:
                    self.failure = error
                    raise
            columns = [batch.column(name) for name in self._names]
            yield pa.RecordBatch.from_arrays(columns, list(self._names))


def _is_allowed(expression: str) -> bool:
    """Return whether a request could declare an expression; others may have come with a manifest of a client."""
    try:
        check_expression(expression, "expression")
    except InvalidInputError:
        return False
    return True


def _choose_rows(rows: lance.LanceDataset, expressions: Mapping[str, str]) -> int:
    """Return how many rows expressions are computed of at once, by the sizes of their values."""
    most = int(_SCAN_OPTIONS["batch_size"])
    return min(most, int(batch_options(CachedVersion(rows), (), expressions).get("batch_size", most)))
