"""Judge a query by its plan: it consists of nodes that only read."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pyarrow as pa
from lance_namespace.errors import UnsupportedOperationError

from tiltyard.sql.errors import READ_ONLY
from tiltyard.sql.statements import NEGATED_MEMBERSHIP

_READING_NODES = frozenset(
    """
    Aggregate Analyze DescribeTable Distinct EmptyRelation Explain Filter Join Limit Projection Repartition Sort
    Subquery SubqueryAlias TableScan Union Unnest Values Window WindowExpr
    """.split()  # noqa: SIM905  # a list of names is read as one
)
_DESCRIBING_NODES = frozenset({"Explain", "Analyze"})
_STATEMENT_NODES = frozenset("Explain Analyze DescribeTable".split())  # noqa: SIM905  # as above
"""Nodes of statements that are no queries, of which no view is made."""

_EXPRESSIONS_OF_NODES = ("predicate", "projections", "filter", "aggregate_exprs", "group_by_exprs")
"""Methods of the plan's nodes that return expressions."""
_CAST_PLACEHOLDER = re.compile(r"CAST\(\$(\d+) AS (.+)\)")
_CAST_TYPES = {
    "Boolean": pa.bool_(),
    "Binary": pa.binary(),
    "Date32": pa.date32(),
    "Float32": pa.float32(),
    "Float64": pa.float64(),
    "Int8": pa.int8(),
    "Int16": pa.int16(),
    "Int32": pa.int32(),
    "Int64": pa.int64(),
    "Timestamp(ns)": pa.timestamp("ns"),
    "Timestamp(Nanosecond, None)": pa.timestamp("ns"),
}
"""Types by the names that DataFusion's expressions have for them; a parameter of another one is sent as text."""


def check_plan(plan: Any, *, is_restricted: bool, is_view: bool = False) -> None:
    """Check that each node of a logical plan only reads. Raises UnsupportedOperationError.

    `is_restricted` says that policies restrict the reader on one of its tables: then the plan itself is not shown.
    `is_view` says that it is the plan of a view, which is a query and no other statement.
    """
    for node in _nodes(plan):
        kind = type(node).__name__
        if kind not in _READING_NODES:
            raise UnsupportedOperationError(f"{READ_ONLY} This one has a step of the kind {kind}.")
        if is_view and kind in _STATEMENT_NODES:
            raise UnsupportedOperationError("A view is a SELECT, WITH or VALUES, and no other statement.")
        if is_restricted and kind in _DESCRIBING_NODES:
            raise UnsupportedOperationError("Policies restrict you on a table of this query: its plan is not shown.")


def check_memberships(plan: Any) -> None:
    """Check that no IN (SELECT …) of an optimized plan, of which some are negated, is a join that marks rows.

    For that join a membership is never null, which matters below a NOT alone. Raises UnsupportedOperationError.
    """
    for node in _nodes(plan):
        if type(node).__name__ == "Join" and "Mark" in str(node.join_type()):
            raise UnsupportedOperationError(NEGATED_MEMBERSHIP)


def placeholder_types(plan: Any) -> dict[int, pa.DataType]:
    """Return the types of the placeholders that are compared with or computed from a typed value, by their numbers."""
    types: dict[int, pa.DataType] = {}
    for node in _nodes(plan):
        for name in _EXPRESSIONS_OF_NODES:
            found = getattr(node, name)() if hasattr(node, name) else None
            for expression in found if isinstance(found, list) else [found]:
                _add_placeholder_types(expression, types)
    return types


def _add_placeholder_types(expression: Any, types: dict[int, pa.DataType]) -> None:
    """Add the types of the placeholders within an expression; a sort key and a missing filter are none."""
    if not hasattr(expression, "variant_name"):
        return
    if expression.variant_name() == "Placeholder":
        placeholder = expression.to_variant()
        if (field := placeholder.field()) is not None:
            types[int(placeholder.id().removeprefix("$"))] = field.type
        return
    text = expression.canonical_name()
    if cast := _CAST_PLACEHOLDER.fullmatch(text):
        types[int(cast[1])] = _CAST_TYPES.get(cast[2], pa.string())
        return
    with suppress(ValueError, RuntimeError):  # a kind of expression whose parts DataFusion does not show
        for operand in expression.rex_call_operands():
            if operand.canonical_name() != text:  # a column is its own operand
                _add_placeholder_types(operand, types)


def _nodes(plan: Any) -> list[Any]:
    """Return the nodes of a plan; those of subqueries in expressions are queries by the grammar itself."""
    nodes, waiting = [], [plan]
    while waiting:
        current = waiting.pop()
        nodes.append(current.to_variant())
        waiting += current.inputs()
    return nodes
