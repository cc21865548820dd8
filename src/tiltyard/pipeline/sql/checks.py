"""Check that SQL of a caller only reads, only its tables, by functions that are allowed, and makes not too much.

Twice: as it was parsed, before Spark looks anything up or evaluates anything, and as Spark has analysed it, where what
a name stood for is plain. Whatever is not on a list (`functions`, `nodes`) is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.model.view_definitions import check_query_text
from tiltyard.pipeline.session import is_connect
from tiltyard.pipeline.sql.allowed_functions import ALLOWED_NAMES, REFUSED_REASONS
from tiltyard.pipeline.sql.allowed_nodes import ANALYSED_EXPRESSIONS, ANALYSED_NODES, PARSED_EXPRESSIONS, PARSED_NODES
from tiltyard.pipeline.sql.size_limits import check_groupings, check_total, made_by
from tiltyard.pipeline.sql.spark_plans import expressions, kind, sequence, upper_nodes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MOST_EXPRESSIONS = 10_000
"""How many expressions a query has at most: each is looked at, which takes about a millisecond."""
MOST_READS = 64
"""How many reads of tables a query is when all that WITH names is written out: each may double what is before it."""

_HINTS = frozenset(
    {
        "broadcast", "broadcastjoin", "mapjoin", "merge", "mergejoin", "shuffle_hash", "shuffle_merge",
        "shuffle_replicate_nl",
    }
)  # fmt: skip
_POSITION = re.compile(r"line (\d+),? pos(?:ition)? (\d+)")
_LONGEST_FRAGMENT = 100


@dataclass(frozen=True, slots=True)
class _Size:
    """What a part of a query comes to: reads of tables, and values that it may make of one row."""

    reads: int = 0
    made: int = 1


class _Checked:
    """A parsed query, checked node by node; `tables` are those that it may read."""

    def __init__(self, tables: Collection[str]) -> None:
        self._tables = frozenset(tables)
        self._expressions = 0

    def visit(self, node: Any, named: Mapping[str, _Size]) -> _Size:
        """Check a node and all below it; what it comes to. `named` is what WITH has named so far."""
        found = kind(node)
        if found not in PARSED_NODES:
            raise InvalidInputError(f"A query reads tables and does nothing else: Spark takes this for {found}.")
        if found == "UnresolvedRelation":
            return self._relation(node, named)
        if found == "UnresolvedWith":
            named = self._with(node, named)
        if found == "UnresolvedHint" and str(node.name()).lower() not in _HINTS:
            raise InvalidInputError(f"A query has no hint {node.name()}: leave it out, it does not change the rows.")
        own = self._made(node)
        below = [self.visit(child, named) for child in (*sequence(node.children()), *sequence(node.subqueries()))]
        size = _Size(sum(one.reads for one in below), own * math.prod(one.made for one in below))
        if size.reads > MOST_READS:
            raise InvalidInputError(f"The query reads its tables more than {MOST_READS} times, counted through WITH.")
        check_total(size.made)
        return size

    def _relation(self, node: Any, named: Mapping[str, _Size]) -> _Size:
        parts = sequence(node.multipartIdentifier())
        if node.options().size() or node.isStreaming():
            raise InvalidInputError("A query reads its tables as they are: without options, and not as streams.")
        if len(parts) == 1 and parts[0].lower() in named:
            return named[parts[0].lower()]
        if len(parts) != 1 or parts[0] not in self._tables:
            raise InvalidInputError(f"The query reads {'.'.join(parts)}, which is no table that it names plainly.")
        return _Size(reads=1)

    def _with(self, node: Any, named: Mapping[str, _Size]) -> Mapping[str, _Size]:
        if node.allowRecursion():
            raise InvalidInputError("A query has no WITH RECURSIVE: nothing bounds what it makes.")
        for pair in sequence(node.cteRelations()):
            named = {**named, str(pair.productElement(0)).lower(): self.visit(pair.productElement(1), named)}
        return named

    def _made(self, node: Any) -> int:
        """Check the expressions of a node; how much one of them makes."""
        found = list(expressions(node))
        self._expressions += len(found)
        if self._expressions > MOST_EXPRESSIONS:
            raise InvalidInputError(f"A query has at most {MOST_EXPRESSIONS:,} expressions: make it of several views.")
        rows = kind(node) == "UnresolvedInlineTable"
        for expression in found:
            _check_parsed(expression)
            if rows and kind(expression) == "LambdaFunction":
                raise InvalidInputError("A query's VALUES hold no lambdas: Spark evaluates them while it plans.")
        if kind(node) == "Aggregate":
            check_groupings(found)
        made = [made_by(one) for one in sequence(node.expressions())]
        # Spark holds all of VALUES at once, in the driver, where it evaluates them while it plans.
        return max(sum(one for one in made if one > 1) if rows else max(made, default=1), 1)


def check_parsed(spark: SparkSession, text: str, tables: Collection[str]) -> None:
    """Raise InvalidInputError unless a query only reads, and only these tables; nothing of it is run.

    Raises UnsupportedOperationError for a session of Spark Connect, which does not tell what a query would do.
    """
    check_query_text(text)
    if is_connect(spark):
        raise UnsupportedOperationError(
            "SQL is checked in a session of the driver's own: Spark Connect tells no plans."
        )
    try:
        _Checked(tables).visit(_parsed(spark, text), {})
    except RecursionError as error:
        raise InvalidInputError("The query is nested too deeply: make it of several views.") from error


def check_analysed(frame: DataFrame) -> None:
    """Raise InvalidInputError unless all that Spark has made of a query is on the lists."""
    for node in upper_nodes(frame._jdf.queryExecution().analyzed()):  # PySpark has no other way
        found = kind(node)
        if found not in ANALYSED_NODES:
            raise InvalidInputError(f"A query reads tables and does nothing else: Spark takes this for {found}.")
        if found == "MapInArrow":
            continue
        for expression in expressions(node):
            if kind(expression) not in ANALYSED_EXPRESSIONS:
                raise InvalidInputError(f"A query may not use {kind(expression)}, which Spark has made of it.")


def analysed(spark: SparkSession, text: str) -> DataFrame:
    """Let Spark analyse a query that was checked. Raises InvalidInputError for one that it does not understand."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415  # no types; an extra
    from pyspark.errors import PySparkException  # noqa: PLC0415  # the same

    try:
        return spark.sql(text)
    except PySparkException as error:
        raise InvalidInputError(f"Spark cannot plan the query: {describe(error)}") from error
    except Py4JJavaError as error:
        raise InvalidInputError("Spark cannot plan the query: it fails where it looks at it.") from error


