"""Plan a refresh: nothing to do, the rows that were added or changed, groups of them, or all rows; in which parts.

What the query's shape allows (`query_analysis`) meets what happened to its tables since the last refresh.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from tiltyard.change_feed.table_history import fragments_by_id
from tiltyard.model.columns.lineage import Origins
from tiltyard.model.views.definitions import SourceVersion, ViewDefinition, ViewKind, ViewLineage
from tiltyard.pipeline.table_location import scan_fragments
from tiltyard.pipeline.views.group_keys import GroupKeys, find_groups, usable_keys
from tiltyard.pipeline.views.query_analysis import QueryShape
from tiltyard.pipeline.views.sources import SourceTable
from tiltyard.view_refresh.net_changes import NetChanges
from tiltyard.view_refresh.source_changes import (
    FullRefreshRequiredError,
    RowsChangedError,
    find_added_fragments,
    find_last_refresh,
)

if TYPE_CHECKING:
    import lance

ROWS_PER_PART = 4_000_000
"""How many rows of the sources are read before the output is checkpointed: the most that a driver's death costs."""

ReadChanges = Callable[[str, int], NetChanges]
"""Returns what changed in a source, by its name, after a version. Raises FullRefreshRequiredError."""


@dataclass(frozen=True, slots=True)
class QueryPart:
    """What the query is run on at once: fragments by the name of their table.

    With `changed`, of that table the rows that it gained instead, or, if it `removes`, those that it lost: the query's
    rows of them are removed from the view.
    """

    fragments: Mapping[str, list[int]]
    changed: str = ""
    removes: bool = False


@dataclass(frozen=True, slots=True)
class RefreshPlan:
    """A refresh of the view at the version `base`, in parts.

    If `incremental`, the rows of the parts are added to those of the view, else they replace them. `since` has the
    versions after which the changes of tables are read. With `groups`, the parts read the rows of those groups alone,
    and the view's rows of them are replaced. `origins` and `why_unknown` are the columns of the lineage. `attempt`
    tells the plan from earlier plans of the same run, which concurrent writers made obsolete.
    """

    attempt: int
    base: int
    incremental: bool
    reason: str
    sources: Mapping[str, SourceVersion]
    parts: list[QueryPart]
    needed: list[str]
    since: Mapping[str, int] = field(default_factory=dict)
    groups: GroupKeys | None = None
    origins: Origins | None = None
    why_unknown: str = ""

    def to_json(self) -> str:
        """Serialize for the run's checkpoint."""
        fields = asdict(replace(self, groups=None, origins=None))
        groups, origins = self.groups and self.groups.to_json(), msgspec.to_builtins(self.origins)
        return json.dumps({**fields, "groups": groups, "origins": origins})

    @classmethod
    def from_json(cls, text: str) -> RefreshPlan:
        """Deserialize from a checkpoint."""
        fields = json.loads(text)
        sources = {name: SourceVersion(**origin) for name, origin in fields["sources"].items()}
        groups = GroupKeys.from_json(fields["groups"]) if fields.get("groups") else None
        origins = msgspec.convert(fields.get("origins"), Origins | None)
        # Earlier releases had lists of fragments alone, by table.
        parts = [
            QueryPart(**part) if isinstance(part.get("fragments"), dict) else QueryPart(part)
            for part in fields["parts"]
        ]
        return cls(**{**fields, "sources": sources, "groups": groups, "parts": parts, "origins": origins})


@dataclass(frozen=True, slots=True)
class Decision:
    """What a refresh computes, as RefreshPlan has it; there are no parts if there is nothing to do."""

    parts: list[QueryPart]
    incremental: bool
    reason: str
    since: Mapping[str, int] = field(default_factory=dict)
    groups: GroupKeys | None = None


@dataclass(frozen=True, slots=True)
class RefreshOptions:
    """What the caller sets.

    `full` computes all rows anyway, `limit` is for at most so many rows in the view. An incremental refresh reads at
    most `max_join_rows` rows of the unchanged tables of a join, and computes at most `max_groups` groups again.
    """

    full: bool
    limit: int | None
    max_join_rows: int
    max_groups: int


