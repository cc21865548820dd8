"""Refresh views and computed columns by themselves: those that were declared so, in their intervals, where stale.

One refresh of each is queued or runs at a time, however long it takes. It is the job that a request queues, as the
principal who declared it so: one that may not do that any more refreshes nothing.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from lance import LanceOperation
from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError, TransactionNotFoundError

from tiltyard.calls.in_process_caller import InProcessCaller
from tiltyard.change_feed.table_history import read_transactions
from tiltyard.column_refresh.freshness import ComputedColumn, FragmentState, fragment_states
from tiltyard.column_refresh.refresh import FIGURES_PROPERTY
from tiltyard.model.branches import MAIN, Branch
from tiltyard.model.columns.computed_columns import (
    ExpressionDeclaration,
    declared_inputs,
    find_siblings,
    read_declaration,
    refresh_seconds,
)
from tiltyard.model.ids import Id, parse_id, table_id
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.views.definitions import ViewDefinition, ViewKind
from tiltyard.storage.errors import lance_errors
from tiltyard.store.access.grants import TABLE
from tiltyard.store.tables.upkeep import MAX_ENDED
from tiltyard.tables.lance_sql.select_queries import parse_select
from tiltyard.tables.opening import open_for_reading
from tiltyard.tables.schema.column_refreshers import find_refreshers
from tiltyard.tables.schema.computed_columns import BACKFILL
from tiltyard.tables.schema.expression_refresh import REFRESH_COLUMN
from tiltyard.tables.views.materialized_views import REFRESH
from tiltyard.tables.views.select_views import REFRESH_SELECT
from tiltyard.tables.views.view_sources import find_definer, source_names

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

    import lance

    from tiltyard.access.stored_definitions import Definer
    from tiltyard.context import Context
    from tiltyard.store import TableRecord, TransactionRecord

log = logging.getLogger("tiltyard.upkeep")

DEFAULT_REFRESH_SECONDS = 60.0
"""The interval of a view or a column that was declared without one."""
MIN_REFRESH_SECONDS = 5.0
"""The shortest interval in which it is looked whether a view or a column is stale."""
FAILED_REFRESH_SECONDS = 600.0
"""How long one rests after a refresh that failed or was refused, if its interval is not longer."""
STATE = "refreshes"
"""What looks at a table have noted of each that refreshes: when that was (`at`), what was to be seen (`seen`), the last
jobs that were queued (`jobs`), and whether one was refused (`refused`)."""
_ADDING = (
    LanceOperation.Append,
    LanceOperation.Overwrite,
    LanceOperation.Update,
    LanceOperation.Merge,
    LanceOperation.Restore,
)
"""Commits that may add rows which have no value yet."""


class Refreshed(Protocol):
    """A view or a column that refreshes by itself."""

    @property
    def key(self) -> str:
        """Return its name in the state."""

    @property
    def seconds(self) -> float:
        """Return its interval, 0 where it was declared without one."""

    def is_refresh(self, job: TransactionRecord) -> bool:
        """Return whether a job of the table refreshes this."""

    def look(self, seen: Any) -> tuple[Any, bool]:
        """Return what is to be seen now, and whether this is stale if the last look has `seen` that (None: no look).

        Raises LanceNamespaceError.
        """

    def queue(self, path: Id) -> str:
        """Queue a refresh; return the job. Raises LanceNamespaceError."""


def plan_refreshes(
    ctx: Context, table: TableRecord, dataset: lance.LanceDataset, state: MutableMapping[str, Any], now: int
) -> int | None:
    """Queue the refreshes of what refreshes by itself, if they are due; return when the next one is (ms since 1970).

    None for a table where nothing does. `state` has what the last look has noted, and gets what this one does. Raises
    ServiceUnavailableError.
    """
    noted: dict[str, dict[str, Any]] = state.pop(STATE, {})
    kept: dict[str, dict[str, Any]] = {}
    dues: list[int] = []
    for refreshed in [*_refreshed_view(ctx, table, dataset), *_refreshed_columns(ctx, table, dataset)]:
        kept[refreshed.key], due = _plan(ctx, table, refreshed, noted.get(refreshed.key, {}), now)
        dues.append(due)
    if kept:
        state[STATE] = kept
    return min(dues, default=None)


def _plan(
    ctx: Context, table: TableRecord, refreshed: Refreshed, noted: dict[str, Any], now: int
) -> tuple[dict[str, Any], int]:
    """Queue a refresh if it is due; return what is to be noted, and when it is next. Raises ServiceUnavailableError."""
    interval = int(1000 * max(MIN_REFRESH_SECONDS, refreshed.seconds or DEFAULT_REFRESH_SECONDS))
    jobs: list[str] = noted.get("jobs", [])
    has_failed = noted.get("refused", False) or _has_failed(ctx, jobs)
    due: int = noted.get("at", 0) + (max(interval, int(1000 * FAILED_REFRESH_SECONDS)) if has_failed else interval)
    if due > now:
        return noted, due
    if any(map(refreshed.is_refresh, ctx.store.unfinished_transactions(table.id))):
        return noted, now + interval  # what comes meanwhile is for the next one
    noted = {**noted, "at": now, "refused": False}
    try:
        seen, is_stale = refreshed.look(noted.get("seen"))
        path = ctx.store.transact(lambda catalog: catalog.object_path(TABLE, table.id))
        if (is_stale or has_failed) and path is not None:
            ended, jobs = jobs[: 1 - MAX_ENDED], [*jobs[1 - MAX_ENDED :], refreshed.queue(Id(path))]
            ctx.store.delete_ended_transactions(ended)  # few stay, for there are many over time
        noted |= {"seen": seen, "jobs": jobs}
    except ServiceUnavailableError:
        raise
    except LanceNamespaceError as error:
        log.warning("table %s: %s is not refreshed: %s", table.id, refreshed.key, error)
        noted["refused"] = True
    return noted, now + interval


def _has_failed(ctx: Context, jobs: list[str]) -> bool:
    """Return whether the last of these jobs has failed."""
    try:
        return bool(jobs) and ctx.store.describe_transaction(jobs[-1]).status is TransactionStatus.FAILED
    except TransactionNotFoundError:
        return False


def _call_as(ctx: Context, definer: Definer) -> InProcessCaller:
    return InProcessCaller(ctx.services, definer.context(ctx).principal, retry_seconds=0)


def _refreshed_view(ctx: Context, table: TableRecord, dataset: lance.LanceDataset) -> Iterator[Refreshed]:
    definition = ViewDefinition.from_metadata(dataset.schema.metadata)
    if definition is not None and definition.auto_refresh:
        yield RefreshedView(ctx, table, definition)


@dataclass(frozen=True, slots=True)
class RefreshedView:
    """A view: stale where one of its sources has another version."""

    ctx: Context
    table: TableRecord
    definition: ViewDefinition

    @property
    def key(self) -> str:
        return "view"

    @property
    def seconds(self) -> float:
        return self.definition.refresh_seconds

    def is_refresh(self, job: TransactionRecord) -> bool:
        return job.kind in (REFRESH_SELECT, REFRESH)

    def look(self, seen: Any) -> tuple[Any, bool]:
        """See each source's location and the version that the view reads. Raises what opening it raises."""
        branch, version = MAIN, None
        if self.definition.kind is ViewKind.SELECT:
            query = parse_select(self.definition.query)
            branch, version = query.branch, None if query.dedup is None else query.dedup.version
        sources: list[Any] = []
        for name in source_names(self.definition):
            path = table_id(parse_id(name))
            opened = open_for_reading(self.ctx, path, branch=branch, version=version)
            sources += [opened.record.location, int(opened.dataset.version)]
        return sources, sources != seen

    def queue(self, path: Id) -> str:
        """Queue the refresh as the view's creator. Raises what RefreshMaterializedView raises."""
        caller = _call_as(self.ctx, find_definer(self.ctx, self.table, self.definition))
        return str(caller.call("RefreshMaterializedView", id=list(path))["job_id"])


