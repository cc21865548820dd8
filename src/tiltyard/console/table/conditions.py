"""Conditions on columns as SQL: what a reader chooses in the form of the rows, or by a click on a value.

Names and values become identifiers and literals here, by `sql_text` alone: none becomes a part of the text as it is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Context, Decimal, Inexact, InvalidOperation
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError

from tiltyard.model.text.sql_text import quote_identifier, sql_literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tiltyard.console.table.grid import Grid
    from tiltyard.console.table.schema_tree import Column

MAX_VALUES = 1_000
"""Values of one condition."""
DECIMAL_PARTS = 4
"""Parts of the name of a decimal type: decimal:128:10:2."""
MAX_EXAMPLE = 24
"""Characters of a text that an example names."""
_NO_EXAMPLES = frozenset({"nan", "inf", "-inf"})
_NEEDS_BRACKETS = re.compile(r"\bor\b|--|/\*", re.IGNORECASE)


class ValueKind(StrEnum):
    """What the values of a column are compared as."""

    TEXT = "text"
    INTEGER = "integer"
    NUMBER = "number"
    DECIMAL = "decimal"
    BOOLEAN = "boolean"
    DATE = "date"
    MOMENT = "moment"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Operator:
    """A comparison: `values` is how many it takes, 0, 1 or MAX_VALUES; `write` makes its SQL of name and literals."""

    name: str
    title: str
    values: int
    write: Callable[[str, Sequence[str]], str]


def _comparison(name: str, title: str, sign: str) -> Operator:
    return Operator(name, title, 1, lambda column, values: f"{column} {sign} {values[0]}")


def _call(name: str, title: str, function: str) -> Operator:
    return Operator(name, title, 1, lambda column, values: f"{function}({column}, {values[0]})")


def _state(name: str, title: str, words: str) -> Operator:
    return Operator(name, title, 0, lambda column, _: f"{column} {words}")


_EQUAL = (_comparison("is", "is", "="), _comparison("is_not", "is not", "<>"))
_ORDER = (
    _comparison("at_least", "at least", ">="),
    _comparison("at_most", "at most", "<="),
    _comparison("more", "more than", ">"),
    _comparison("less", "less than", "<"),
)
_CONTENT = (
    _call("contains", "contains", "contains"),
    _call("starts", "begins with", "starts_with"),
    _call("ends", "ends with", "ends_with"),
)
_AMONG = (Operator("among", "is one of", MAX_VALUES, lambda column, values: f"{column} IN ({', '.join(values)})"),)
_NULL = (_state("null", "is null", "IS NULL"), _state("not_null", "is not null", "IS NOT NULL"))
_TRUTH = (_state("true", "is true", "= TRUE"), _state("false", "is false", "= FALSE"))
_OPERATORS: Mapping[ValueKind, tuple[Operator, ...]] = {
    ValueKind.TEXT: (*_EQUAL, *_CONTENT, *_AMONG, *_NULL),
    ValueKind.INTEGER: (*_EQUAL, *_ORDER, *_AMONG, *_NULL),
    ValueKind.NUMBER: (*_EQUAL, *_ORDER, *_AMONG, *_NULL),
    ValueKind.DECIMAL: (*_EQUAL, *_ORDER, *_AMONG, *_NULL),
    ValueKind.BOOLEAN: (*_TRUTH, *_NULL),
    ValueKind.DATE: (*_EQUAL, *_ORDER, *_NULL),
    ValueKind.MOMENT: (*_ORDER, *_EQUAL, *_NULL),
    ValueKind.OTHER: _NULL,
}


def value_kind(column: Column) -> ValueKind:
    """Return what the values of a column are compared as, by its type."""
    name = column.type.partition(":")[0]
    if column.kind == "text":
        return ValueKind.TEXT
    if name.startswith("decimal"):
        return ValueKind.DECIMAL if column.type.count(":") == DECIMAL_PARTS - 1 else ValueKind.OTHER
    if column.kind == "number":
        return ValueKind.INTEGER if name.removeprefix("u").startswith("int") else ValueKind.NUMBER
    if name in ("bool", "boolean"):
        return ValueKind.BOOLEAN
    if name.startswith("date"):
        return ValueKind.DATE
    return ValueKind.MOMENT if name == "timestamp" else ValueKind.OTHER


def operators(column: Column) -> tuple[Operator, ...]:
    """Return the operators that a column's type has."""
    return _OPERATORS[value_kind(column)]


def comparable_columns(columns: Iterable[Column], hidden: Iterable[str] = ()) -> list[Column]:
    """Return the columns that conditions can name: all that are not hidden, and the fields inside structs."""
    found: list[Column] = []
    for column in columns:
        if column.path not in hidden:
            found.append(column)
            if column.type == "struct":
                found += comparable_columns(column.children)
    return found


def find_column(columns: Sequence[Column], path: str) -> Column:
    """Return the column of a path. Raises TableColumnNotFoundError."""
    found = next((column for column in columns if column.path == path), None)
    if found is None:
        raise TableColumnNotFoundError(
            f"There is no column '{path[:100]}' that you can compare: choose one of the list."
        )
    return found


