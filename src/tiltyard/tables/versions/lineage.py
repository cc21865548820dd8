"""Lineage: what a table was made from, and what was made from it: RecordTableLineage, DescribeLineage.

A job writes what it makes its rows from into the transaction of its commit, and has the catalog index that. The index
is derived: a commit can be indexed again, and says itself what it was made from. Commits of no job have no lineage.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import lance
from lance_namespace.errors import (
    InvalidInputError,
    TableNotFoundError,
    TableVersionNotFoundError,
    TransactionNotFoundError,
)

from tiltyard.access.authorization import authorize_table, caller_rights, is_administrator
from tiltyard.access.needs import on_table
from tiltyard.change_feed.table_history import read_transaction
from tiltyard.model.branches import Branch
from tiltyard.model.ids import Id, table_id
from tiltyard.model.lineage import DEFAULT_DEPTH, MAX_NAME, CommitLineage, LineageSource, strip_credentials
from tiltyard.model.modes import parse_mode
from tiltyard.model.operations import Needs, operation
from tiltyard.model.privileges import Privilege
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.store.access.grants import TABLE
from tiltyard.store.tables.lineage import LineageRecord
from tiltyard.tables.opening import check_version_number, open_for_reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context
    from tiltyard.store import TableRecord

MAX_DEPTH = 20
MAX_NODES = 200
MAX_RECORDS = 50
"""Commits of one table, or made from one, that a response has; the newest ones."""


class Direction(StrEnum):
    """Where lineage is followed to: what a table was made from, or what was made from it."""

    UPSTREAM = "upstream"
    DOWNSTREAM = "downstream"


# Recording


@operation(needs=on_table(Privilege.WRITE), audited=False, keyed=False)
def record_table_lineage(ctx: Context, request: models.RecordTableLineageRequest) -> models.RecordTableLineageResponse:
    """Index the lineage that a version's commit holds; `recorded` is false for one without, or indexed already.

    Raises what opening the version raises.
    """
    path, branch = table_id(request.id), Branch.parse(request.branch)
    check_version_number(request.version)
    opened = open_for_reading(ctx, path, branch=branch, version=request.version)
    ctx.storage.manifests.check_history(opened.record.location, branch)
    with lance_errors(opened.dataset):
        transaction = read_transaction(opened.dataset, request.version)
    lineage = None if transaction is None else CommitLineage.from_properties(transaction.transaction_properties)
    if transaction is None or lineage is None:
        return models.RecordTableLineageResponse(recorded=False)
    replaces = isinstance(transaction.operation, lance.LanceOperation.Overwrite) or lineage.kind == "refresh"
    recorded = add_commit(ctx, opened.record, branch, request.version, lineage, replaces=replaces)
    return models.RecordTableLineageResponse(recorded=recorded)


def add_commit(
    ctx: Context, record: TableRecord, branch: Branch, version: int, lineage: CommitLineage, *, replaces: bool
) -> bool:
    """Add a commit to the index; return whether it is new. `replaces` says that no row of earlier versions is left."""
    source_ids = tuple(_find_source(ctx, source) for source in lineage.sources)
    principal = _principal_of(ctx, lineage.job)
    return ctx.store.add_lineage(
        LineageRecord.of(
            lineage, record.id, branch.key, version, replaces=replaces, source_ids=source_ids, principal=principal
        )
    )


def _find_source(ctx: Context, source: LineageSource) -> int | None:
    """Return the id of the table that a source is, by its location; None for any other, and one the caller cannot see.

    A commit may name any location, and the response of no later call may tell whether a table is there.
    """
    location = (source.location or source.name).rstrip("/")
    record = ctx.store.table_at(location)
    if record is None or record.location != location:
        return None
    return record.id if _can_use(ctx, record) else None


def _can_use(ctx: Context, record: TableRecord) -> bool:
    """Return whether the caller has `use` on a table, and no policy of it binds the caller."""
    if is_administrator(ctx):
        return True
    rights = caller_rights(ctx)
    return rights.allow(record, Privilege.USE.value) and rights.effective_policy(record.id) is None


def _principal_of(ctx: Context, job: str) -> str:
    """Return who submitted the job of the catalog that a worker runs; for all else the caller."""
    if is_administrator(ctx):
        with suppress(TransactionNotFoundError):
            return ctx.store.describe_transaction(job).requested_by or ctx.principal.name
    return ctx.principal.name


# Answering


def _authorize_start(ctx: Context, request: models.DescribeLineageRequest) -> Context:
    if request.id is None:
        return ctx
    path = table_id(request.id)
    return ctx.with_resolved({path: authorize_table(ctx, path, Privilege.USE.value)})


SEE_LINEAGE = Needs("`use` on the table; of a URI nothing: the tables on which the caller has `use`", _authorize_start)


@operation(needs=SEE_LINEAGE, changes=False)
def describe_lineage(ctx: Context, request: models.DescribeLineageRequest) -> models.DescribeLineageResponse:
    """Follow lineage from a table (`id`), or from a file or folder (`uri`), for up to `depth` steps.

    `upstream` (the default of a table) has what the version was made from, `downstream` what was made from it; of a
    version, what was made from it and later ones. Tables that the caller cannot see are nodes of the kind `hidden`,
    which have no name and end a path. Raises InvalidInputError, TableNotFoundError, NamespaceNotFoundError,
    TableVersionNotFoundError, TableBranchNotFoundError.
    """
    if (request.id is None) == (request.uri is None):
        raise InvalidInputError("Name a table by its id, or a file or folder by its uri, and not both.")
    default = Direction.UPSTREAM if request.uri is None else Direction.DOWNSTREAM
    direction = parse_mode(Direction, request.direction, default, "direction")
    depth = DEFAULT_DEPTH if request.depth is None else request.depth
    if not 1 <= depth <= MAX_DEPTH:
        raise InvalidInputError(f"depth is {depth}: it is at least 1, and at most {MAX_DEPTH}.")
    if request.uri is not None:
        return _describe_uri(ctx, request, direction, depth)
    path, branch = table_id(request.id), Branch.parse(request.branch)
    _check_exists(ctx, path, branch, request.version)
    graph = _Graph(ctx)
    start = graph.add_table(ctx.find_table(path).id, branch.key, 0)
    graph.follow(start, direction, depth, request.version)
    return graph.response()


def _check_exists(ctx: Context, path: Id, branch: Branch, version: int | None) -> None:
    """Raise TableBranchNotFoundError, or TableVersionNotFoundError for a version that is still to come.

    One that was removed has its lineage. A table is opened only where a branch or a version is named.
    """
    if version is not None:
        check_version_number(version)
    if branch.is_main and version is None:
        return
    latest = int(open_for_reading(ctx, path, branch=branch).dataset.version)
    if version is not None and version > latest:
        raise TableVersionNotFoundError(f"There is no version {version}: the latest one is {latest}.")


def _describe_uri(
    ctx: Context, request: models.DescribeLineageRequest, direction: Direction, depth: int
) -> models.DescribeLineageResponse:
    if direction is not Direction.DOWNSTREAM or request.version is not None or request.branch is not None:
        raise InvalidInputError("Of a uri there is what was made from it: leave direction, version and branch out.")
    uri = strip_credentials(request.uri or "").rstrip("/")
    if not 0 < len(uri) <= MAX_NAME:
        raise InvalidInputError(f"uri has {len(uri)} characters: it has at least one, and at most {MAX_NAME}.")
    graph = _Graph(ctx)
    graph.follow(graph.add_uri(uri, 0), direction, depth, None)
    return graph.response()


@dataclass(frozen=True, slots=True)
class _Start:
    """A node from which lineage is followed: a table's branch, or a file or folder."""

    key: str
    depth: int
    table_id: int | None = None
    branch: str = ""
    uri: str = ""


