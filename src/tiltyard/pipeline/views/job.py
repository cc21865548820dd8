"""Refresh job: bring a materialized view up to date with its query, from rows that were changed or from all rows.

    sources at pinned versions → plan → parts (each checkpointed) → one commit, which records the sources' versions

The rows that the query makes of rows before their change are written too, and found in the view when it is committed.

That commit applies to exactly the version of the view that was planned on, or not at all, which orders concurrent
refreshes. One that lost plans again, and mostly finds that there is nothing left to do.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Unpack

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
)

from tiltyard.change_feed.table_history import read_transaction
from tiltyard.model.columns.lineage import Origins
from tiltyard.model.lineage import refresh_lineage
from tiltyard.model.refusals import RefusedError
from tiltyard.model.views.definitions import (
    LINEAGE_PROPERTY,
    ViewDefinition,
    ViewKind,
    ViewLineage,
    parse_sources,
    query_columns,
)
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.functions.call_options import CallOptions, make_policy
from tiltyard.pipeline.functions.call_policy import CallPolicy
from tiltyard.pipeline.jobs import check_client_code_allowed, job
from tiltyard.pipeline.lineage import plan_columns
from tiltyard.pipeline.runs import Run
from tiltyard.pipeline.session import LazySession, isolate_session, started
from tiltyard.pipeline.sources.filesystem import absolute_path
from tiltyard.pipeline.table_location import CatalogConnection
from tiltyard.pipeline.views.computed_columns import column_functions, find_code, find_reusable
from tiltyard.pipeline.views.computed_values import ReusableValues, ViewColumn
from tiltyard.pipeline.views.planning import (
    QueryPart,
    RefreshOptions,
    RefreshPlan,
    ViewQuery,
    columns_to_read,
    decide,
    decide_full,
)
from tiltyard.pipeline.views.publication import index_spec, publish_with_indexes
from tiltyard.pipeline.views.query_analysis import (
    QueryShape,
    analyze_query,
    check_reads_only,
    needed_columns,
    query_shape,
)
from tiltyard.pipeline.views.row_writer import ViewWriter, is_repeatable, register_schemas, truncate, view_origins
from tiltyard.pipeline.views.sources import SourceTable, pin_sources, reopen_sources
from tiltyard.pipeline.writing.commit import CommitConflictError, JobTable
from tiltyard.pipeline.writing.fragments import (
    ROWS_PER_FILE,
    FragmentTarget,
    delete_fragment_files,
    fragment_files_exist,
    parse_fragments,
    read_fragments,
)
from tiltyard.pipeline.writing.tasks import WriteResult
from tiltyard.view_refresh.added_columns import AddedColumns
from tiltyard.view_refresh.net_changes import NetChanges, find_net_changes
from tiltyard.view_refresh.removal import Removal, find_equal_rows, find_group_rows, remove_rows
from tiltyard.view_refresh.source_changes import FullRefreshRequiredError, leaves_rows_unchanged

if TYPE_CHECKING:
    import lance
    from pyspark.sql import DataFrame, SparkSession

    from tiltyard.model.columns.computed_columns import UdfDeclaration
    from tiltyard.view_refresh.removal import Addresses

_CHECKPOINT_KEY = "plan"
_MAX_TRIES = 20
"""How often a refresh plans again because others wrote to the view, and how often it retries a commit that lost."""


@job("refresh", lazy=True)
def refresh(
    run: Run,
    catalog: CatalogConnection,
    spark: SparkSession | LazySession,
    table: Annotated[str, "The view."],
    *,
    source_version: Annotated[int | None, "Read this version of the view's source table."] = None,
    rows_per_fragment: Annotated[int, "Maximal rows of a file of the view."] = ROWS_PER_FILE,
    output_limit: Annotated[int | None, "Maximal rows of the view; for chunkers."] = None,
    full: Annotated[bool, "Recompute all rows, whatever has changed."] = False,
    sources: Annotated[
        dict[str, str] | None, "The locations of the tables that may be read: set by the server."
    ] = None,
    definition: Annotated[str | None, "The digest of the view's definition: set by the server."] = None,
    rejects: Annotated[str | None, "A folder for rows that the view's code fails on."] = None,
    max_join_rows: Annotated[
        int, "Rows of each unchanged table that are read to join changed rows: with a larger one, all are computed."
    ] = 1_000_000,
    max_groups: Annotated[
        int, "Values of a column whose groups are computed again: with more, all groups are."
    ] = 10_000,
    **call: Unpack[CallOptions],
) -> Mapping[str, object]:
    """Refresh a materialized view: from rows that were changed where they are enough, else from all rows.

    \b
    Example:
      tiltyard job refresh --uri http://127.0.0.1:2333 chunks
    """
    if rows_per_fragment < 1 or (output_limit is not None and output_limit < 0):
        raise InvalidInputError("A fragment holds at least one row, and a view no fewer than none.")
    if max_join_rows < 0 or max_groups < 0:
        raise InvalidInputError(
            "max_join_rows and max_groups are 0 or more: 0 computes all rows of joins, or all groups."
        )
    job_table = JobTable(catalog_client.table(catalog, table))
    view = ViewDefinition.from_metadata(job_table.latest().schema.metadata)
    if view is None:
        raise InvalidInputError(f"The table '{table}' is not a materialized view.")
    if definition is not None and view.digest != definition:
        raise InvalidTableStateError("The definition of the view was changed after this refresh was submitted.")
    if output_limit is not None and view.kind is not ViewKind.CHUNKER:
        raise InvalidInputError(f"Only a chunker's view has an output limit, and this one is a {view.kind}.")
    code = find_code(view, job_table.latest().schema)
    if code or view.kind is not ViewKind.QUERY:
        check_client_code_allowed()
    policy = _make_policy(view.kind, rejects, call, has_code=bool(code))
    options = RefreshOptions(full, output_limit, max_join_rows, max_groups)
    folder = absolute_path(rejects) if rejects else None
    work = _Refresh(
        run, catalog, isolate_session(started(spark)), job_table, view, code, options, rows_per_fragment, policy, folder
    )
    try:
        return work.run_rounds(source_version, sources)
    except RefusedError as refusal:
        work.discard_plan()
        raise InvalidInputError(str(refusal)) from refusal


def _make_policy(kind: ViewKind, rejects: str | None, options: CallOptions, *, has_code: bool) -> CallPolicy:
    """Return how the view's code is called, of rows and of columns. Raises RefusedError for what its kind cannot."""
    policy = make_policy(options, has_function=has_code or kind is not ViewKind.QUERY, rejects=rejects)
    if kind is not ViewKind.CHUNKER and rejects is not None:
        raise RefusedError("rejects is a folder for rows that a chunker fails on: leave it out.")
    if policy.on_error == "park" and kind is ViewKind.QUERY:
        raise RefusedError("on_error is park, which keeps rows that a chunker fails on: with null they have no value.")
    if policy.on_error == "park" and rejects is None:
        raise RefusedError("on_error is park: name a folder for such rows (--rejects).")
    if kind is ViewKind.UDTF and (policy.isolates_rows or policy.batch_bytes):
        raise RefusedError("A UDTF takes whole groups of rows: leave on_error and batch_mb out.")
    return policy


