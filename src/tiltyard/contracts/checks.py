"""The words of checks, of jobs (`--checks`) and of contracts (`tiltyard contract set`) alike.

    rows >= 1000        rejected <= 10      not_null(id)      between(score, 0, 1)      unique(id)      unique(a, b)
    matches(code, [A-Z]{2}\\d+)             in_set(kind, film, "a series")             freshness(seen, 2d)
    foreign_key(genre, genres.name)         distribution(score, 0.1)                   expect(price >= 0)

`warn: ` before a check makes its failure a warning. `matches` is for whole texts; a null is neither in a set nor out of
it, and so it is with `matches`, `between` and `expect`. `freshness` asks that the newest value is at most so old (30s,
15m, 6h, 2d). `expect` has a condition in SQL over the columns of a row.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tiltyard.contracts.row_checks import ROW_KINDS, check_arguments, expected_columns
from tiltyard.model.refusals import RefusedError

_COUNT_CHECK = re.compile(r"(rows|rejected) *(<=|>=|==|<|>) *(\d+)")
_FUNCTION_CHECK = re.compile(
    r"(not_null|between|unique|foreign_key|matches|in_set|freshness|distribution|expect)\((.+)\)", re.DOTALL
)
_WARNING = re.compile(r"warn *: *")
_ARGUMENT = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[^,]*)\s*(?:,|$)')
_TOLERANCE = re.compile(r"\d{1,6}(\.\d{1,9})?")
KEY_CHECKS = ("unique", "foreign_key")
"""Kinds of checks that look at other rows."""
_ARGUMENT_COUNTS = {
    "between": (3, 3),
    "foreign_key": (2, 2),
    "matches": (2, 2),
    "freshness": (2, 2),
    "distribution": (2, 2),
    "in_set": (2, 1001),
}
COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "<": operator.lt, ">": operator.gt,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class QualityCheck:
    """A check: its text, its kind, its arguments (or operator and number); with `warns` its failure stops nothing."""

    text: str
    kind: str
    arguments: tuple[str, ...]
    warns: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that it names; of `expect`, see `columns_of`."""
        if self.kind in ("rows", "rejected", "expect"):
            return ()
        return self.arguments if self.kind in ("not_null", "unique") else self.arguments[:1]

    def columns_of(self, schema: pa.Schema) -> tuple[str, ...]:
        """Return the columns of a table that it reads."""
        return expected_columns(schema, self.arguments[0]) if self.kind == "expect" else self.columns


def parse_check(text: str) -> QualityCheck:
    """Parse a check. Raises RefusedError."""
    warning = _WARNING.match(text.strip())
    condition = text.strip()[warning.end() if warning else 0 :]
    if match := _COUNT_CHECK.fullmatch(condition):
        return QualityCheck(text, match[1], (match[2], match[3]), warning is not None)
    if match := _FUNCTION_CHECK.fullmatch(condition):
        arguments = _split_arguments(match[1], match[2])
        least, most = _ARGUMENT_COUNTS.get(match[1], (1, len(arguments)))
        if least <= len(arguments) <= most:
            return QualityCheck(text, match[1], arguments, warning is not None)
    raise RefusedError(
        f"'{text}' is not a check: write rows >= 1000, rejected <= 10, not_null(id), between(score, 0, 1), unique(id), "
        "foreign_key(genre, genres.name), matches(code, [A-Z]+), in_set(kind, a, b), freshness(seen, 2d), "
        "distribution(score, 0.1) or expect(price >= 0); `warn: ` before it makes it a warning."
    )


def _split_arguments(kind: str, text: str) -> tuple[str, ...]:
    """Return arguments between commas, in JSON's quotes where they have one; a pattern is all behind the first one.

    A condition in SQL is one argument.
    """
    if kind == "expect":
        return (text.strip(),)
    if kind == "matches":
        return tuple(part.strip() for part in text.split(",", 1))
    return tuple(match[1].strip() for match in _ARGUMENT.finditer(text) if match[0])


def validate_checks(checks: Sequence[QualityCheck], schema: pa.Schema) -> None:
    """Raise RefusedError for a check of a column that the table lacks, or with bounds that are not of its type."""
    for check in checks:
        for name in check.columns:
            if name not in schema.names:
                raise RefusedError(f"The check {check.text}: there is no column '{name}'.")
            if check.kind in KEY_CHECKS and pa.types.is_nested(schema.field(name).type):
                raise RefusedError(f"The check {check.text}: '{name}' is {schema.field(name).type}, no key.")
        if check.kind == "distribution":
            _check_distribution(check, schema.field(check.arguments[0]).type)
        if check.kind in (*ROW_KINDS, "freshness"):
            check_arguments(check, schema)


def _check_distribution(check: QualityCheck, dtype: pa.DataType) -> None:
    is_number = pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype)
    if not (is_number or pa.types.is_boolean(dtype) or pa.types.is_date(dtype) or pa.types.is_timestamp(dtype)):
        raise RefusedError(f"The check {check.text}: '{check.arguments[0]}' is {dtype}, neither a number nor a time.")
    if not _TOLERANCE.fullmatch(check.arguments[1]) or not float(check.arguments[1]):
        raise RefusedError(
            f"The check {check.text}: '{check.arguments[1]}' is no tolerance: write the part of the last run's spread "
            "that mean and quantiles may differ by, as 0.1."
        )
