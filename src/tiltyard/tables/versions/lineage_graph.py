"""Follow lineage from a table or a file, by the catalog's index, as far as the caller sees it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import TableNotFoundError

from tiltyard.access.authorization import caller_rights, is_administrator
from tiltyard.model.ids import Id
from tiltyard.model.privileges import Privilege
from tiltyard.model.spec import models
from tiltyard.store.access.grants import TABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        if path is None or not can_use(self.ctx, record):
            return models.LineageNode(key=f"hidden:{len(self.nodes)}", kind="hidden", depth=depth)
        name = Id(path)
        key = f"table:{name}" + (f"@{branch}" if branch else "")
        return models.LineageNode(key=key, kind="table", id=list(name), branch=branch or None, depth=depth)

    def read(self, node: GraphNode, direction: Direction, version: int | None) -> Sequence[LineageRecord]:
        """Return the newest commits that made a node, or were made from it."""
        records = self._records(node, direction, version, MAX_RECORDS + 1)
        self.is_truncated = self.is_truncated or len(records) > MAX_RECORDS
        return records[:MAX_RECORDS]

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