@dataclass(slots=True)
class _Graph:
    """The nodes and edges of a response, as far as the caller sees them."""

    ctx: Context
    nodes: dict[str, models.LineageNode] = field(default_factory=dict)
    edges: dict[tuple[Any, ...], models.LineageEdge] = field(default_factory=dict)
    is_truncated: bool = False
    _keys: dict[tuple[int, str], str] = field(default_factory=dict)
    _starts: deque[tuple[_Start, int | None]] = field(default_factory=deque)

    def follow(self, start: _Start, direction: Direction, depth: int, version: int | None) -> None:
        """Follow lineage breadth first, at most `depth` steps from the start, up to MAX_NODES nodes."""
        self._starts.append((start, version))
        while self._starts:
            node, at_version = self._starts.popleft()
            if node.depth == depth:
                self.is_truncated = self.is_truncated or bool(self._records(node, direction, None, 1))
            elif direction is Direction.UPSTREAM:
                self._add_sources(node, self._read(node, direction, at_version))
            else:
                self._add_targets(node, self._read(node, direction, at_version), at_version)

    def add_table(self, number: int, branch: str, depth: int) -> _Start:
        """Add the node of a table; return it."""
        key = self._keys.get((number, branch))
        if key is None:
            node = self._describe_table(number, branch, depth)
            key = self._keys[number, branch] = node.key
            self.nodes[key] = node
        return _Start(key, self.nodes[key].depth, number, branch)

    def add_uri(self, uri: str, depth: int) -> _Start:
        """Add the node of a file or folder; return it."""
        key = f"uri:{uri}"
        self.nodes.setdefault(key, models.LineageNode(key=key, kind="uri", uri=uri, depth=depth))
        return _Start(key, self.nodes[key].depth, uri=uri)

    def response(self) -> models.DescribeLineageResponse:
        """Return the response."""
        return models.DescribeLineageResponse(
            nodes=list(self.nodes.values()), edges=list(self.edges.values()), is_truncated=self.is_truncated
        )

    def _describe_table(self, number: int, branch: str, depth: int) -> models.LineageNode:
        try:
            record = self.ctx.store.table_by_id(number)
        except TableNotFoundError:
            return models.LineageNode(key=f"dropped:{len(self.nodes)}", kind="dropped", depth=depth)
        path = self.ctx.store.object_path(TABLE, number)
        if path is None or not _can_use(self.ctx, record):
            return models.LineageNode(key=f"hidden:{len(self.nodes)}", kind="hidden", depth=depth)
        name = Id(path)
        key = f"table:{name}" + (f"@{branch}" if branch else "")
        return models.LineageNode(key=key, kind="table", id=list(name), branch=branch or None, depth=depth)

    def _read(self, node: _Start, direction: Direction, version: int | None) -> Sequence[LineageRecord]:
        records = self._records(node, direction, version, MAX_RECORDS + 1)
        self.is_truncated = self.is_truncated or len(records) > MAX_RECORDS
        return records[:MAX_RECORDS]

    def _records(self, node: _Start, direction: Direction, version: int | None, limit: int) -> Sequence[LineageRecord]:
        store = self.ctx.store
        if node.table_id is None:
            return store.lineage_from_place(node.uri, limit) if direction is Direction.DOWNSTREAM else ()
        if direction is Direction.UPSTREAM:
            return store.lineage_of(node.table_id, node.branch, version, limit)
        return store.lineage_from_table(node.table_id, node.branch, limit)

    def _add_sources(self, node: _Start, records: Sequence[LineageRecord]) -> None:
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
                self._add_edge(found, node, record, source.version)
                if len(self.nodes) > before and self.nodes[found.key].kind == "table":
                    self._starts.append((found, source.version))

    def _add_targets(self, node: _Start, records: Sequence[LineageRecord], version: int | None) -> None:
        for record in records:
            read = _version_read(record, node)
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
            self._add_edge(node, found, record, read)
            if len(self.nodes) > before and self.nodes[found.key].kind == "table":
                self._starts.append((found, None))

    def _add_edge(self, source: _Start, target: _Start, record: LineageRecord, read: int | None) -> None:
        edge = models.LineageEdge(source=source.key, target=target.key)
        if self.nodes[target.key].kind == "table":
            edge.source_version, edge.version = read, record.version
            edge.job_kind, edge.job_id, edge.code = record.kind, record.job, record.code or None
            edge.principal, edge.created_at_millis = record.principal, record.created_at
        self.edges.setdefault((source.key, target.key, record.edge), edge)


def _version_read(record: LineageRecord, node: _Start) -> int | None:
    """Return the version of a table that a commit was made from."""
    for source, number in zip(record.sources, record.source_ids, strict=True):
        if number == node.table_id and source.branch == node.branch:
            return source.version
    return None
