"""Check that users' SQL only reads, only its own tables, with allowed functions, and within the size limits.

It is checked twice: as parsed, before Spark looks anything up or evaluates anything, and as analyzed by Spark, where
names are resolved. Everything that is not on a list (`allow_list`) is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.model.views.definitions import check_query_text
from tiltyard.pipeline.session import is_connect
from tiltyard.pipeline.spark_sql.allow_list import (
    ALLOWED_NAMES,
    ANALYZED_EXPRESSIONS,
    ANALYZED_NODES,
    PARSED_EXPRESSIONS,
    PARSED_NODES,
    REFUSED_REASONS,
)
from tiltyard.pipeline.spark_sql.size_limits import check_groupings, check_value_count, count_values
from tiltyard.pipeline.spark_sql.spark_plans import class_name, to_list, walk_expressions, walk_nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MAX_EXPRESSIONS = 10_000
"""Maximum number of expressions of a query: checking each takes about a millisecond."""
MAX_TABLE_READS = 64
"""Maximum number of table reads of a query with its WITH clauses expanded: each may double those before it."""

_HINTS = frozenset(
    {
        "broadcast", "broadcastjoin", "mapjoin", "merge", "mergejoin", "shuffle_hash", "shuffle_merge",
        "shuffle_replicate_nl",
    }
)  # fmt: skip
_POSITION = re.compile(r"line (\d+),? pos(?:ition)? (\d+)")
_MAX_FRAGMENT_LENGTH = 100


@dataclass(frozen=True, slots=True)
class _QuerySize:
    """The size of a part of a query: reads of tables, and values that it may produce for one row."""

    reads: int = 0
    values: int = 1


class _PlanChecker:
    """Checks a parsed query node by node; `tables` are those that it may read."""

    def __init__(self, tables: Collection[str]) -> None:
        self._tables = frozenset(tables)
        self._expressions = 0

    def visit(self, node: Any, named: Mapping[str, _QuerySize]) -> _QuerySize:
        """Check a node and its descendants; return their size. `named` are the queries of WITH so far."""
        node_class = class_name(node)
        if node_class not in PARSED_NODES:
            raise InvalidInputError(f"A query reads tables and does nothing else: Spark takes this for {node_class}.")
        if node_class == "UnresolvedRelation":
            return self._visit_relation(node, named)
        if node_class == "UnresolvedWith":
            named = self._visit_with(node, named)
        if node_class == "UnresolvedHint" and str(node.name()).lower() not in _HINTS:
            raise InvalidInputError(f"A query has no hint {node.name()}: leave it out, it does not change the rows.")
        values = self._count_node_values(node)
        children = [self.visit(child, named) for child in (*to_list(node.children()), *to_list(node.subqueries()))]
        size = _QuerySize(
            sum(child_size.reads for child_size in children),
            values * math.prod(child_size.values for child_size in children),
        )
        if size.reads > MAX_TABLE_READS:
            raise InvalidInputError(
                f"The query reads its tables more than {MAX_TABLE_READS} times, counted through WITH."
            )
        check_value_count(size.values)
        return size

    def _visit_relation(self, node: Any, named: Mapping[str, _QuerySize]) -> _QuerySize:
        parts = to_list(node.multipartIdentifier())
        if node.options().size() or node.isStreaming():
            raise InvalidInputError("A query reads its tables as they are: without options, and not as streams.")
        if len(parts) == 1 and parts[0].lower() in named:
            return named[parts[0].lower()]
        if len(parts) != 1 or parts[0] not in self._tables:
            raise InvalidInputError(f"The query reads {'.'.join(parts)}, which is no table that it names plainly.")
        return _QuerySize(reads=1)

    def _visit_with(self, node: Any, named: Mapping[str, _QuerySize]) -> Mapping[str, _QuerySize]:
        if node.allowRecursion():
            raise InvalidInputError("A query has no WITH RECURSIVE: nothing bounds what it makes.")
        for pair in to_list(node.cteRelations()):
            named = {**named, str(pair.productElement(0)).lower(): self.visit(pair.productElement(1), named)}
        return named

    def _count_node_values(self, node: Any) -> int:
        """Check the expressions of a node; return how many values they produce."""
        node_expressions = list(walk_expressions(node))
        self._expressions += len(node_expressions)
        if self._expressions > MAX_EXPRESSIONS:
            raise InvalidInputError(f"A query has at most {MAX_EXPRESSIONS:,} expressions: make it of several views.")
        is_values = class_name(node) == "UnresolvedInlineTable"
        for expression in node_expressions:
            _check_expression(expression)
            if is_values and class_name(expression) == "LambdaFunction":
                raise InvalidInputError("A query's VALUES hold no lambdas: Spark evaluates them while it plans.")
        if class_name(node) == "Aggregate":
            check_groupings(node_expressions)
        counts = [count_values(expression) for expression in to_list(node.expressions())]
        # Spark evaluates VALUES while it plans and holds all of them at once, in the driver.
        return max(
            sum(expression for expression in counts if expression > 1) if is_values else max(counts, default=1), 1
        )


def check_parsed_query(spark: SparkSession, text: str, tables: Collection[str]) -> None:
    """Raise InvalidInputError unless a query only reads, and only these tables; nothing of it is executed.

    Raises UnsupportedOperationError for a session of Spark Connect, which does not expose plans.
    """
    check_query_text(text)
    if is_connect(spark):
        raise UnsupportedOperationError(
            "SQL is checked in a session of the driver's own: Spark Connect tells no plans."
        )
    try:
        _PlanChecker(tables).visit(_parse_plan(spark, text), {})
    except RecursionError as error:
        raise InvalidInputError("The query is nested too deeply: make it of several views.") from error


def check_analyzed_query(frame: DataFrame) -> None:
    """Raise InvalidInputError unless all nodes and expressions of the analyzed query are allowed."""
    for node in walk_nodes(frame._jdf.queryExecution().analyzed()):  # PySpark has no other way
        node_class = class_name(node)
        if node_class not in ANALYZED_NODES:
            raise InvalidInputError(f"A query reads tables and does nothing else: Spark takes this for {node_class}.")
        if node_class == "MapInArrow":
            continue
        for expression in walk_expressions(node):
            if class_name(expression) not in ANALYZED_EXPRESSIONS:
                raise InvalidInputError(f"A query may not use {class_name(expression)}, which Spark has made of it.")


def analyze_sql(spark: SparkSession, text: str) -> DataFrame:
    """Let Spark analyze a checked query. Raises InvalidInputError for one that it does not understand."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415  # no types; an extra
    from pyspark.errors import PySparkException  # noqa: PLC0415  # the same

    try:
        return spark.sql(text)
    except PySparkException as error:
        raise InvalidInputError(f"Spark cannot plan the query: {describe_error(error)}") from error
    except Py4JJavaError as error:
        raise InvalidInputError("Spark cannot plan the query: it fails where it looks at it.") from error