@dataclass(frozen=True, slots=True)
class ViewQuery:
    """A view's query: its shape by the names that it has for its tables, and the columns `needed` that it reads.

    `is_repeatable` says whether rows that were changed can be computed again as they were: the view's code is
    deterministic, or there is none.
    """

    definition: ViewDefinition
    shape: QueryShape
    needed: frozenset[str]
    is_repeatable: bool


def columns_to_read(source: SourceTable, needed: Collection[str]) -> list[str]:
    """Return the columns of a source that are read, at least one."""
    names = source.dataset.schema.names
    return [name for name in names if name in needed] or names[:1]


def decide(
    view: lance.LanceDataset,
    query: ViewQuery,
    sources: Mapping[str, SourceTable],
    options: RefreshOptions,
    read_changes: ReadChanges,
) -> Decision:
    """Decide what to compute."""
    last = find_last_refresh(view)
    try:
        if isinstance(last, str):
            raise FullRefreshRequiredError(last)
        _check_view(view, query.definition, last, options)
        return _Changes.since(last, sources).decide(view, query, options, read_changes)
    except FullRefreshRequiredError as reason:
        return decide_full(query, sources, str(reason))


def decide_full(query: ViewQuery, sources: Mapping[str, SourceTable], reason: str) -> Decision:
    """Decide to compute all rows."""
    fragments = {name: source.fragments for name, source in sources.items()}
    parts = [QueryPart(fragments)] if query.shape.why_all_rows else split_into_parts(sources, fragments)
    return Decision(parts, incremental=False, reason=reason)


def _check_view(
    view: lance.LanceDataset, definition: ViewDefinition, last: ViewLineage, options: RefreshOptions
) -> None:
    """Raise FullRefreshRequiredError if the view itself needs a full refresh."""
    if options.full:
        raise FullRefreshRequiredError("a full refresh was requested")
    if last.definition != definition.digest:
        raise FullRefreshRequiredError("the definition has changed")
    rows = view.count_rows() if options.limit is not None or last.cut else 0
    if options.limit is not None and rows > options.limit:
        raise FullRefreshRequiredError("the view has more rows than the output limit")
    if last.cut and rows != options.limit:
        raise FullRefreshRequiredError("the last refresh was cut at its output limit")


