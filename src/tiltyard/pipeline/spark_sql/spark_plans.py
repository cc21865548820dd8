"""Walk Spark's query plans and expressions from Python, for which PySpark has no API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

TABLE_ROWS = "MapInArrow"
"""The node of a table's rows, as `datasource.dataframes.read_frame` creates it."""


def class_name(node: Any) -> str:
    """Return the simple name of a node's class; of an anonymous class, that of its superclass."""
    cls = node.getClass()
    return str(cls.getSimpleName() or cls.getSuperclass().getSimpleName())


def to_list(elements: Any) -> list[Any]:
    """Return the elements of a Scala sequence."""
    return [elements.apply(number) for number in range(elements.size())]


def walk_nodes(node: Any) -> Iterator[Any]:
    """Yield a plan's nodes down to the rows of tables, including those of subqueries."""
    yield node
    if class_name(node) != TABLE_ROWS:
        for child in (*to_list(node.children()), *to_list(node.subqueries())):
            yield from walk_nodes(child)


def walk_expressions(node: Any) -> Iterator[Any]:
    """Yield all expressions of a node, including nested ones."""
    stack = to_list(node.expressions())
    while stack:
        expression = stack.pop()
        yield expression
        stack += to_list(expression.children())


def literal_value(expression: Any) -> Any:
    """Return a literal's value as a number or text; None for NULL, and for expressions that are no literals."""
    if class_name(expression) == "UnaryMinus":
        operand = literal_value(expression.child())
        return -operand if isinstance(operand, int | float) else None
    if class_name(expression) != "Literal":
        return None
    value = expression.value()
    return value if value is None or isinstance(value, bool | int | float | str) else value.toString()


def literal_type(expression: Any) -> str:
    """Return the name of a literal's type (`date`, `interval day to second`)."""
    return str(expression.dataType().typeName())
