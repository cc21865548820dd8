"""What a query answers: its first rows, how many there are, what policies leave of its tables; or its plan."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, UnsupportedOperationError

from tiltyard.access.authorization import effective_policy_of
from tiltyard.access.policies import MaskKind, policy_by_names
from tiltyard.calls.caller import schema_query
from tiltyard.console.page_calls import SqlAnswer
from tiltyard.console.table.grid import Grid, read_grid
from tiltyard.console.table.plan_tree import QueryPlan, read_plan
from tiltyard.console.table.schema_tree import Column, read_columns
from tiltyard.model.ids import Id
from tiltyard.model.operations import ArrowAnswer
from tiltyard.model.schemas.arrow_json import to_json
from tiltyard.sql.statements.view_statements import ViewAction, ViewStatement, parse_view_statement

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tiltyard.console.page import PageRequest

MAX_ROWS = 1_000
"""Rows of a result that a page shows."""
MAX_CELLS = 20_000
"""Cells of them: of many columns a page shows fewer rows."""
COUNT_SECONDS = 1.0
"""How long the rows behind those that are shown are counted."""
MAX_RESTRICTIONS = 20
"""Tables whose policies are named."""
PLAN_COLUMNS = ("plan_type", "plan")
_OTHER_PLANS = frozenset("┌{[")
"""How plans begin that are drawn, or are JSON."""
_EXPLAINS = re.compile(r"(?:\s|--[^\n]*+|/\*.*?\*/)*+explain\b", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Restriction:
    """What policies leave of a table: whether not all rows, and which columns are masked."""

    path: Id
    is_filtered: bool
    masked: Sequence[str]


@dataclass(frozen=True, slots=True)
class ShownPlan:
    """A plan that EXPLAIN answers: its steps, or its text where it has another format."""

    name: str
    query: QueryPlan
    text: str


@dataclass(frozen=True, slots=True)
class Result:
    """What a query or a statement answers, and how long it took.

    - `counted`: the rows that there are, at least; `has_all` says that there are no more.
    - `plans`: those that an EXPLAIN answers.
    - `job_id`: the job that a statement has queued.
    """

    grid: Grid
    seconds: float
    counted: int
    has_all: bool
    restrictions: Sequence[Restriction] = ()
    plans: Sequence[ShownPlan] = ()
    job_id: str = ""


def parse_statement_on_view(page: PageRequest, text: str) -> ViewStatement | None:
    """Return the statement on a materialized view that a text is; None for any other text. Raises InvalidInputError."""
    return parse_view_statement(text, Id(), Id(), page.services.settings.sql_max_length)


def run_query(page: PageRequest, text: str) -> Result:
    """Run a query, and show its first rows; or its plan, if it is an EXPLAIN. Raises what running it raises."""
    started = time.monotonic()
    with open_rows(page, text) as answer:
        if tuple(answer.schema.names) == PLAN_COLUMNS:
            return _read_plans(answer, started)
        columns = _columns(answer.schema)
        rows = _Counted(answer.batches)
        shown = ArrowAnswer(answer.schema, rows)
        grid = read_grid(shown, columns, min(MAX_ROWS, max(1, MAX_CELLS // max(1, len(columns)))))
        seconds = time.monotonic() - started
        has_all = not grid.has_more or rows.count_rest(answer)
        return Result(grid, seconds, rows.number, has_all, _restrictions(page, answer.tables))


def explaining(text: str) -> str:
    """Return the statement that explains a query; that of an EXPLAIN is itself."""
    return text if _EXPLAINS.match(text) or not text.strip() else f"EXPLAIN {text}"


def run_statement(page: PageRequest, statement: ViewStatement) -> Result:
    """Call the operation of a statement on a materialized view. A job that it queues goes on by itself.

    Raises what the operation raises.
    """
    started = time.monotonic()
    fields, most = statement.fields, min(MAX_ROWS, MAX_ROWS if statement.limit is None else statement.limit)
    if statement.action is ViewAction.SHOW:
        if not most:
            raise InvalidInputError("LIMIT 0 lists nothing: ask for one at least.")
        fields |= {"page_token": statement.after or None, "limit": most}
    answer = page.calls.call(statement.operation, **fields)
    names = answer.views if statement.action is ViewAction.SHOW else [statement.path.name]
    columns: dict[str, list[Any]] = {"name": list(names)}
    if statement.action is ViewAction.DESCRIBE:
        columns["query"] = [answer.query]
    batch = pa.RecordBatch.from_pydict(columns)
    grid = read_grid(ArrowAnswer(batch.schema, [batch]), _columns(batch.schema), MAX_ROWS)
    has_all = statement.action is not ViewAction.SHOW or not answer.page_token
    job_id = str(answer.job_id) if statement.queues_job else ""
    return Result(grid, time.monotonic() - started, len(names), has_all, job_id=job_id)


@contextmanager
def open_rows(page: PageRequest, text: str) -> Iterator[SqlAnswer]:
    """Run a query in a block; of columns with one name, as a join may have, the later ones get a number.

    Raises what running it raises.
    """
    if not text.strip():
        raise InvalidInputError("There is no query: write one, as SELECT 1.")
    with page.calls.sql(text) as answer:
        names = _unique(answer.schema.names)
        schema = pa.schema([field.with_name(name) for field, name in zip(answer.schema, names, strict=True)])
        batches = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in answer.batches)
        yield SqlAnswer(schema, batches, answer.tables, answer.has_next)


def _columns(schema: pa.Schema) -> list[Column]:
    """Return the columns of a result; of some types, as intervals, there is a result and no table."""
    columns: list[Column] = []
    for field in schema:
        try:
            columns += read_columns(to_json(pa.schema([field])))
        except UnsupportedOperationError:
            (blank,) = read_columns(to_json(pa.schema([field.with_type(pa.null())])))
            columns.append(replace(blank, type=str(field.type), kind="other"))
    return columns


def _unique(names: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    for name in names:
        number, free = 1, name
        while free in found:
            number += 1
            free = f"{name}_{number}"
        found[free] = None
    return list(found)


class _Counted:
    """The batches of a query, whose rows are counted as they are taken."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.number = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches)
        self.number += batch.num_rows
        return batch

    def count_rest(self, answer: SqlAnswer) -> bool:
        """Count the rows that are left, for a while; return whether these are all."""
        deadline = time.monotonic() + COUNT_SECONDS
        while (left := deadline - time.monotonic()) > 0 and answer.has_next(left):
            if next(self, None) is None:
                return True
        return False


