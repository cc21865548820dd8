"""A view's query, as Spark understands it: whether it only reads, and whether it works row by row.

A query that is made of projections, filters, generators and UNION ALL alone distributes over its tables' rows: its
answer for old and new rows together is that for the old ones with that for the new ones behind it. Then new rows are
enough. Spark's own analysed plan decides it, so a name that hides something else is no way round.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.pipeline.sql.checks import analysed, check_analysed, check_parsed
from tiltyard.pipeline.sql.spark_plans import ROWS, expressions, kind, sequence, upper_nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BY_ROWS = frozenset(
    {
        "CTERelationDef", "CTERelationRef", "Filter", "Generate", "PipeOperator", "Project", "SubqueryAlias", "Union",
        "View", "WithCTE",
    }
)  # fmt: skip
_TIME = re.compile(r"\b(now|today|tomorrow|yesterday)\b", re.IGNORECASE)
"""Words that Spark replaces by the time it is when they stand in a literal (`DATE 'today'`)."""


def check_reads_only(spark: SparkSession, text: str, tables: Collection[str]) -> None:
    """Raise InvalidInputError unless a query only reads, and only these tables; nothing of it is run.

    Raises UnsupportedOperationError for a session of Spark Connect, which does not tell what a query would do.
    """
    check_parsed(spark, text, tables)


def planned(spark: SparkSession, text: str) -> DataFrame:
    """A query over tables that are shown. Raises InvalidInputError for one that Spark does not understand."""
    frame = analysed(spark, text)
    check_analysed(frame)
    if len(set(frame.columns)) < len(frame.columns):
        raise InvalidInputError(f"Two columns of the query have one name: {', '.join(frame.columns)}.")
    return frame


def why_not_by_rows(frame: DataFrame, text: str) -> str:
    """Why a query does not work row by row; "" if it does."""
    if word := _TIME.search(text):
        return f"the query may ask for the time ('{word[0]}')"
    for node in upper_nodes(frame._jdf.queryExecution().analyzed()):  # PySpark has no other way
        found = kind(node)
        if found == ROWS:
            continue
        if found not in _BY_ROWS:
            return f"the query has more than rows one by one ({found})"
        if node.subqueries().size():
            return "the query has a subquery within an expression"
        for expression in expressions(node):
            name = kind(expression)
            below = sequence(expression.children())
            varies = not expression.deterministic() and all(child.deterministic() for child in below)
            if varies or name.startswith(("Current", "Now", "LocalTimestamp")):
                return f"the query's answer is another each time ({name})"
    return ""


def needed_columns(frame: DataFrame) -> frozenset[str]:
    """The names of the columns that Spark reads of any table to answer a query."""
    plan = frame._jdf.queryExecution().optimizedPlan()  # PySpark has no other way
    nodes = list(upper_nodes(plan))
    used = {one.exprId().id() for one in sequence(plan.output())}
    for node in nodes:
        if kind(node) != ROWS:
            used |= {one.exprId().id() for one in sequence(node.references().toSeq())}
    rows = (column for node in nodes if kind(node) == ROWS for column in sequence(node.output()))
    return frozenset(column.name() for column in rows if column.exprId().id() in used)
