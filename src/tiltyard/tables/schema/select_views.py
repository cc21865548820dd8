"""Materialized views that the server computes itself: infer their schema, and refresh them by its own workers.

    source at a pinned version → the fragments to read → files → one commit, which records the source's version

That commit is the version right after the one that was planned on, or there is none: so of two refreshes that run at
once, one plans again and finds nothing left to do. Rows that were added to the source are added to the view; once other
rows have changed, all of them are computed again, and the same commit replaces them.
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
from tiltyard.model.branches import MAIN
from tiltyard.model.ids import DEFAULT_DELIMITER, parse_id, table_id
from tiltyard.model.jobs import Job, JobCanceledError, job
from tiltyard.model.lineage import RUN_PROPERTY, CommitLineage
from tiltyard.model.table_history import read_transactions
from tiltyard.model.views.definitions import LINEAGE_PROPERTY, SourceVersion, ViewDefinition, ViewLineage
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.writing import commit_next, discard, discard_after_error, write_rows
from tiltyard.tables.opening import open_for_reading
from tiltyard.tables.rows.write_target import WriteTarget
from tiltyard.tables.schema.view_sources import find_definer, resolve_sources
from tiltyard.tables.sql.select_queries import SelectQuery, parse_select
from tiltyard.tables.versions.lineage import add_commit
from tiltyard.view_refresh.source_changes import FullRefreshRequiredError, find_added_fragments, find_last_refresh

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
_BLOB_METADATA = b"lance-encoding:blob"


def infer_schema(dataset: lance.LanceDataset, query: SelectQuery) -> pa.Schema:
    """Return the schema of a query's rows: of the columns that it computes, or of all columns of its table.

    Raises TableColumnNotFoundError, InvalidInputError, UnsupportedOperationError (columns of blobs).
    """
    with lance_errors(dataset):
        scanner = dataset.scanner(columns=_columns(dataset, query), filter=query.filter, limit=1)
        scanner.explain_plan()
        schema = scanner.projected_schema
    return pa.schema([_view_field(schema.field(name)) for name in (query.columns or dataset.schema.names)])


def _columns(dataset: lance.LanceDataset, query: SelectQuery) -> Any:
    return list(dataset.schema.names) if query.columns is None else dict(query.columns)


def _view_field(field: pa.Field) -> pa.Field:
    """Return a column of a view: nullable, and without what declares how the source computes its values."""
    metadata = {key: value for key, value in (field.metadata or {}).items() if not key.startswith(_SERVER_METADATA)}
    if _BLOB_METADATA in metadata or metadata.get(b"ARROW:extension:name", b"").startswith(b"lance.blob"):
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
    for _ in range(_MAX_TRIES):
        view = _SelectView.open(ctx, submitter_ctx, running, path)
        if view.definition.digest != arguments["definition"]:
            raise InvalidTableStateError("The definition of the view was changed after this refresh was submitted.")
        try:
            return view.refresh(arguments.get("source_version"), full=bool(arguments.get("full")))
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
        for _, entry in read_transactions(self._dataset, int(self._dataset.version) - _OWN_COMMITS):
            own = json.loads((entry.transaction_properties or {}).get(_JOB_PROPERTY, "{}"))
            if own.get("job") == self._job.id:
                self._index_lineage(int(own["figures"]["version"]), entry.transaction_properties)
                return dict(own["figures"])
        self._job.progress(stage="plan")
        source = self._open_source(version)
        fragments, reason = self._decide(source, full=full)
        is_incremental = fragments is not None
        if fragments is None:
            fragments = [fragment.fragment_id for fragment in source.get_fragments()]
        limit = self._query.limit
        if limit is not None and is_incremental:
            limit = max(0, limit - self._dataset.count_rows())
        if is_incremental and (not fragments or limit == 0):
            return self._figures("unchanged", reason, source, int(self._dataset.version), 0)
        self._check_size(source, fragments)
        written = self._write(source, fragments, limit)
        rows = sum(fragment.num_rows for fragment in written)
        mode = "incremental" if is_incremental else "full"
        figures = self._figures(mode, reason, source, int(self._dataset.version) + 1, rows)
        self._commit(written, source, figures, is_incremental=is_incremental)
        return figures

    def _open_source(self, version: int | None) -> lance.LanceDataset:
        """Open the source, as a handle that is not shared. Raises TableVersionNotFoundError."""
        path, branch = table_id(parse_id(self._name, DEFAULT_DELIMITER)), self._query.branch
        opened = open_for_reading(self._ctx, path, branch=branch, version=version)
        if opened.record.location != self._source_location:
            raise TableNotFoundError(f"Another table is called {self._name} by now: refresh the view again.")
        storage = self._ctx.storage
        storage.manifests.check_history(opened.record.location, branch)
        dataset = storage.datasets.open_for_writing(
            opened.record.location, storage.options(opened.record.location), branch
        )
        with lance_errors(dataset):
            if not branch.is_main:
                self._origin = _branch_origin(self._source_location, dataset, branch)
            return dataset.checkout_version((branch.lance_name, int(opened.dataset.version)))

    def _decide(self, source: lance.LanceDataset, *, full: bool) -> tuple[list[int] | None, str]:
        """Return the fragments whose rows are to be added, None where all rows have to be computed; and the reason."""
        last = find_last_refresh(self._dataset)
        if isinstance(last, str):
            return None, last
        if full:
            return None, "a full refresh was requested"
        if last.definition != self.definition.digest:
            return None, "the definition has changed"
        try:
            added = find_added_fragments(self._name, self._origin, source, last.sources.get(self._name))
        except FullRefreshRequiredError as error:
            return None, str(error)
        return added, "rows were only added" if added else "no rows were added"

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

    def _write(self, source: lance.LanceDataset, fragments: Sequence[int], limit: int | None) -> list[FragmentMetadata]:
        """Write the query's rows from fragments of the source, as files of the view."""
        chosen = set(fragments)
        with lance_errors(source):
            scanner = source.scanner(
                columns=_columns(source, self._query),
                filter=self._query.filter,
                limit=limit,
                fragments=[fragment for fragment in source.get_fragments() if fragment.fragment_id in chosen],
                scan_in_order=True,
                **_SCAN_OPTIONS,
            )
            rows = _ReportedRows(self._job, scanner.to_reader(), self._dataset.schema)
            try:
                return write_rows(self._ctx.storage, rows.reader(), self._dataset, self._target.base)
            except Exception:
                if rows.cancellation is not None:
                    raise rows.cancellation from None
                raise

    def _commit(
        self,
        written: Sequence[FragmentMetadata],
        source: lance.LanceDataset,
        figures: Mapping[str, str],
        *,
        is_incremental: bool,
    ) -> None:
        """Commit files as the next version. Raises ConcurrentModificationError if there is one already."""
        target = self._target
        lineage = ViewLineage({self._name: SourceVersion(self._origin, int(source.version))}, self.definition.digest)
        own = json.dumps({"job": self._job.id, "figures": dict(figures)})
        properties = {LINEAGE_PROPERTY: lineage.to_json(), RUN_PROPERTY: self._job.id, _JOB_PROPERTY: own}
        replaced = [] if is_incremental else [fragment.fragment_id for fragment in self._dataset.get_fragments()]
        try:
            self._job.progress(stage="commit", rows=figures["rows"])
            with (
                lance_errors(self._dataset),
                target.ctx.storage.locks.hold(f"{target.key}+", target.ctx.settings.conflict_timeout),
            ):
                committed = commit_next(
                    self._dataset,
                    _operation(written, replaced),
                    properties,
                    target.commit_route,
                )
        except JobCanceledError:
            discard(target.ctx.storage, target.base, written)
            raise
        except BaseException as error:
            discard_after_error(target.ctx.storage, target.base, written, error)
            raise
        target.finish_commit(committed, is_direct=True)
        self._index_lineage(int(figures["version"]), properties)

    def _index_lineage(self, version: int, properties: Mapping[str, str] | None) -> None:
        lineage = CommitLineage.from_properties(properties)
        if lineage is not None:
            add_commit(self._ctx, self._target.record, MAIN, version, lineage, replaces=True)

    def _figures(
        self, mode: str, reason: str, source: lance.LanceDataset, version: int, rows: int
    ) -> Mapping[str, str]:
        sources = json.dumps({self._name: int(source.version)})
        figures = {"mode": mode, "reason": reason, "sources": sources, "version": str(version), "rows": str(rows)}
        return {**figures, "progress": "1.0"}


