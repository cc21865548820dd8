"""What has to be made again if a table or a file was wrong, in order: by jobs, or by a person, with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from lance_namespace.errors import InvalidInputError, PermissionDeniedError, TransactionNotFoundError

from tiltyard.lake.lineage import Lineage, LineageEdge, LineageNode
from tiltyard.lake.tables.table import Table
from tiltyard.model.columns.computed_columns import ExpressionDeclaration, read_declaration
from tiltyard.model.ids import Id
from tiltyard.model.text.typed_ids import is_server_address, parse_typed_id
from tiltyard.model.views.definitions import ViewDefinition, ViewKind

if TYPE_CHECKING:
    import pyarrow as pa

    from tiltyard.lake.session import LakeSession

Action = Literal["refresh", "backfill", "repeat", "by hand"]
Status = Literal["planned", "running", "done", "failed"]

_BY_HAND = {
    "import": "its file was sent from elsewhere: send it again (`tiltyard import … --overwrite`)",
    "write": "a program of Spark wrote it: run that again",
    "stream": "a stream wrote it, which does not read again what it has read: delete its rows, and begin one anew",
    "clone": "it is a clone: drop it, and clone its source again",
    "training_set": "it is a training set, which stays as it is: make a new one",
    "copy": "it is a copy: drop it, and copy its source again",
}
_NOT_RECORDED = "its job is no job of the catalog: run again the program that wrote it"
_PIPELINE = "pipeline"
_FILLING = ("backfill", "deduplicate")
"""Jobs that fill columns of a table from others of it."""


class RebuildStep(msgspec.Struct):
    """Something to do for `table`: refresh it fully, backfill a `column`, repeat a `job`, or what a person does.

    `detail` says what is done, or why it takes a person. It begins when all steps of the tables `after` are done;
    `run` is the id of what does it, or did.
    """

    table: str
    action: Action
    detail: str
    column: str = ""
    job: str = ""
    after: tuple[str, ...] = ()
    status: Status = "planned"
    run: str = ""

    @property
    def is_by_hand(self) -> bool:
        """Whether it takes a person."""
        return self.action == "by hand"


def plan_steps(lake: LakeSession, found: Lineage) -> list[RebuildStep]:
    """Return the steps for all that was made from the first node of lineage downstream, each once, in order.

    Raises what describing the tables raises.
    """
    planner = _Planner(lake, found, lake.calls.call("WhoAmI")["principal"])
    return list(planner.steps())


@dataclass(frozen=True, slots=True)
class _Planner:
    lake: LakeSession
    found: Lineage
    principal: str

    def steps(self) -> Iterator[RebuildStep]:
        """Yield the steps."""
        start = self.found.nodes[0]
        repeated: set[str] = set()
        if start.kind == "table" and start.branch is None:
            yield from self._columns(start, self._schema(start))
        for node, in_circle in order_nodes(self.found):
            made = [edge for edge in self.found.edges if edge.target is node and edge.source is not node]
            after = tuple(dict.fromkeys(edge.source.name for edge in made if edge.source.kind == "table"))
            if in_circle:
                why = "it is made from itself, by way of other tables: begin where it was right"
                yield RebuildStep(node.name, "by hand", why, after=after)
            elif node.branch is not None:
                yield RebuildStep(node.name, "by hand", f"it is the branch {node.branch}: make that again", after=after)
            else:
                yield from self._table(node, made, after, repeated)
        hidden = sum(node.kind == "hidden" for node in self.found.nodes)
        if hidden:
            yield RebuildStep("", "by hand", f"{hidden} tables that you cannot see were made from these: tell who can")

    def _table(
        self, node: LineageNode, made: Sequence[LineageEdge], after: tuple[str, ...], repeated: set[str]
    ) -> Iterator[RebuildStep]:
        schema = self._schema(node)
        view = ViewDefinition.from_metadata(schema.metadata)
        if view is not None:
            yield self._refresh(node.name, view, after)
        else:
            computed = [field.name for field in schema if read_declaration(field.metadata) is not None]
            in_turn = sorted(made, key=lambda edge: edge.version or 0)  # as they came after one another
            for edge in {(edge.job_kind, edge.job_id): edge for edge in in_turn}.values():
                step = self._repeat(node, edge, after, computed)
                if step.job and step.job in repeated:
                    continue  # of a pipeline, which makes several tables
                repeated.add(step.job)
                yield step
        for step in self._columns(node, schema):
            if view is None or not step.detail.startswith("SQL"):  # the refresh of a view computes its SQL
                step.after = after
                yield step

    def _schema(self, node: LineageNode) -> pa.Schema:
        return self._open(node).dataset().schema

    def _open(self, node: LineageNode) -> Table:
        return Table(self.lake, tuple(parse_typed_id(node.name)))

    def _refresh(self, name: str, view: ViewDefinition, after: tuple[str, ...]) -> RebuildStep:
        if view.kind is ViewKind.SELECT and not is_server_address(self.lake.location):
            return RebuildStep(name, "by hand", "a server's worker refreshes this view: start a server", after=after)
        detail = "compute all its rows"
        if view.kind not in (ViewKind.QUERY, ViewKind.SELECT):
            detail = f"{detail}, by the code that is stored with the view"
        return RebuildStep(name, "refresh", detail, after=after)

    def _repeat(
        self, node: LineageNode, edge: LineageEdge, after: tuple[str, ...], computed: Sequence[str]
    ) -> RebuildStep:
        """Return the step for a job that wrote a table, which has the computed columns `computed` now."""
        kind = edge.job_kind or ""

        def by_hand(why: str) -> RebuildStep:
            return RebuildStep(node.name, "by hand", why, after=after)

        if kind in _BY_HAND:
            return by_hand(_BY_HAND[kind])
        job = self._describe_job(edge.job_id)
        if job is None or job["name"] not in ("ingest", "upsert", _PIPELINE):
            return by_hand(_NOT_RECORDED)
        if job.get("asked_by") != self.principal:
            return by_hand(f"its {kind} {edge.job_id} was asked for by {edge.principal}, who has to repeat it")
        arguments = job["arguments"]
        if why := _why_not_repeated(job["name"], arguments):
            return by_hand(why)
        if computed and job["name"] != "upsert":
            return by_hand(
                f"its {kind} overwrites it, without the computed column {computed[0]}: add that again after it"
            )
        source = "" if job["name"] == _PIPELINE else f" of {arguments.get('source')}"
        kept = "; rows that are no longer in it stay" if job["name"] == "upsert" else "; all its rows are replaced"
        return RebuildStep(node.name, "repeat", f"{kind}{source}{kept}", job=edge.job_id or "", after=after)

    def _columns(self, node: LineageNode, schema: pa.Schema) -> Iterator[RebuildStep]:
        """Yield the backfills of a table: of columns that are declared, and those that a job filled."""
        declared = {field.name: found for field in schema if (found := read_declaration(field.metadata)) is not None}
        for name, declaration in declared.items():
            is_sql = isinstance(declaration, ExpressionDeclaration)
            detail = "SQL" if is_sql else "the function that is stored with the column"
            yield RebuildStep(node.name, "backfill", f"{detail}, for values that are stale or missing", name)
        own = [edge for edge in self.found.edges if edge.target is edge.source is node and edge.job_kind in _FILLING]
        for edge in own:
            job = self._describe_job(edge.job_id)
            arguments = {} if job is None else job["arguments"]
            column = str(arguments.get("column") or arguments.get("into") or "")
            if column in declared or column not in (*schema.names, ""):
                continue
            if job is None or job["name"] not in _FILLING or job.get("asked_by") != self.principal:
                why = f"{edge.principal} filled a column by a function that is not stored with it: repeat that"
                yield RebuildStep(node.name, "by hand", why, column)
            else:
                detail = f"{job['name']}, as it was"
                yield RebuildStep(node.name, "repeat", detail, column, edge.job_id or "")

    def _describe_job(self, job_id: str | None) -> Mapping[str, Any] | None:
        """Return a job of the catalog; None for what is none, or not to be seen."""
        if not job_id:
            return None
        try:
            job: Mapping[str, Any] = self.lake.calls.call("DescribeJob", id=[job_id])["job"]
        except (TransactionNotFoundError, PermissionDeniedError, InvalidInputError):
            return None
        return job


def _why_not_repeated(name: str, arguments: Mapping[str, Any]) -> str:
    """Return why a job cannot be repeated, "" if it can: then it leaves no row twice, and none that is wrong."""
    if name == "upsert":
        return ""
    if name == _PIPELINE:
        tables = msgspec.json.decode(arguments["plan"], type=dict[str, Any])["tables"].values()
        modes = {table.get("mode") or "create" for table in tables}
        return "" if modes == {"overwrite"} else "its pipeline does not overwrite all its tables: run it as they need"
    mode = arguments.get("mode") or "create"
    if mode == "append":
        return "its ingest appended rows, and would add them once more: delete them, then ingest again"
    if mode == "create":
        return "its ingest created it: ingest with mode overwrite, which replaces all rows, also those added since"
    return ""


def order_nodes(found: Lineage) -> Iterator[tuple[LineageNode, bool]]:
    """Yield the tables after the first node in the order in which to make them again, and whether they are in a circle.

    Each comes once, after all that it is made from, but for circles.
    """
    start = found.nodes[0]
    edges = [edge for edge in found.edges if edge.source is not edge.target]
    sources: dict[LineageNode, set[LineageNode]] = {node: set() for node in found.nodes if node.kind == "table"}
    for edge in edges:
        if edge.target in sources and edge.source in sources:
            sources[edge.target].add(edge.source)
    if sources.get(start):
        yield start, True
    done = {start}
    left = [node for node in found.nodes if node in sources and node is not start]
    while left:
        ready = [node for node in left if sources[node] <= done]
        if ready:
            circle = False
        else:  # the nearest of those that can be reached from themselves, with all that are in its circle
            first = next(node for node in left if node in _reached(node, sources))
            around = _reached(first, sources)
            ready, circle = [node for node in left if node in around and first in _reached(node, sources)], True
        for node in ready:
            yield node, circle
        done.update(ready)
        left = [node for node in left if node not in done]


def _reached(node: LineageNode, sources: Mapping[LineageNode, set[LineageNode]]) -> set[LineageNode]:
    """Return all that a node is made from, in any number of steps."""
    reached: set[LineageNode] = set()
    stack = [*sources[node]]
    while stack:
        each = stack.pop()
        if each not in reached:
            reached.add(each)
            stack += sources.get(each, ())
    return reached


def to_table_argument(name: str) -> str:
    """Return a table's id as arguments of jobs have it (`shop$orders`)."""
    return str(Id(parse_typed_id(name)))