@dataclass(frozen=True, slots=True)
class _Refresh:
    """A refresh in progress."""

    run: Run
    catalog: CatalogConnection
    spark: SparkSession
    job_table: JobTable
    definition: ViewDefinition
    code: Mapping[str, UdfDeclaration]
    options: RefreshOptions
    rows_per_fragment: int
    policy: CallPolicy
    rejects: str | None
    changes: dict[str, NetChanges] = field(default_factory=dict)
    """What changed in tables, as the current plan has it."""
    removed: dict[int, Addresses] = field(default_factory=dict)
    """The addresses of the rows that the current plan removes, by the version of the view that they are of."""

    def run_rounds(self, version: int | None, allowed: Mapping[str, str] | None) -> Mapping[str, object]:
        """Plan, compute and commit, again if others wrote to the view meanwhile; return the figures.

        Raises ConcurrentModificationError.
        """
        for _ in range(_MAX_TRIES):
            plan = self._load_plan()
            if plan is not None and (version := self._find_commit(plan)) is not None:
                return self._figures(plan, version)  # whatever has become of the versions that it has read
            sources = reopen_sources(self.catalog, plan.sources) if plan else None
            if plan is None or sources is None:  # a pinned version may have been removed since
                self.discard_plan()
                names = tuple(map(self.definition.source_id, parse_sources(self.definition.query)))
                names = names if allowed is None else tuple(allowed)
                sources = pin_sources(self.catalog, names, allowed, version)
                plan = self._make_plan(sources)
            self.run.progress(mode=_mode(plan), reason=plan.reason)
            if plan.incremental and not plan.parts:
                return self._figures(plan, plan.base)
            try:
                return self._execute(plan, sources)
            except CommitConflictError:
                self.discard_plan()
            except FullRefreshRequiredError as reason:
                self.discard_plan(str(reason))
        raise ConcurrentModificationError("Concurrent writes to the view do not stop: refresh it without them.")

    def discard_plan(self, why_full: str = "") -> None:
        """Delete the files of the current plan, if there is one, and have the next round or driver plan again.

        With `why_full`, that plan is to compute all rows.
        """
        self.changes.clear()
        self.removed.clear()
        if (plan := self._load_plan()) is None:
            return
        discarded = json.dumps({"given_up": plan.attempt, "why_full": why_full})
        self.run.save_checkpoint(_CHECKPOINT_KEY, discarded)  # raises in a driver that another one has replaced
        target = self._target(self.job_table.latest())
        for key in self._part_keys(plan):
            if key in self.run.checkpoints():
                result = WriteResult.from_json(self.run.checkpoints()[key])
                delete_fragment_files(target.location, result.fragments)

    def _load_plan(self) -> RefreshPlan | None:
        """Return the current plan, of this driver or an earlier one."""
        text = self.run.checkpoints().get(_CHECKPOINT_KEY)
        return None if text is None or "given_up" in json.loads(text) else RefreshPlan.from_json(text)

    def _find_commit(self, plan: RefreshPlan) -> int | None:
        """Return the version that an earlier driver has committed of a plan, which has its files then."""
        self.job_table.lineage = refresh_lineage(plan.sources, self.definition.digest, plan.origins, plan.why_unknown)
        return self.job_table.find_commit(self.run, plan.base)

    def _make_plan(self, sources: Mapping[str, SourceTable]) -> RefreshPlan:
        """Make a plan, and save it. Raises InvalidInputError for a query that is not allowed."""
        view, query = self.job_table.latest(), self.definition.query
        named = {self.definition.source_name(name): source for name, source in sources.items()}
        check_reads_only(self.spark, query, named)
        register_schemas(self.spark, named)
        frame = analyze_query(self.spark, query)
        is_udtf = self.definition.kind is ViewKind.UDTF
        shape = QueryShape("a UDTF sees all rows at once") if is_udtf else query_shape(frame, query)
        view_query = ViewQuery(self.definition, shape, needed_columns(frame), is_repeatable(self.definition))

        def read_changes(name: str, since: int) -> NetChanges:
            self.changes[name] = _find_changes(sources[name], since, view_query.needed)
            return self.changes[name]

        discarded = json.loads(self.run.checkpoints().get(_CHECKPOINT_KEY, "{}"))
        if why_full := discarded.get("why_full"):
            decision = decide_full(view_query, sources, why_full)
        else:
            decision = decide(view, view_query, sources, self.options, read_changes)
        plan = RefreshPlan(
            1 + discarded.get("given_up", 0),
            int(view.version),
            decision.incremental,
            decision.reason,
            {name: source.origin for name, source in sources.items()},
            decision.parts,
            sorted(view_query.needed),
            decision.since,
            decision.groups,
            *self._find_origins(frame, list(sources)),
        )
        self.run.save_checkpoint(_CHECKPOINT_KEY, plan.to_json())
        return plan

    def _find_origins(self, frame: DataFrame, sources: Sequence[str]) -> tuple[Origins | None, str]:
        """Return what the view's columns are made from, by the query's plan, and why that is not known."""
        views = {self.definition.source_name(name): name for name in sources}
        read = plan_columns(frame, views, {name: number for number, name in enumerate(sources)})
        return view_origins(self.job_table.latest().schema, self.definition, frame.columns, read), read.why_unknown

    def _execute(self, plan: RefreshPlan, sources: Mapping[str, SourceTable]) -> Mapping[str, object]:
        """Write the missing parts, and commit. Raises CommitConflictError, RefusedError, RunCanceledError."""
        self.job_table.lineage = refresh_lineage(plan.sources, self.definition.digest, plan.origins, plan.why_unknown)
        view = self.job_table.latest()
        target = self._target(view)
        limit = self.options.limit
        if limit is not None and plan.incremental:
            limit -= view.count_rows()
        results, is_complete = self._write_parts(plan, sources, target, limit)
        removed = _removed_fragments(plan, results)
        results = [result for part, result in zip(plan.parts, results, strict=False) if not part.removes]
        fragments = [fragment for result in results for fragment in result.fragments]
        rows, unused = sum(result.rows for result in results), tuple[str, ...]()
        if limit is not None and rows > limit:
            within, unused = truncate(self.run, target, fragments, limit)
            fragments, rows, is_complete = list(within), limit, False
        made = ViewLineage(plan.sources, self.definition.digest, cut=not is_complete)
        version = self._commit(plan, target, fragments, removed, made)
        delete_fragment_files(target.location, [*unused, *removed])
        return self._figures(plan, version, rows, len(fragments), results)

    def _load_part(self, key: str, target: FragmentTarget) -> WriteResult | None:
        """Return what an earlier driver has written of a part, if its files still exist."""
        if (text := self.run.checkpoints().get(key)) is None:
            return None
        result = WriteResult.from_json(text)
        return result if fragment_files_exist(target.location, result.fragments) else None

    def _write_parts(
        self, plan: RefreshPlan, sources: Mapping[str, SourceTable], target: FragmentTarget, limit: int | None
    ) -> tuple[list[WriteResult], bool]:
        """Write the parts that no earlier driver has written, until `limit` rows are there.

        Return the results of the parts, and whether they are all parts.
        """
        needed, storage = frozenset(plan.needed), dict(self.catalog.storage)
        for name, since in plan.since.items():
            if name not in self.changes:  # an earlier driver made the plan
                self.changes[name] = _find_changes(sources[name], since, needed)
        writer = ViewWriter(
            self.run, self.spark, str(self.job_table.table), self.definition, sources, target, needed, self.policy,
            self.rejects, storage, self.changes, plan.groups,
            column_functions(self.code, target.schema, self.policy),
        )  # fmt: skip
        results: list[WriteResult] = []
        if self.code and not plan.since:
            writer = replace(writer, reusable=self._find_reusable(plan, target, results))
        if len(plan.parts) > 1:  # of a single part, Spark's tasks are the progress
            self.run.progress(parts=0, parts_total=len(plan.parts))
        for number, key in enumerate(self._part_keys(plan)):
            if limit is not None and sum(result.rows for result in results) >= limit:
                return results, False
            part, result = plan.parts[number], self._load_part(key, target)
            if result is None:
                if self.code and plan.since and not part.removes and writer.reusable is None:
                    writer = replace(writer, reusable=self._find_reusable(plan, target, results))
                result = self._write_part(writer, part, number)
                self.run.save_checkpoint(key, result.to_json())
            results.append(result)
            if (rejected := sum(result.rejected for result in results)) or self.rejects is not None:
                self.run.progress(rejected=rejected)
            self.run.progress(
                rows=sum(result.rows for result in results),
                fragments=sum(len(result.fragments) for result in results),
                bytes=sum(result.size for result in results),
                parts=len(results),
                parts_total=len(plan.parts),
            )
        return results, True

    def _write_part(self, writer: ViewWriter, part: QueryPart, number: int) -> WriteResult:
        """Write a part. Raises RefusedError, and FullRefreshRequiredError if code fails on rows as they were."""
        try:
            return writer.write_part(part, number)
        except RefusedError as error:
            if part.removes and self.definition.kind is ViewKind.CHUNKER:
                raise FullRefreshRequiredError(f"the chunker fails on a row as it was: {error}") from error
            raise

    def _find_reusable(
        self, plan: RefreshPlan, target: FragmentTarget, results: Sequence[WriteResult]
    ) -> dict[str, ReusableValues]:
        """Return values of columns that the rows to replace have in the view. Raises FullRefreshRequiredError."""
        view = self.job_table.table.dataset(plan.base)
        addresses = None
        if plan.incremental:
            addresses = self._find_removed_rows(plan, view, target, _removed_fragments(plan, results))
        return find_reusable(view, self.job_table.table.location(), self.definition, self.code, addresses)

    def _find_removed_rows(
        self, plan: RefreshPlan, view: lance.LanceDataset, target: FragmentTarget, removed: Sequence[str]
    ) -> Addresses:
        """Return the addresses of the rows that an incremental plan replaces. Raises FullRefreshRequiredError."""
        version = int(view.version)
        if version not in self.removed:
            if plan.groups is not None:
                found = find_group_rows(view, plan.groups.view_values)
            else:
                columns = query_columns(view.schema)
                found = find_equal_rows(view, read_fragments(target.location, removed, columns), columns)
            self.removed[version] = found
        return self.removed[version]

    def _commit(
        self,
        plan: RefreshPlan,
        target: FragmentTarget,
        fragments: Sequence[str],
        removed: Sequence[str],
        made: ViewLineage,
    ) -> int:
        """Commit the rows, without those equal to the ones `removed`; return the version.

        Raises CommitConflictError if others changed the view's rows, FullRefreshRequiredError if it lacks some.
        """
        for _ in range(_MAX_TRIES):
            if (version := self.job_table.find_commit(self.run, plan.base)) is not None:
                return version
            latest = self.job_table.latest()
            self._check_rows_unchanged(plan, latest)
            self.run.check()
            try:
                properties = {LINEAGE_PROPERTY: made.to_json()}
                removal = self._remove_rows(plan, latest, target, removed)
                self.run.progress(removed=removal.rows)
                operation = removal.with_rows(parse_fragments(fragments))
                specs = [index_spec(request) for request in self.definition.index_requests]
                if not specs:
                    return self.job_table.commit(latest, operation, self.run, properties=properties)
                transaction = self.job_table.transaction(latest, operation, self.run, properties=properties)
                return publish_with_indexes(
                    self.run, self.catalog, self.spark, self.job_table, latest, transaction, specs
                )
            except CommitConflictError:
                continue
        raise ConcurrentModificationError("The view's indexes and files keep changing: refresh it again.")

    def _remove_rows(
        self, plan: RefreshPlan, view: lance.LanceDataset, target: FragmentTarget, removed: Sequence[str]
    ) -> Removal:
        """Return the view's fragments without the rows that a plan replaces. Raises FullRefreshRequiredError."""
        if not plan.incremental:
            return Removal(view.count_rows(), (), tuple(fragment.fragment_id for fragment in view.get_fragments()))
        return remove_rows(view, self._find_removed_rows(plan, view, target, removed))

    def _check_rows_unchanged(self, plan: RefreshPlan, latest: lance.LanceDataset) -> None:
        """Raise CommitConflictError unless the view's rows are those of the version that was planned on."""
        columns = query_columns(latest.schema)
        for version in range(plan.base + 1, int(latest.version) + 1):
            if not leaves_rows_unchanged(latest, version, read_transaction(latest, version), columns):
                raise CommitConflictError(f"A concurrent write made version {version} of the view.")

    def _target(self, view: lance.LanceDataset) -> FragmentTarget:
        location = self.job_table.table.location()
        return FragmentTarget(
            location,
            view.schema,
            fresh=False,
            storage_version=view.data_storage_version,
            rows_per_file=self.rows_per_fragment,
        )

    def _part_keys(self, plan: RefreshPlan) -> list[str]:
        """Return the keys of the parts' checkpoints."""
        return [f"part-{plan.attempt}-{number}" for number in range(len(plan.parts))]

    def _figures(
        self, plan: RefreshPlan, version: int, rows: int = 0, fragments: int = 0, results: Sequence[WriteResult] = ()
    ) -> Mapping[str, object]:
        sources = json.dumps({name: origin.version for name, origin in plan.sources.items()})
        figures = {"mode": _mode(plan), "reason": plan.reason, "sources": sources, "version": version}
        schema = self.job_table.latest().schema
        functions = column_functions(self.code, schema, self.policy)
        left_null = AddedColumns.of(schema, code={name: ViewColumn(each) for name, each in functions.items()}).figures()
        columns = {
            "computed": sum(result.columns.computed for result in results),
            "reused": sum(result.columns.reused for result in results),
            "rows_failed": sum(result.columns.failed for result in results),
        }
        return {**figures, **left_null, **(columns if self.code else {}), "rows": rows, "fragments": fragments}


def _find_changes(source: SourceTable, since: int, needed: Collection[str]) -> NetChanges:
    """Return what a source lost and gained after a version. Raises FullRefreshRequiredError."""
    return find_net_changes(source.name, source.dataset, since, columns_to_read(source, needed))


def _mode(plan: RefreshPlan) -> str:
    if not plan.incremental:
        return "full"
    return "incremental" if plan.parts else "unchanged"


def _removed_fragments(plan: RefreshPlan, results: Sequence[WriteResult]) -> list[str]:
    """Return what was written of the rows to remove; parts after a limit have no result."""
    return [
        fragment
        for part, result in zip(plan.parts, results, strict=False)
        if part.removes
        for fragment in result.fragments
    ]