def describe(error: Any) -> str:
    """Say what Spark has against a query, without its own text, which may hold what it has evaluated.

    That is the name of the error, where it is, and the part of the query that it is about.
    """
    name = error.getCondition() or "it does not understand it"
    contexts = error.getQueryContext() or []
    fragment = next((str(one.fragment()) for one in contexts if one.fragment()), "")
    at = _POSITION.search(str(error))
    where = f" in line {at[1]}, position {at[2]}" if at else ""
    about = f" at '{fragment[:_LONGEST_FRAGMENT]}'" if fragment else ""
    return f"{name}{where}{about}."


def _parsed(spark: SparkSession, text: str) -> Any:
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415  # an extra
    from pyspark.errors import PySparkException  # noqa: PLC0415  # the same

    try:
        return spark._jsparkSession.sessionState().sqlParser().parsePlan(text)  # PySpark has no other way
    except PySparkException as error:
        raise InvalidInputError(f"Spark cannot read the query: {describe(error)}") from error
    except Py4JJavaError as error:
        raise InvalidInputError("Spark cannot read the query: it fails where it looks at it.") from error


def _check_parsed(expression: Any) -> None:
    found = kind(expression)
    if found.endswith("UnresolvedIdentifier"):
        raise InvalidInputError("A query names columns and functions plainly, not by IDENTIFIER.")
    if found not in PARSED_EXPRESSIONS:
        raise InvalidInputError(f"A query may not use {found}: write it by columns, operators and functions.")
    if found == "UnresolvedFunction":
        _check_function(sequence(expression.nameParts()))
    elif found == "UnresolvedGenerator":
        _check_function([expression.name().funcName()])


def _check_function(parts: Collection[str]) -> None:
    name = ".".join(parts)
    if len(parts) != 1 or name.lower() not in ALLOWED_NAMES:
        reason = REFUSED_REASONS.get(name.lower(), "It is none of the functions that docs/pipeline.md lists.")
        raise InvalidInputError(f"A query may not call {name}. {reason}")
