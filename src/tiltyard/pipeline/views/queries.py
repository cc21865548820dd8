"""A view's query, as Spark understands it: whether it only reads, and whether it works row by row.

A query that is made of projections, filters, generators and UNION ALL alone distributes over its tables' rows: its
answer for old and new rows together is that for the old ones with that for the new ones behind it. Then new rows are
enough. Spark's own analysed plan decides it, so a name that hides something else is no way round.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.pipeline.session import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RELATION = "UnresolvedRelation"
_READING = frozenset(
    {
        _RELATION, "Aggregate", "AsOfJoin", "Distinct", "Except", "Filter", "Generate", "GlobalLimit", "Intersect",
        "Join", "LateralJoin", "LocalLimit", "LocalRelation", "Offset", "OneRowRelation", "Pivot", "PipeOperator",
        "Project", "Repartition", "RepartitionByExpression", "Sample", "Sort", "SubqueryAlias", "Union", "Unpivot",
        "UnresolvedHaving", "UnresolvedHint", "UnresolvedInlineTable", "UnresolvedSubqueryColumnAliases",
        "UnresolvedWith", "WithWindowDefinition",
    }
)  # fmt: skip
"""The nodes of a parsed query that do nothing but read. Scripts, files, functions that make tables are none of them."""

_FORBIDDEN = frozenset(
    {"java_method", "reflect", "try_reflect", "from_avro", "to_avro", "from_protobuf", "to_protobuf"}
)
"""Functions that call methods of the JVM, or read files of the driver."""

_ROWS = "MapInArrow"
"""The node that is a table's rows, as `showing` makes it."""

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
    if is_connect(spark):
        raise UnsupportedOperationError("Views need a session of the driver's own: Spark Connect tells no plans.")
    plan = _parsed(spark, text)
    named = {name.lower() for node in _all_nodes(plan) if _kind(node) == "UnresolvedWith" for name in _cte_names(node)}
    for node in _all_nodes(plan):
        kind = _kind(node)
        if kind not in _READING:
            raise InvalidInputError(f"A view's query reads tables and does nothing else: Spark takes this for {kind}.")
        if kind == _RELATION:
            parts = _sequence(node.multipartIdentifier())
            if len(parts) != 1 or (parts[0] not in tables and parts[0].lower() not in named):
                raise InvalidInputError(f"The query reads {'.'.join(parts)}, which is no table that it names plainly.")
        for expression in _expressions(node):
            _check_function(expression)


def planned(spark: SparkSession, text: str) -> DataFrame:
    """A query over tables that are shown. Raises InvalidInputError for one that Spark does not understand."""
    from pyspark.errors import AnalysisException, ParseException  # noqa: PLC0415  # an extra

    try:
        frame = spark.sql(text)
    except (AnalysisException, ParseException) as error:
        raise InvalidInputError(f"Spark cannot plan the view's query: {str(error).split(chr(10))[0]}") from error
    if len(set(frame.columns)) < len(frame.columns):
        raise InvalidInputError(f"Two columns of the query have one name: {', '.join(frame.columns)}.")
    return frame


def why_not_by_rows(frame: DataFrame, text: str) -> str:
    """Why a query does not work row by row; "" if it does. Raises InvalidInputError for what calls methods."""
    if found := _TIME.search(text):
        return f"the query may ask for the time ('{found[0]}')"
    for node in _upper_nodes(frame._jdf.queryExecution().analyzed()):  # PySpark has no other way
        kind = _kind(node)
        if kind == _ROWS:
            continue
        if kind not in _BY_ROWS:
            return f"the query has more than rows one by one ({kind})"
        if node.subqueries().size():
            return "the query has a subquery within an expression"
        for expression in _expressions(node):
            name = _kind(expression)
            if "Reflect" in name:
                raise InvalidInputError("A view's query calls no methods.")
            below = _sequence(expression.children())
            varies = not expression.deterministic() and all(child.deterministic() for child in below)
            if varies or name.startswith(("Current", "Now", "LocalTimestamp")):
                return f"the query's answer is another each time ({name})"
    return ""


def needed_columns(frame: DataFrame) -> frozenset[str]:
    """The names of the columns that Spark reads of any table to answer a query."""
    plan = frame._jdf.queryExecution().optimizedPlan()  # PySpark has no other way
    nodes = list(_upper_nodes(plan))
    used = {one.exprId().id() for one in _sequence(plan.output())}
    for node in nodes:
        if _kind(node) != _ROWS:
            used |= {one.exprId().id() for one in _sequence(node.references().toSeq())}
    rows = (column for node in nodes if _kind(node) == _ROWS for column in _sequence(node.output()))
    return frozenset(column.name() for column in rows if column.exprId().id() in used)


def _parsed(spark: SparkSession, text: str) -> Any:
    from pyspark.errors import ParseException  # noqa: PLC0415  # an extra

    try:
        return spark._jsparkSession.sessionState().sqlParser().parsePlan(text)  # the same
    except ParseException as error:
        raise InvalidInputError(
            f"Spark cannot read the view's query: {str(error).strip().split(chr(10))[0]}"
        ) from error


def _check_function(expression: Any) -> None:
    kind = _kind(expression)
    if "UnresolvedIdentifier" in kind:
        raise InvalidInputError("A view's query names functions plainly, not by IDENTIFIER.")
    if kind == "UnresolvedFunction":
        parts = _sequence(expression.nameParts())
        if len(parts) != 1 or parts[0].lower() in _FORBIDDEN:
            raise InvalidInputError(f"A view's query may not call {'.'.join(parts)}.")


def _cte_names(node: Any) -> list[str]:
    return [str(pair.productElement(0)) for pair in _sequence(node.cteRelations())]


def _all_nodes(node: Any) -> Iterator[Any]:
    """A parsed plan's nodes, those within expressions and WITH among them."""
    yield node
    within = _sequence(node.cteRelations()) if _kind(node) == "UnresolvedWith" else []
    below = [pair.productElement(1) for pair in within]
    for child in (*_sequence(node.children()), *below, *_sequence(node.subqueries())):
        yield from _all_nodes(child)


def _upper_nodes(node: Any) -> Iterator[Any]:
    """A plan's nodes down to the rows of tables, those of subqueries among them."""
    yield node
    if _kind(node) != _ROWS:
        for child in (*_sequence(node.children()), *_sequence(node.subqueries())):
            yield from _upper_nodes(child)


def _expressions(node: Any) -> Iterator[Any]:
    waiting = _sequence(node.expressions())
    while waiting:
        found = waiting.pop()
        yield found
        waiting += _sequence(found.children())


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _sequence(found: Any) -> list[Any]:
    """A sequence of Scala's."""
    return [found.apply(number) for number in range(found.size())]
