"""Analyze a view's query with Spark: whether it only reads, and whether a refresh can be incremental.

A query of projections, filters, generators and UNION ALL alone distributes over its tables' rows: its result for old
and new rows together is its result for the old ones followed by that for the new ones. So the rows that were added are
enough. Spark's own analyzed plan decides that, in which no name can hide another node.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline.sql.checks import analyze_sql, check_analyzed_query, check_parsed_query
from tiltyard.pipeline.sql.spark_plans import TABLE_ROWS, class_name, to_list, walk_expressions, walk_nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
