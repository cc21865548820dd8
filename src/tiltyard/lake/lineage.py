"""Lineage of a lake's tables: what they were made from, what was made from them, and what to run again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from lance_namespace.errors import InvalidInputError

from tiltyard.lake.display import render_table
from tiltyard.lake.tables.arguments import check_whole_number
from tiltyard.model.text.typed_ids import format_id

if TYPE_CHECKING:
    from tiltyard.lake.session import LakeSession

NodeKind = Literal["table", "uri", "hidden", "dropped"]
Derivation = Literal["direct", "transformed", "aggregated", "function", "constant", "unknown"]


@dataclass(frozen=True, slots=True)
class LineageNode:
    """A table, or a file, folder or topic (`uri`); `depth` is how many steps away it is.

    A table on which you have no rights is `hidden`, one that no longer exists `dropped`: they have no name. In the
    lineage of a column, `columns` are those on its path, "*" where it is not known which.
    """

    kind: NodeKind
    name: str
    depth: int
    branch: str | None = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LineageColumn:
    """How a `column` of a commit is made from a column of its source.

    `how` is direct, transformed (by an expression or a cast), aggregated, function (with the digest `code`), constant
    (from no column), or unknown: then `source` is "*", any column.
    """

    column: str
    source: str
    how: Derivation
    code: str | None = None


@dataclass(frozen=True, slots=True)
class LineageEdge:
    """A commit of a job: the `version` of `target` has rows made from `source`, of which it read `source_version`.

    `code` is the digest of the function or query. What is not known, or hidden, is None. In the lineage of a column,
    `columns` has how it was made by the commit, and `why_unknown` why that is not known.
    """

    source: LineageNode
    target: LineageNode
    source_version: int | None = None
    version: int | None = None
    job_kind: str | None = None
    job_id: str | None = None
    code: str | None = None
    principal: str | None = None
    created_at: datetime | None = None
    columns: tuple[LineageColumn, ...] = ()
    why_unknown: str | None = None


@dataclass(frozen=True, slots=True)
class Lineage:
    """Nodes, the nearest first, and edges between them; `is_truncated` says that there are more."""

    nodes: tuple[LineageNode, ...]
    edges: tuple[LineageEdge, ...]
    is_truncated: bool

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the names of the tables, in the order in which to make them again: the nearest first."""
        return tuple(node.name for node in self.nodes if node.kind == "table" and node.depth > 0)

    @property
    def uris(self) -> tuple[str, ...]:
        """Return the files, folders and topics."""
        return tuple(node.name for node in self.nodes if node.kind == "uri" and node.depth > 0)

    def _repr_html_(self) -> str:
        columns = ("target", "version", "made from", "of version", "columns", "job", "by", "at")
        rows = [
            (
                edge.target.name or edge.target.kind, edge.version, edge.source.name or edge.source.kind,
                edge.source_version, ", ".join(map(_describe_column, edge.columns)), edge.job_kind, edge.principal,
                edge.created_at,
            )
            for edge in self.edges
        ]  # fmt: skip
        return render_table(columns, rows)


def _describe_column(step: LineageColumn) -> str:
    return f"{step.column} ({step.how})" if step.how == "constant" else f"{step.column} ← {step.source} ({step.how})"


def read_lineage(lake: LakeSession, **request: Any) -> Lineage:
    """Follow lineage; `request` has the fields of DescribeLineage.

    Raises InvalidInputError, TableNotFoundError, TableColumnNotFoundError.
    """
    for name in ("depth", "version"):
        check_whole_number(request.get(name), name)
    column = request.get("column")
    if column is not None and not isinstance(column, str):
        raise InvalidInputError(f"column is {column!r}: it has to be the name of one column.")
    return parse_lineage(lake.calls.call("DescribeLineage", **request))


def parse_lineage(response: Mapping[str, Any]) -> Lineage:
    """Return the lineage in a response of DescribeLineage."""
    nodes = {node["key"]: _parse_node(node) for node in response["nodes"]}
    edges = (_parse_edge(edge, nodes) for edge in response["edges"])
    ordered = sorted(nodes.values(), key=lambda node: node.depth)
    return Lineage(tuple(ordered), tuple(edges), bool(response["is_truncated"]))


def _parse_node(node: Mapping[str, Any]) -> LineageNode:
    name = format_id(node["id"]) if node.get("id") else node.get("uri") or ""
    columns = tuple(node.get("columns") or ())
    return LineageNode(node["kind"], name, int(node["depth"]), node.get("branch"), columns)


def _parse_edge(edge: Mapping[str, Any], nodes: Mapping[str, LineageNode]) -> LineageEdge:
    millis = edge.get("created_at_millis")
    return LineageEdge(
        nodes[edge["source"]],
        nodes[edge["target"]],
        edge.get("source_version"),
        edge.get("version"),
        edge.get("job_kind"),
        edge.get("job_id"),
        edge.get("code"),
        edge.get("principal"),
        None if millis is None else datetime.fromtimestamp(millis / 1000, UTC),
        tuple(
            LineageColumn(each["column"], each["source_column"], each["how"], each.get("code"))
            for each in edge.get("columns") or ()
        ),
        edge.get("why_unknown"),
    )
