"""Plan a refresh: nothing to do, the rows that were added, or all rows; and the parts in which it is done.

A query of projections, filters, generators and UNION ALL alone distributes over its tables' rows: its result for old
and new rows together is its result for the old ones followed by that for the new ones. So the rows that were added are
enough. Spark's own analyzed plan decides that, in which no name can hide another node.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.model.views.changes import FullRefreshRequiredError, find_added_fragments, find_last_refresh
from tiltyard.model.views.definitions import SourceVersion, ViewDefinition, ViewLineage
from tiltyard.pipeline.sql.checks import analyze_sql, check_analyzed_query, check_parsed_query
from tiltyard.pipeline.sql.spark_plans import TABLE_ROWS, class_name, to_list, walk_expressions, walk_nodes
from tiltyard.pipeline.version_diff import fragments_by_id
from tiltyard.pipeline.views.sources import SourceTable

if TYPE_CHECKING:
    import lance
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_PART = 4_000_000
"""How many rows of the sources are read before the output is checkpointed: the most that a driver's death costs."""

Part = Mapping[str, list[int]]
"""Ids of fragments by the name of their table."""


@dataclass(frozen=True, slots=True)
class RefreshPlan:
    """A refresh of the view at the version `base`, in parts.

    If `incremental`, the rows of the parts are added to those of the view, else they replace them. `attempt` tells the
    plan from earlier plans of the same run, which concurrent writers made obsolete.
    """

    attempt: int
    base: int
    incremental: bool
    reason: str
    sources: Mapping[str, SourceVersion]
    parts: list[Part]
    needed: list[str]

    def to_json(self) -> str:
        """Serialize for the run's checkpoint."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RefreshPlan:
        """Deserialize from a checkpoint."""
        fields = json.loads(text)
        sources = {name: SourceVersion(**origin) for name, origin in fields["sources"].items()}
        return cls(**{**fields, "sources": sources})


@dataclass(frozen=True, slots=True)
class Decision:
    """The fragments to read, by table; all lists are empty if there is nothing to do."""

    fragments: Part
    incremental: bool
    reason: str

    @property
    def is_up_to_date(self) -> bool:
        """Return whether the view needs no change."""
        return self.incremental and not any(self.fragments.values())


@dataclass(frozen=True, slots=True)
class RefreshOptions:
    """What the caller sets: `full` to compute all rows anyway, `limit` for at most so many rows in the view."""

    full: bool
    limit: int | None


def decide(
    view: lance.LanceDataset,
    definition: ViewDefinition,
    sources: Mapping[str, SourceTable],
    options: RefreshOptions,
    why_not_incremental: str,
) -> Decision:
    """Decide what to compute; `why_not_incremental` is why added rows alone are not enough for the query, or ""."""
    all_fragments = {name: source.fragments for name, source in sources.items()}
    last = find_last_refresh(view)
    reason = _full_refresh_reason(view, definition, last, options)
    if reason or isinstance(last, str):
        return Decision(all_fragments, incremental=False, reason=reason)
    try:
        if last.sources.keys() != sources.keys():
            raise FullRefreshRequiredError("the view's source tables are others")
        added = {
            name: find_added_fragments(name, source.location.uri, source.dataset, last.sources.get(name))
            for name, source in sources.items()
        }
    except FullRefreshRequiredError as error:
        return Decision(all_fragments, incremental=False, reason=str(error))
    if not any(added.values()):
        return Decision(added, incremental=True, reason="no rows were added")
    if why_not_incremental:
        return Decision(all_fragments, incremental=False, reason=why_not_incremental)
    return Decision(added, incremental=True, reason="rows were only added")


def _full_refresh_reason(
    view: lance.LanceDataset, definition: ViewDefinition, last: ViewLineage | str, options: RefreshOptions
) -> str:
    """Return why the view itself needs a full refresh; "" if it does not."""
    if isinstance(last, str):
        return last
    if options.full:
        return "a full refresh was requested"
    if last.definition != definition.digest:
        return "the definition has changed"
    rows = view.count_rows() if options.limit is not None or last.cut else 0
    if options.limit is not None and rows > options.limit:
        return "the view has more rows than the output limit"
    if last.cut and rows != options.limit:
        return "the last refresh was cut at its output limit"
    return ""


def split_into_parts(sources: Mapping[str, SourceTable], decision: Decision, *, by_rows: bool) -> list[Part]:
    """Split the fragments into parts of similar size; without `by_rows` a single part, as the query sees all rows."""
    if not by_rows:
        return [decision.fragments]
    parts: list[Part] = []
    for name, numbers in decision.fragments.items():
        fragments = fragments_by_id(sources[name].dataset)
        part: list[int] = []
        rows = 0
        for number in numbers:
            if part and rows + fragments[number].num_rows > ROWS_PER_PART:
                parts.append({name: part})
                part, rows = [], 0
            part.append(number)
            rows += fragments[number].num_rows
        if part:
            parts.append({name: part})
    return parts


_DISTRIBUTIVE_NODES = frozenset(
    {
        "CTERelationDef", "CTERelationRef", "Filter", "Generate", "PipeOperator", "Project", "SubqueryAlias", "Union",
        "View", "WithCTE",
    }
)  # fmt: skip
_TIME_WORD = re.compile(r"\b(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
"""Words that Spark replaces by the current time where they stand in a literal (`DATE 'today'`)."""


def check_reads_only(spark: SparkSession, text: str, tables: Collection[str]) -> None:
    """Raise InvalidInputError unless a query only reads, and only these tables; nothing of it is run.

    Raises UnsupportedOperationError for a session of Spark Connect, which does not show what a query would do.
    """
    check_parsed_query(spark, text, tables)


def analyze_query(spark: SparkSession, text: str) -> DataFrame:
    """Analyze a query over tables that are registered. Raises InvalidInputError for one that Spark cannot analyze."""
    frame = analyze_sql(spark, text)
    check_analyzed_query(frame)
    if len(set(frame.columns)) < len(frame.columns):
        raise InvalidInputError(f"Two columns of the query have one name: {', '.join(frame.columns)}.")
    return frame


def why_not_incremental(frame: DataFrame, text: str) -> str:
    """Return why a query does not work row by row; "" if it does."""
    if word := _TIME_WORD.search(text):
        return f"the query may read the time ('{word[0]}')"
    for node in walk_nodes(frame._jdf.queryExecution().analyzed()):  # PySpark has no other way
        node_kind = class_name(node)
        if node_kind == TABLE_ROWS:
            continue
        if node_kind not in _DISTRIBUTIVE_NODES:
            return f"the query has more than rows one by one ({node_kind})"
        if node.subqueries().size():
            return "the query has a subquery within an expression"
        for expression in walk_expressions(node):
            name = class_name(expression)
            children = to_list(expression.children())
            is_random = not expression.deterministic() and all(child.deterministic() for child in children)
            if is_random or name.startswith(("Current", "Now", "LocalTimestamp")):
                return f"the query's result differs each time ({name})"
    return ""


def needed_columns(frame: DataFrame) -> frozenset[str]:
    """Return the names of the columns that Spark reads, of any table, to run a query."""
    plan = frame._jdf.queryExecution().optimizedPlan()  # PySpark has no other way
    nodes = list(walk_nodes(plan))
    used = {column.exprId().id() for column in to_list(plan.output())}
    for node in nodes:
        if class_name(node) != TABLE_ROWS:
            used |= {column.exprId().id() for column in to_list(node.references().toSeq())}
    columns = (column for node in nodes if class_name(node) == TABLE_ROWS for column in to_list(node.output()))
    return frozenset(column.name() for column in columns if column.exprId().id() in used)
