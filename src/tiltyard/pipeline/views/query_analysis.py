"""Analyze a view's query: that it only reads, which columns it reads, and how its rows depend on those of its tables.

Spark's own analyzed plan decides, in which no name can hide another node.

A query of projections, filters, generators and UNION ALL alone works row by row: its result for old and new rows
together is its result for the old ones followed by that for the new ones. A join is so for the rows of one table while
the others are unchanged, if each of its rows takes part in rows of the result of its own. In a query that groups such
rows, a group depends on the rows with its values alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline.spark_sql.checks import analyze_sql, check_analyzed_query, check_parsed_query
from tiltyard.pipeline.spark_sql.spark_plans import TABLE_ROWS, class_name, to_list, walk_expressions, walk_nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TRANSPARENT_NODES = frozenset({"Filter", "Generate", "PipeOperator", "Project", "ResolvedHint", "SubqueryAlias"})
_ROW_BY_ROW_NODES = frozenset(
    {
        "CTERelationDef", "CTERelationRef", "Filter", "Generate", "PipeOperator", "Project", "SubqueryAlias", "Union",
        "View", "WithCTE",
    }
)  # fmt: skip
_GROUPING_NODES = frozenset({"Aggregate", "Distinct"})
_PRESERVED_SIDES = {
    "Inner": (True, True), "Cross": (True, True), "LeftOuter": (True, False), "RightOuter": (False, True),
    "LeftSemi": (True, False), "LeftAnti": (True, False),
}  # fmt: skip
"""Of each type of join: whether a row of the left and of the right side is in rows of the result of its own."""
_TIME_WORD = re.compile(r"\b(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
"""Words that Spark replaces by the current time where they stand in a literal (`DATE 'today'`)."""


@dataclass(frozen=True, slots=True)
class QueryShape:
    """How the rows of a query depend on those of its tables.

    `why_all_rows` is why it does not work row by row, "" if it does. While the other tables are unchanged, added rows
    of a `linear` table add rows, and removed ones remove them. `keys` has tables whose rows the query groups: columns
    that it groups by and returns, with their names in the result.
    """

    why_all_rows: str
    linear: frozenset[str] = frozenset()
    keys: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class _Dependency(StrEnum):
    """How the rows of a part of a query depend on those of one table."""

    NONE = "none"
    LINEAR = "linear"
    GROUPED = "grouped"
    OTHER = "other"


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


def query_shape(frame: DataFrame, text: str) -> QueryShape:
    """Return how the rows of an analyzed query depend on those of its tables."""
    if word := _TIME_WORD.search(text):
        return QueryShape(f"the query may read the time ('{word[0]}')")
    plan = frame._jdf.queryExecution().analyzed()  # PySpark has no other way
    nodes = [node for node in walk_nodes(plan) if class_name(node) != TABLE_ROWS]
    why_all_rows = ""
    for node in nodes:
        name = class_name(node)
        why_never = _why_never(node)
        if name not in _ROW_BY_ROW_NODES:
            why_all_rows = why_all_rows or f"the query has more than rows one by one ({name})"
        if why_never:
            return QueryShape(why_all_rows or why_never)
    tables = {_table_name(node) for node in nodes if class_name(node) == "View"}
    dependencies = {table: _dependency(plan, table, {}) for table in tables}
    linear = frozenset(table for table, dependency in dependencies.items() if dependency is _Dependency.LINEAR)
    grouped = (table for table, dependency in dependencies.items() if dependency is _Dependency.GROUPED)
    return QueryShape(why_all_rows, linear, {table: _group_keys(plan, nodes, table) for table in grouped})


def _why_never(node: Any) -> str:
    """Return why the rows of a node can be computed all together alone; "" where nothing in the node says so."""
    if node.subqueries().size():
        return "the query has a subquery within an expression"
    for expression in walk_expressions(node):
        name = class_name(expression)
        children = to_list(expression.children())
        is_random = not expression.deterministic() and all(child.deterministic() for child in children)
        if is_random or name.startswith(("Current", "Now", "LocalTimestamp")):
            return f"the query's result differs each time ({name})"
    return ""


def _table_name(view: Any) -> str:
    """Return the name of a table that is registered as a view of Spark's."""
    return str(view.desc().identifier().table())


