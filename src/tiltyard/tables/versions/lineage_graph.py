"""Follow lineage from a table or a file, by the catalog's index, as far as the caller sees it.

Of whole tables, or of one column: which columns it was made from, and which were made from it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import TableNotFoundError

from tiltyard.access.authorization import are_allowed_outside, caller_rights, is_administrator, is_allowed_outside
from tiltyard.model.columns.lineage import ANY_COLUMN, ColumnInput, Derivation, inputs_of, made_of
from tiltyard.model.ids import Id
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import models
from tiltyard.store.access.grants import TABLE
from tiltyard.store.repository import parent_folders

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tiltyard.context import Context
    from tiltyard.store import TableRecord
    from tiltyard.store.tables.lineage import LineageRecord


MAX_NODES = 200
MAX_RECORDS = 50
"""Commits of one table, or made from one, that a response has; the newest ones."""


class Direction(StrEnum):
    """Where lineage is followed to: what a table was made from, or what was made from it."""

    UPSTREAM = "upstream"
    DOWNSTREAM = "downstream"


def can_use(ctx: Context, record: TableRecord) -> bool:
    """Return whether the caller has `use` on a table, and no policy of it binds the caller."""
    return _is_granted(ctx, record) and is_allowed_outside(ctx, TABLE, record.id)


def _is_granted(ctx: Context, record: TableRecord) -> bool:
    """Return the same without what services outside say."""
    if is_administrator(ctx):
        return True
    rights = caller_rights(ctx)
    return rights.allow(record, Privilege.USE.value) and rights.effective_policy(record.id) is None


@dataclass(frozen=True, slots=True)
class GraphNode:
    """A node from which lineage is followed: a table's branch, or a file or folder."""

    key: str
    depth: int
    table_id: int | None = None
    branch: str = ""
    uri: str = ""