def write_condition(column: Column, operator: str, texts: Sequence[str]) -> str:
    """Return the condition that a column's values fit an operator with what was entered. Raises InvalidInputError."""
    chosen = next((each for each in operators(column) if each.name == operator), None)
    if chosen is None:
        names = ", ".join(f"'{each.title}'" for each in operators(column))
        raise InvalidInputError(f"{column.path} ({column.type}) can be compared by {names}: choose one of them.")
    values = _split(texts) if chosen.values > 1 else list(texts)
    if chosen.values and not any(values):
        raise InvalidInputError(f"{column.path} {chosen.title} what? Enter a value.")
    if len(values) > chosen.values and chosen.values:
        raise InvalidInputError(f"A condition has up to {chosen.values} values, not {len(values)}.")
    return chosen.write(quoted(column), [write_value(column, text) for text in values] if chosen.values else [])


def _split(texts: Iterable[str]) -> list[str]:
    return [value for text in texts for part in re.split(r"[,\n]", text) if (value := part.strip())]


def equals(column: Column, value: Any) -> str:
    """Return the condition that a column has a value, which is one of its own."""
    if value is None:
        return f"{quoted(column)} IS NULL"
    return f"{quoted(column)} = {_literal(value_kind(column), value)}"


def quoted(column: Column) -> str:
    """Return a column's path as SQL names it."""
    return ".".join(map(quote_identifier, column.names))


def write_value(column: Column, text: str) -> str:
    """Return what was entered as a literal of a column's type. Raises InvalidInputError."""
    kind = value_kind(column)
    try:
        value = _READERS[kind](text)
        return _decimal(column, value) if isinstance(value, Decimal) else _literal(kind, value)
    except (ValueError, OverflowError, ArithmeticError):
        form = _FORMS.get(kind, "a value of its type")
        raise InvalidInputError(f"{column.path} ({column.type}) is compared with {form}, not '{text[:60]}'.") from None


def _decimal(column: Column, value: Decimal) -> str:
    """Return a decimal of the column's own precision and scale. Raises ArithmeticError where it has no room there."""
    precision, scale = (int(part) for part in column.type.split(":")[2:])
    exact = Context(prec=precision, traps=[Inexact, InvalidOperation])
    literal = sql_literal(value.quantize(Decimal(1).scaleb(-scale), context=exact), "value")
    return f"CAST({literal} AS DECIMAL({precision}, {scale}))"


def _literal(kind: ValueKind, value: Any) -> str:
    literal = sql_literal(value, "value")
    return f"{_TYPED[kind]} {literal}" if kind in _TYPED else literal


_TYPED = {ValueKind.DATE: "date", ValueKind.MOMENT: "timestamp"}


def _finite(text: str) -> float:
    """Read a number. Raises ValueError for one that is none, or that is not finite."""
    if not math.isfinite(value := float(text)):
        raise ValueError(text)
    return value


_READERS: Mapping[ValueKind, Callable[[str], Any]] = {
    ValueKind.TEXT: str,
    ValueKind.INTEGER: int,
    ValueKind.NUMBER: _finite,
    ValueKind.DECIMAL: Decimal,
    ValueKind.DATE: date.fromisoformat,
    ValueKind.MOMENT: datetime.fromisoformat,
}
_FORMS = {
    ValueKind.INTEGER: "a whole number",
    ValueKind.NUMBER: "a number, as 0.5",
    ValueKind.DECIMAL: "a number of its digits, as 0.5",
    ValueKind.DATE: "a date, as 2026-01-31",
    ValueKind.MOMENT: "a moment, as 2026-01-31T12:00:00",
}


def join_conditions(filter_text: str, condition: str) -> str:
    """Return a filter that a condition is added to, unless the filter has it already."""
    if not filter_text:
        return condition
    if condition in filter_text.split(" AND "):
        return filter_text
    before = f"({filter_text})" if _NEEDS_BRACKETS.search(filter_text) else filter_text
    return f"{before} AND {condition}"


def without_condition(filter_text: str, condition: str) -> str | None:
    """Return a filter without a condition that is one of those joined by AND; None where it is not."""
    parts = filter_text.split(" AND ")
    if condition not in parts or _NEEDS_BRACKETS.search(filter_text):
        return None
    parts.remove(condition)
    return " AND ".join(parts)


def example_filter(grid: Grid, hidden: Iterable[str] = ()) -> str:
    """Return a filter as one could enter it: of columns and values of the rows that are shown."""
    examples: dict[str, tuple[int, str]] = {}
    for index, column in enumerate(grid.columns):
        cells = [row.cells[index] for row in grid.rows]
        texts = {cell.text for cell in cells if cell.kind == column.kind and not cell.more and cell.text}
        short = sorted(text for text in texts if len(text) <= MAX_EXAMPLE and text not in _NO_EXAMPLES)
        if column.kind not in ("number", "text") or column.name in hidden or not short:
            continue
        sign = ">=" if column.kind == "number" else "="
        condition = f"{quoted(column)} {sign} {write_value(column, short[len(short) // 2])}"
        if column.kind not in examples or len(texts) <= examples[column.kind][0]:
            examples[column.kind] = len(texts), condition
    return " AND ".join(condition for _, condition in examples.values())