def _read_plans(answer: SqlAnswer, started: float) -> Result:
    """Return the plans that an EXPLAIN answers: a row has the name of one, and its steps."""
    table = pa.Table.from_batches(answer.batches, answer.schema)
    plans = [ShownPlan(row["plan_type"].replace("_", " "), *_read_plan(row["plan"])) for row in table.to_pylist()]
    grid = Grid((), (), has_more=False)
    return Result(grid, time.monotonic() - started, len(plans), has_all=True, plans=plans)


def _read_plan(text: str) -> tuple[QueryPlan, str]:
    """Return the steps of a plan; its text where it is drawn, or has another format that was asked for."""
    is_other = text.lstrip()[:1] in _OTHER_PLANS or "digraph" in text[:200]
    return (QueryPlan(), text) if is_other else (read_plan(text), "")


def _restrictions(page: PageRequest, tables: Sequence[Id]) -> list[Restriction]:
    """Return what policies leave the reader of the tables of a query, of those that they restrict."""
    found: list[Restriction] = []
    for path in dict.fromkeys(tables):
        try:
            policy = effective_policy_of(page.calls.ctx, page.calls.ctx.find_table(path))
            if policy is not None and policy.rules:
                policy = policy_by_names(policy, _readable_columns(page, path))
        except LanceNamespaceError:
            continue  # dropped since the query was planned
        if policy is not None and len(found) < MAX_RESTRICTIONS:
            masked = [mask.column for mask in policy.masks.values() if mask.kind is not MaskKind.HIDE]
            found.append(Restriction(path, policy.filter is not None, masked))
    return found


def _readable_columns(page: PageRequest, path: Id) -> list[str]:
    """Return the columns of a table that its reader may read. Raises what reading it raises."""
    with page.calls.rows(**schema_query(path)) as answer:
        return list(answer.schema.names)