@dataclass(slots=True)
class LineageGraph:
    """The nodes and edges of a response, as far as the caller sees them."""

    ctx: Context
    nodes: dict[str, models.LineageNode] = field(default_factory=dict)
    edges: dict[tuple[Any, ...], models.LineageEdge] = field(default_factory=dict)
    is_truncated: bool = False
    _keys: dict[tuple[int, str], str] = field(default_factory=dict)
    _allowed: dict[int, bool] = field(default_factory=dict)
    _starts: deque[tuple[GraphNode, int | None]] = field(default_factory=deque)

    def follow(self, start: GraphNode, direction: Direction, depth: int, version: int | None) -> None:
        """Follow lineage breadth first, at most `depth` steps from the start, up to MAX_NODES nodes."""
        self._starts.append((start, version))
        while self._starts:
            node, at_version = self._starts.popleft()
            if node.depth == depth:
                self.is_truncated = self.is_truncated or bool(self._records(node, direction, None, 1))
            elif direction is Direction.UPSTREAM:
                self._add_sources(node, self.read(node, direction, at_version))
            else:
                self._add_targets(node, self.read(node, direction, at_version), at_version)

    def add_table(self, number: int, branch: str, depth: int) -> GraphNode:
        """Add the node of a table; return it."""
        key = self._keys.get((number, branch))
        if key is None:
            node = self.describe_table(number, branch, depth)
            key = self._keys[number, branch] = node.key
            self.nodes[key] = node
        return GraphNode(key, self.nodes[key].depth, number, branch)

    def add_uri(self, uri: str, depth: int) -> GraphNode:
        """Add the node of a file or folder; return it."""
        key = f"uri:{uri}"
        self.nodes.setdefault(key, models.LineageNode(key=key, kind="uri", uri=uri, depth=depth))
        return GraphNode(key, self.nodes[key].depth, uri=uri)

    def response(self) -> models.DescribeLineageResponse:
        """Return the response."""
        return models.DescribeLineageResponse(
            nodes=list(self.nodes.values()), edges=list(self.edges.values()), is_truncated=self.is_truncated
        )

    def describe_table(self, number: int, branch: str, depth: int) -> models.LineageNode:
        """Return the node that a table is to the caller."""
        try:
            record = self.ctx.store.table_by_id(number)
        except TableNotFoundError:
            return models.LineageNode(key=f"dropped:{len(self.nodes)}", kind="dropped", depth=depth)
        path = self.ctx.store.object_path(TABLE, number)
        self._ask_about([number])
        if path is None or not (_is_granted(self.ctx, record) and self._allowed[number]):
            return models.LineageNode(key=f"hidden:{len(self.nodes)}", kind="hidden", depth=depth)
        name = Id(path)
        key = f"table:{name}" + (f"@{branch}" if branch else "")
        return models.LineageNode(key=key, kind="table", id=list(name), branch=branch or None, depth=depth)

    def read(self, node: GraphNode, direction: Direction, version: int | None) -> Sequence[LineageRecord]:
        """Return the newest commits that made a node, or were made from it."""
        records = self._records(node, direction, version, MAX_RECORDS + 1)
        self.is_truncated = self.is_truncated or len(records) > MAX_RECORDS
        made = records[:MAX_RECORDS]
        if direction is Direction.UPSTREAM:
            self._ask_about(number for record in made for number in record.source_ids if number is not None)
        else:
            self._ask_about(record.table_id for record in made)
        return made

    def _ask_about(self, numbers: Iterable[int]) -> None:
        """Ask services outside, if there are any, about tables of which it is not known yet, in one go."""
        unknown = [number for number in dict.fromkeys(numbers) if number not in self._allowed]
        self._allowed.update(zip(unknown, are_allowed_outside(self.ctx, TABLE, unknown), strict=True))

    def _records(
        self, node: GraphNode, direction: Direction, version: int | None, limit: int
    ) -> Sequence[LineageRecord]:
        store = self.ctx.store
        if node.table_id is None:
            return store.lineage_from_place(node.uri, limit) if direction is Direction.DOWNSTREAM else ()
        if direction is Direction.UPSTREAM:
            return store.lineage_of(node.table_id, node.branch, version, limit)
        return store.lineage_from_table(node.table_id, node.branch, limit)

    def _add_sources(self, node: GraphNode, records: Sequence[LineageRecord]) -> None:
        for record in records:
            for source, number in zip(record.sources, record.source_ids, strict=True):
                before = len(self.nodes)
                if before >= MAX_NODES:
                    self.is_truncated = True
                    return
                found = (
                    self.add_uri(source.name, node.depth + 1)
                    if number is None
                    else self.add_table(number, source.branch, node.depth + 1)
                )
                self.add_edge(found, node, record, source.version)
                if len(self.nodes) > before and self.nodes[found.key].kind == "table":
                    self._starts.append((found, source.version))

    def _add_targets(self, node: GraphNode, records: Sequence[LineageRecord], version: int | None) -> None:
        for record in records:
            read = version_read(record, node)
            if version is not None and read is not None and read < version:
                continue
            before = len(self.nodes)
            if before >= MAX_NODES:
                self.is_truncated = True
                return
            found = self.add_table(record.table_id, record.branch, node.depth + 1)
            kind = self.nodes[found.key].kind
            if kind == "dropped" or (kind == "hidden" and node.table_id is None):  # who else read a file is hidden, too
                del self.nodes[found.key]
                del self._keys[record.table_id, record.branch]
                continue
            self.add_edge(node, found, record, read)
            if len(self.nodes) > before and self.nodes[found.key].kind == "table":
                self._starts.append((found, None))

    def add_edge(
        self, source: GraphNode, target: GraphNode, record: LineageRecord, read: int | None
    ) -> models.LineageEdge:
        """Add the edge of a commit, unless a newer one of the same job is there; return it."""
        key = (source.key, target.key, record.kind, record.code, *sorted(each.name for each in record.sources))
        if key not in self.edges:
            edge = models.LineageEdge(source=source.key, target=target.key)
            if self.nodes[target.key].kind == "table":
                edge.source_version, edge.version = read, record.version
                edge.job_kind, edge.job_id, edge.code = record.kind, record.job, record.code or None
                edge.principal, edge.created_at_millis = record.principal, record.created_at
            self.edges[key] = edge
        return self.edges[key]


def version_read(record: LineageRecord, node: GraphNode) -> int | None:
    """Return the version of a table that a commit was made from."""
    for source, number in zip(record.sources, record.source_ids, strict=True):
        if number == node.table_id and source.branch == node.branch:
            return source.version
    return None


MAX_COLUMN_STEPS = 2_000
"""Steps from a column to another one that a response has."""


@dataclass(frozen=True, slots=True)
class _Step:
    """A column that is followed next: at the depth of its own path, which may be longer than that to its table."""

    node: GraphNode
    column: str
    version: int | None = None