def _dependency(node: Any, table: str, definitions: dict[int, Any]) -> _Dependency:
    """Return how the rows of a node depend on those of a table. `definitions` are the queries of WITH, by id."""
    name = class_name(node)
    if name == "View":
        return _Dependency.LINEAR if _table_name(node) == table else _Dependency.NONE
    if name == "CTERelationRef":
        return _dependency(definitions[node.cteId()], table, definitions)
    if name == "WithCTE":
        definitions.update({definition.id(): definition.child() for definition in to_list(node.cteDefs())})
        return _dependency(node.plan(), table, definitions)
    children = [_dependency(child, table, definitions) for child in to_list(node.children())]
    if name in _TRANSPARENT_NODES:
        return children[0]
    if name == "Join":
        return _join_dependency(str(node.joinType().toString()), *children)
    if name == "Union":
        is_alike = len(set(children)) == 1 and children[0] is not _Dependency.GROUPED
        return children[0] if is_alike else _Dependency.OTHER
    if name in _GROUPING_NODES and children == [_Dependency.LINEAR]:
        return _Dependency.GROUPED
    if name == "Distinct":
        return _constant(children)
    # An aggregate of unchanged rows may still differ: in the order of a sum of floats, in `first(x)`.
    return _Dependency.OTHER


def _join_dependency(join: str, left: _Dependency, right: _Dependency) -> _Dependency:
    sides = _PRESERVED_SIDES.get(join, (False, False))
    if right is _Dependency.NONE and left is not _Dependency.NONE:
        return left if sides[0] else _Dependency.OTHER
    if left is _Dependency.NONE and right is not _Dependency.NONE:
        return right if sides[1] else _Dependency.OTHER
    return _constant([left, right])


def _constant(children: Collection[_Dependency]) -> _Dependency:
    """Return the dependency of a node whose rows do not depend on the table if none of its children's do."""
    return _Dependency.NONE if set(children) == {_Dependency.NONE} else _Dependency.OTHER


def _group_keys(plan: Any, nodes: Collection[Any], table: str) -> dict[str, str]:
    """Return the columns of a table that a query groups by and returns, as they are, with their names in the result."""
    columns = {
        column.exprId().id(): str(column.name())
        for node in nodes
        if class_name(node) == "View" and _table_name(node) == table
        for column in to_list(node.output())
    }
    if any(class_name(node) == "Union" for node in nodes):
        return {}  # its columns have the ids of those of its first query, and values of the others, too
    origins = _origins(nodes)
    keys = (
        key
        for node in nodes
        if class_name(node) in _GROUPING_NODES
        for key in to_list(node.output() if class_name(node) == "Distinct" else node.groupingExpressions())
    )
    grouped = {number for key in keys if (number := _origin(key, origins)) in columns}
    results = ((_origin(column, origins), str(column.name())) for column in to_list(plan.output()))
    return {columns[number]: name for number, name in results if number is not None and number in grouped}


def _origins(nodes: Collection[Any]) -> dict[int, int]:
    """Return for each column that is only another one's new name the id of that one."""
    aliases = (
        expression for node in nodes for expression in to_list(node.expressions()) if class_name(expression) == "Alias"
    )
    return {
        alias.exprId().id(): alias.child().exprId().id()
        for alias in aliases
        if class_name(alias.child()) == "AttributeReference"
    }


def _origin(expression: Any, origins: Mapping[int, int]) -> int | None:
    """Return the id of the column that a column is; None for an expression that computes something."""
    if class_name(expression) != "AttributeReference":
        return None
    number = expression.exprId().id()
    while number in origins:
        number = origins[number]
    return int(number)