def describe_error(error: Any) -> str:
    """Describe Spark's error for a query, without the error's own text, which may hold evaluated values.

    The description has the name of the error, if any, and the part of the query that it is about.
    """
    name = error.getCondition() or "it does not understand it"
    contexts = error.getQueryContext() or []
    fragment = next((str(context.fragment()) for context in contexts if context.fragment()), "")
    position = _POSITION.search(str(error))
    position_text = f" in line {position[1]}, position {position[2]}" if position else ""
    fragment_text = f" at '{fragment[:_MAX_FRAGMENT_LENGTH]}'" if fragment else ""
    return f"{name}{position_text}{fragment_text}."


def _parse_plan(spark: SparkSession, text: str) -> Any:
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415  # an extra
    from pyspark.errors import PySparkException  # noqa: PLC0415  # the same

    try:
        return spark._jsparkSession.sessionState().sqlParser().parsePlan(text)  # PySpark has no other way
    except PySparkException as error:
        raise InvalidInputError(f"Spark cannot read the query: {describe_error(error)}") from error
    except Py4JJavaError as error:
        raise InvalidInputError("Spark cannot read the query: it fails where it looks at it.") from error


def _check_expression(expression: Any) -> None:
    expression_class = class_name(expression)
    if expression_class.endswith("UnresolvedIdentifier"):
        raise InvalidInputError("A query names columns and functions plainly, not by IDENTIFIER.")
    if expression_class not in PARSED_EXPRESSIONS:
        raise InvalidInputError(
            f"A query may not use {expression_class}: write it by columns, operators and functions."
        )
    if expression_class == "UnresolvedFunction":
        _check_function(to_list(expression.nameParts()))
    elif expression_class == "UnresolvedGenerator":
        _check_function([expression.name().funcName()])


def _check_function(parts: Collection[str]) -> None:
    name = ".".join(parts)
    if len(parts) != 1 or name.lower() not in ALLOWED_NAMES:
        reason = REFUSED_REASONS.get(name.lower(), "It is not among the functions that docs/views.md lists.")
        raise InvalidInputError(f"A query may not call {name}. {reason}")