@dataclass(slots=True)
class ColumnGraph(LineageGraph):
    """The tables and files on the paths of one column; each edge has the steps of columns that its commit made.

    What is not known is ANY_COLUMN, and is followed as any column of its table. A table that the caller cannot see
    might have read any: it is there whichever it read.
    """

    _steps: deque[_Step] = field(default_factory=deque)
    _seen: set[tuple[str, str]] = field(default_factory=set)
    _count: int = 0

    def follow_column(
        self, start: GraphNode, column: str, direction: Direction, depth: int, version: int | None
    ) -> None:
        """Follow a column breadth first, at most `depth` steps from the start."""
        self._push(start, column, version)
        while self._steps:
            step = self._steps.popleft()
            is_last = step.node.depth == depth
            records = self.read(step.node, direction, step.version)
            for record in records:
                if direction is Direction.UPSTREAM:
                    self._add_inputs(step, record, is_last=is_last)
                else:
                    self._add_made(step, record, is_last=is_last)

    def _push(self, node: GraphNode, column: str, version: int | None) -> None:
        """Have a column followed, once."""
        if (node.key, column) in self._seen:
            return
        self._seen.add((node.key, column))
        named = self.nodes[node.key]
        named.columns = [*(named.columns or []), column]
        if named.kind in ("table", "uri"):
            self._steps.append(_Step(node, column, version))

    def _is_full(self, *, is_last: bool) -> bool:
        """Return whether no step may be added; then the response is truncated."""
        is_full = is_last or len(self.nodes) >= MAX_NODES or self._count >= MAX_COLUMN_STEPS
        self.is_truncated = self.is_truncated or is_full
        return is_full

    def _add_inputs(self, step: _Step, record: LineageRecord, *, is_last: bool) -> None:
        for each in inputs_of(record.columns, len(record.sources), step.column):
            if self._is_full(is_last=is_last):
                return
            source, number = record.sources[each.source], record.source_ids[each.source]
            found = (
                self.add_uri(source.name, step.node.depth + 1)
                if number is None
                else self.add_table(number, source.branch, step.node.depth + 1)
            )
            is_seen = self.nodes[found.key].kind in ("table", "uri")
            known = each if is_seen else ColumnInput(each.source, ANY_COLUMN, Derivation.UNKNOWN)
            self._add_step(found, step.node, record, source.version, step.column, known)
            if each.how is not Derivation.CONSTANT:
                self._push(replace(found, depth=step.node.depth + 1), known.column, source.version)

    def _add_made(self, step: _Step, record: LineageRecord, *, is_last: bool) -> None:
        read = version_read(record, step.node)
        if step.version is not None and read is not None and read < step.version:
            return
        made = made_of(record.columns, frozenset(_positions(record, step.node)), step.column)
        kind = self.describe_table(record.table_id, record.branch, 0).kind
        if kind == "dropped" or (not made and kind == "table") or (kind == "hidden" and step.node.table_id is None):
            return
        if self._is_full(is_last=is_last):
            return
        found = self.add_table(record.table_id, record.branch, step.node.depth + 1)
        if kind == "hidden":
            self.add_edge(step.node, found, record, read)
            return
        for column, each in made:
            self._add_step(step.node, found, record, read, column, each)
            self._push(replace(found, depth=step.node.depth + 1), column, None)

    def _add_step(
        self,
        source: GraphNode,
        target: GraphNode,
        record: LineageRecord,
        read: int | None,
        column: str,
        made_from: ColumnInput,
    ) -> None:
        edge = self.add_edge(source, target, record, read)
        step = models.LineageColumn(
            column=column, source_column=made_from.column, how=made_from.how.value, code=made_from.code or None
        )
        if step not in (edge.columns or ()):
            edge.columns = [*(edge.columns or []), step]
            self._count += 1
        if record.columns is None:
            edge.why_unknown = record.why_unknown or None


def _positions(record: LineageRecord, node: GraphNode) -> Iterator[int]:
    """Yield the positions of a node among the sources of a commit."""
    folders = {node.uri, *parent_folders(node.uri)} if node.table_id is None else set()
    for position, (source, number) in enumerate(zip(record.sources, record.source_ids, strict=True)):
        if node.table_id is not None:
            is_node = number == node.table_id and source.branch == node.branch
        else:
            is_node = number is None and (source.place in folders or source.place.startswith(f"{node.uri}/"))
        if is_node:
            yield position
