"""Spark's plans and expressions, walked from Python: PySpark has no way of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

ROWS = "MapInArrow"
"""The node that is a table's rows, as `showing` makes it."""


def kind(node: Any) -> str:
    """Return the simple name of a node's class; of an anonymous one, of the class that it extends."""
    found = node.getClass()
    return str(found.getSimpleName() or found.getSuperclass().getSimpleName())


def sequence(found: Any) -> list[Any]:
    """Return the elements of a sequence of Scala's."""
    return [found.apply(number) for number in range(found.size())]


def upper_nodes(node: Any) -> Iterator[Any]:
    """Yield a plan's nodes down to the rows of tables, those of subqueries among them."""
    yield node
    if kind(node) != ROWS:
        for child in (*sequence(node.children()), *sequence(node.subqueries())):
            yield from upper_nodes(child)


def expressions(node: Any) -> Iterator[Any]:
    """Yield all expressions of a node, with those within them."""
    waiting = sequence(node.expressions())
    while waiting:
        found = waiting.pop()
        yield found
        waiting += sequence(found.children())


def literal(expression: Any) -> Any:
    """Return a literal's value as a number or a text; None for what is no literal, and for NULL."""
    if kind(expression) == "UnaryMinus":
        found = literal(expression.child())
        return -found if isinstance(found, int | float) else None
    if kind(expression) != "Literal":
        return None
    value = expression.value()
    return value if value is None or isinstance(value, bool | int | float | str) else value.toString()


def type_of(expression: Any) -> str:
    """Return the name of a literal's type (`date`, `interval day to second`)."""
    return str(expression.dataType().typeName())