@dataclass(frozen=True, slots=True)
class _Changes:
    """What happened to a view's sources after its last refresh.

    `added` has the fragments of tables to which rows were only added; `changed` has the versions after which rows of
    the others were changed or deleted, and the reasons to say so.
    """

    sources: Mapping[str, SourceTable]
    added: Mapping[str, list[int]]
    changed: Mapping[str, tuple[int, str]]

    @classmethod
    def since(cls, last: ViewLineage, sources: Mapping[str, SourceTable]) -> _Changes:
        """Compare the sources with the versions that the last refresh read. Raises FullRefreshRequiredError."""
        if last.sources.keys() != sources.keys():
            raise FullRefreshRequiredError("the view's source tables are others")
        added: dict[str, list[int]] = {}
        changed: dict[str, tuple[int, str]] = {}
        for name, source in sources.items():
            before = last.sources[name]
            try:
                added[name] = find_added_fragments(name, source.location.uri, source.dataset, before)
            except RowsChangedError as reason:
                changed[name] = (before.version, str(reason))
        return cls(sources, {name: fragments for name, fragments in added.items() if fragments}, changed)

    def decide(
        self, view: lance.LanceDataset, query: ViewQuery, options: RefreshOptions, read_changes: ReadChanges
    ) -> Decision:
        """Decide what to compute. Raises FullRefreshRequiredError."""
        if not (self.added or self.changed):
            return Decision([], incremental=True, reason="no rows were added")
        if self.changed and not query.is_repeatable:
            raise FullRefreshRequiredError(next(reason for _, reason in self.changed.values()))
        if self.changed and options.limit is not None:
            raise FullRefreshRequiredError("rows were changed, and the view has an output limit")
        if not query.shape.why_all_rows:
            return self._follow_rows({}, read_changes)
        table, *others = [*self.added, *self.changed]
        name = query.definition.source_name(table)
        is_grouped = name in query.shape.keys and query.definition.kind is ViewKind.QUERY
        if not query.is_repeatable or not (is_grouped or name in query.shape.linear):
            raise FullRefreshRequiredError(query.shape.why_all_rows)
        if others:
            raise FullRefreshRequiredError(f"{query.shape.why_all_rows}, and {table} and {others[0]} were both changed")
        unchanged = self._unchanged(table, query.shape.why_all_rows, options)
        if not is_grouped:
            return self._follow_rows(unchanged, read_changes)
        keys = usable_keys(query.shape.keys[name], self.sources[table].dataset.schema, view.schema)
        if not keys:
            raise FullRefreshRequiredError(
                f"{query.shape.why_all_rows}, and groups by no column of {table} that it returns as it is"
            )
        return self._follow_groups(table, keys, unchanged, options, read_changes)

    def _unchanged(self, table: str, why: str, options: RefreshOptions) -> dict[str, list[int]]:
        """Return the fragments of the tables beside a changed one. Raises FullRefreshRequiredError if one is large."""
        others = {name: source for name, source in self.sources.items() if name != table}
        for name, source in others.items():
            if (rows := source.dataset.count_rows()) > options.max_join_rows:
                raise FullRefreshRequiredError(
                    f"{why}, and {name} has {rows:,} rows, more than max_join_rows ({options.max_join_rows:,})"
                )
        return {name: source.fragments for name, source in others.items()}

    def _follow_rows(self, unchanged: Mapping[str, list[int]], read_changes: ReadChanges) -> Decision:
        """Run the query on rows that were added, and on rows that were changed, as they were and as they are."""
        added = [
            replace(part, fragments={**part.fragments, **unchanged})
            for part in split_into_parts(self.sources, self.added)
        ]
        since = {name: version for name, (version, _) in self.changed.items()}
        removing: list[QueryPart] = []
        for name, version in since.items():
            changes = read_changes(name, version)
            removing += [QueryPart(unchanged, name, removes=True)] if changes.lost else []
            added += [QueryPart(unchanged, name)] if changes.gained else []
        parts = [*removing, *added]  # what is removed first: its values may be those of rows that are added
        if not parts:
            return Decision([], incremental=True, reason="no rows that the view shows were changed")
        reason = "rows were only added"
        if self.changed:
            reason = f"rows of {', '.join(self.changed)} were changed or deleted: these alone are computed"
        return Decision(parts, incremental=True, reason=reason, since=since)

    def _follow_groups(
        self,
        table: str,
        keys: Mapping[str, str],
        unchanged: Mapping[str, list[int]],
        options: RefreshOptions,
        read_changes: ReadChanges,
    ) -> Decision:
        """Run the query on all rows of the groups that changed rows are in."""
        source = self.sources[table]
        rows = self._changed_rows(table, list(keys), read_changes)
        groups = find_groups(table, keys, rows, options.max_groups)
        if not all(map(len, groups.values.values())):
            return Decision([], incremental=True, reason="no rows that the view shows were changed")
        counts = " and ".join(f"{len(values):,} values of {name}" for name, values in groups.values.items())
        reason = f"rows of {table} were changed: groups of {counts} are computed again"
        parts = [QueryPart({table: source.fragments, **unchanged})]
        return Decision(parts, incremental=True, reason=reason, groups=groups)

    def _changed_rows(self, table: str, columns: Sequence[str], read_changes: ReadChanges) -> Iterable[pa.RecordBatch]:
        """Yield some columns of the rows of a table that were added or changed."""
        if table in self.added:
            yield from scan_fragments(self.sources[table].dataset, self.added[table], columns=list(columns))
            return
        changes = read_changes(table, self.changed[table][0])
        for rows in (*changes.lost, *changes.gained):
            yield from rows.read(self.sources[table].location.open, columns)


def split_into_parts(sources: Mapping[str, SourceTable], fragments: Mapping[str, list[int]]) -> list[QueryPart]:
    """Split fragments into parts of similar size, each of one table."""
    parts: list[QueryPart] = []
    for name, numbers in fragments.items():
        by_id = fragments_by_id(sources[name].dataset)
        part: list[int] = []
        rows = 0
        for number in numbers:
            if part and rows + by_id[number].num_rows > ROWS_PER_PART:
                parts.append(QueryPart({name: part}))
                part, rows = [], 0
            part.append(number)
            rows += by_id[number].num_rows
        if part:
            parts.append(QueryPart({name: part}))
    return parts
