"""Follow the lineage of one column: which columns it was made from, and which were made from it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tiltyard.model.column_lineage import ANY_COLUMN, ColumnInput, Derivation, inputs_of, made_of
from tiltyard.model.spec import models
from tiltyard.store.repository import parent_folders
from tiltyard.tables.versions.lineage_graph import MAX_NODES, Direction, GraphNode, LineageGraph, version_read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tiltyard.store.tables.lineage import LineageRecord

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