def _refreshed_columns(ctx: Context, table: TableRecord, dataset: lance.LanceDataset) -> Iterator[Refreshed]:
    """Yield the columns that refresh by themselves; of those that one call of a function fills, the first."""
    schema = dataset.schema
    seconds = {field.name: refresh_seconds(field.metadata) for field in schema}
    if all(each is None for each in seconds.values()):
        return
    definers = find_refreshers(ctx, table)
    done: set[str] = set()
    for field in schema:
        declaration, interval = read_declaration(field.metadata), seconds[field.name]
        if declaration is None or interval is None or field.name in done or declaration.identity not in definers:
            continue
        inputs = declared_inputs(schema, declaration)
        if set(inputs) <= {*schema.names}:
            column = ComputedColumn.of(dataset, field.name, inputs, declaration.identity)
            yield RefreshedColumn(ctx, dataset, column, interval, definers[declaration.identity])
        if not isinstance(declaration, ExpressionDeclaration):
            done |= find_siblings(schema, field.name, declaration).keys()


@dataclass(frozen=True, slots=True)
class RefreshedColumn:
    """A computed column: stale where a fragment lacks values of its inputs as they are.

    Rows on which its function fails lack them after each refresh. So where nothing but rows without a value is to be
    filled, it is stale only after commits of others: they may have added such rows.
    """

    ctx: Context
    dataset: lance.LanceDataset
    column: ComputedColumn
    seconds: float
    definer: Definer

    @property
    def key(self) -> str:
        return f"column {self.column.name}"

    def is_refresh(self, job: TransactionRecord) -> bool:
        if job.kind not in (BACKFILL, REFRESH_COLUMN):
            return False
        arguments = job.payload["arguments"]
        return Branch.parse(arguments.get("branch")).is_main and arguments.get("column") == self.column.name

    def look(self, seen: Any) -> tuple[Any, bool]:
        """See the table's version. Raises what Lance raises."""
        version = int(self.dataset.version)
        if seen == version:
            return version, False
        with lance_errors(self.dataset):
            fragments = [fragment.metadata for fragment in self.dataset.get_fragments()]
            state = max(fragment_states(self.dataset, self.column, fragments).values(), default=FragmentState.FRESH)
            if state is FragmentState.NULLS and seen is not None and seen < version:
                return version, self._are_rows_added_since(seen)
        return version, state is not FragmentState.FRESH

    def _are_rows_added_since(self, version: int) -> bool:
        """Return whether a commit since a version, other than a refresh's, may have added rows without a value."""
        return any(
            isinstance(transaction.operation, _ADDING)
            and FIGURES_PROPERTY not in (transaction.transaction_properties or {})
            for _, transaction in read_transactions(self.dataset, version)
        )

    def queue(self, path: Id) -> str:
        """Queue the refresh as whoever lets it be. Raises what AlterTableBackfillColumns raises."""
        caller = _call_as(self.ctx, self.definer)
        return str(caller.call("AlterTableBackfillColumns", id=list(path), column=self.column.name)["job_id"])