def _branch_origin(location: str, dataset: lance.LanceDataset, branch: Branch) -> str:
    """Return the folder of a branch with what Lance identifies the branch by."""
    identifier = dataset.branches.list()[branch.name]["branch_identifier"]
    return f"{branch.base(location)}#{json.dumps(identifier)}"


class _ReportedRows:
    """Rows on their way into files, which report how many there are; `cancellation` is why they ended early."""

    def __init__(self, running: Job, source: pa.RecordBatchReader, schema: pa.Schema) -> None:
        self._job = running
        self._source = source
        self._schema = schema
        self.cancellation: JobCanceledError | None = None

    def reader(self) -> pa.RecordBatchReader:
        """Return the rows, with the fields of the view."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        rows = reported = 0
        for batch in self._source:
            rows += batch.num_rows
            if rows - reported >= _REPORTED_ROWS:
                reported = rows
                try:
                    self._job.progress(stage="read", rows=rows)
                except JobCanceledError as error:
                    self.cancellation = error
                    raise
            columns = [batch.column(name) for name in self._schema.names]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _operation(written: Sequence[FragmentMetadata], replaced: Sequence[int]) -> lance.LanceOperation.BaseOperation:
    """Return the operation that adds rows, or replaces all others; the view's indexes stay, without the new rows."""
    if not replaced:
        return lance.LanceOperation.Append(list(written))
    return lance.LanceOperation.Update(
        removed_fragment_ids=list(replaced),
        updated_fragments=[],
        new_fragments=list(written),
        fields_modified=[],
        update_mode="rewrite_rows",
    )
