"""Check new rows before they are published: counts are taken in tasks, and the driver decides.

    rows >= 1000        rejected <= 10      not_null(id)      between(score, 0, 1)      unique(id)      unique(a, b)
    matches(code, [A-Z]{2}\\d+)             in_set(kind, film, "a series")             freshness(seen, 2d)

`warn: ` before a check makes its failure a warning: it is in the run's figures, and the rows are published. `matches`
is for whole texts; a null is neither in a set nor out of it, and so it is with `matches` and `between`. `freshness`
asks that the newest value is at most so old (30s, 15m, 6h, 2d).

`unique(id)` and `foreign_key(genre, genres.name)` look at other rows, too: see `key_checks`. `distribution(score, 0.1)`
compares with the last run: see `distribution_checks`.
"""

from __future__ import annotations

import json
import operator
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.model.refusals import RefusedError

_COUNT_CHECK = re.compile(r"(rows|rejected) *(<=|>=|==|<|>) *(\d+)")
_FUNCTION_CHECK = re.compile(
    r"(not_null|between|unique|foreign_key|matches|in_set|freshness|distribution)\((.+)\)", re.DOTALL
)
_WARNING = re.compile(r"warn *: *")
_ARGUMENT = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[^,]*)\s*(?:,|$)')
_AGE = re.compile(r"(\d{1,6})([smhd])")
_TOLERANCE = re.compile(r"\d{1,6}(\.\d{1,9})?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
KEY_CHECKS = ("unique", "foreign_key")
"""Kinds of checks that look at other rows."""
_READING_CHECKS = (*KEY_CHECKS, "distribution")
"""Kinds of checks that take more than counts: they read the new rows again."""
_ARGUMENT_COUNTS = {
    "between": (3, 3),
    "foreign_key": (2, 2),
    "matches": (2, 2),
    "freshness": (2, 2),
    "distribution": (2, 2),
    "in_set": (2, 1001),
}
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
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
        """Return the columns that it checks."""
        if self.kind in ("rows", "rejected"):
            return ()
        return self.arguments if self.kind in ("not_null", "unique") else self.arguments[:1]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Whether written rows pass a check; `sentence` says what is wrong with them."""

    check: QualityCheck
    sentence: str = ""

    @property
    def is_failure(self) -> bool:
        """Return whether the rows must not be published."""
        return bool(self.sentence) and not self.check.warns


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
        "foreign_key(genre, genres.name), matches(code, [A-Z]+), in_set(kind, a, b), freshness(seen, 2d) or "
        "distribution(score, 0.1); `warn: ` before it makes it a warning."
    )


def _split_arguments(kind: str, text: str) -> tuple[str, ...]:
    """Return arguments between commas, in JSON's quotes where they have one; a pattern is all behind the first one."""
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
        if check.kind in _COUNT_FAILURES:
            _try_check(check, pa.nulls(1, schema.field(check.arguments[0]).type))


def _check_distribution(check: QualityCheck, dtype: pa.DataType) -> None:
    is_number = pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_decimal(dtype)
    if not (is_number or pa.types.is_boolean(dtype) or pa.types.is_date(dtype) or pa.types.is_timestamp(dtype)):
        raise RefusedError(f"The check {check.text}: '{check.arguments[0]}' is {dtype}, neither a number nor a time.")
    if not _TOLERANCE.fullmatch(check.arguments[1]) or not float(check.arguments[1]):
        raise RefusedError(
            f"The check {check.text}: '{check.arguments[1]}' is no tolerance: write the part of the last run's spread "
            "that mean and quantiles may differ by, as 0.1."
        )


@dataclass(slots=True)
class CheckCounter:
    """Counts the rows that fail each check, by the check's text; of `freshness`, those that are too old."""

    checks: tuple[QualityCheck, ...]
    failures: dict[str, int] = field(default_factory=dict)

    def count(self, batch: pa.RecordBatch) -> None:
        """Count the failures in a batch."""
        for check in self.checks:
            if check.kind == "not_null":
                bad = sum(batch.column(name).null_count for name in check.arguments)
            elif check.kind in _COUNT_FAILURES:
                bad = _COUNT_FAILURES[check.kind](check, batch.column(check.arguments[0]))
            else:
                continue
            if bad:
                self.failures[check.text] = self.failures.get(check.text, 0) + bad


def judge_counts(
    checks: Sequence[QualityCheck], rows: int, rejected: int, failures: Sequence[Mapping[str, int]]
) -> list[CheckResult]:
    """Return the result of each check but those that read the rows again."""
    results = []
    for check in checks:
        count = sum(counts.get(check.text, 0) for counts in failures)
        sentence = ""
        if check.kind in ("rows", "rejected"):
            number = rows if check.kind == "rows" else rejected
            if not _COMPARE[check.arguments[0]](number, int(check.arguments[1])):
                sentence = f"{check.text}: {number} {check.kind}"
        elif check.kind == "freshness":
            if count >= rows:
                sentence = f"{check.text}: no row is so new"
        elif count:
            sentence = f"{check.text}: {count} rows are not"
        if check.kind not in _READING_CHECKS:
            results.append(CheckResult(check, sentence))
    return results


def report_checks(results: Sequence[CheckResult]) -> dict[str, str]:
    """Return the figure `checks` of a run: JSON, a list of the checks with `passed` and, where not, `found`."""
    if not results:
        return {}
    entries = [
        {
            "check": result.check.text,
            "severity": "warn" if result.check.warns else "fail",
            "passed": not result.sentence,
            **({"found": result.sentence.removeprefix(f"{result.check.text}: ")} if result.sentence else {}),
        }
        for result in results
    ]
    return {"checks": json.dumps(entries)}


def _count_outside(check: QualityCheck, column: pa.Array) -> int:
    low, high = (_value(text, column.type) for text in check.arguments[1:])
    return _count_false(pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high)))


def _count_other_values(check: QualityCheck, column: pa.Array) -> int:
    values = pa.array([_value(text, column.type).as_py() for text in check.arguments[1:]], column.type)
    return _count_false(pc.or_(pc.is_in(column, values), pc.is_null(column)))


def _count_not_matching(check: QualityCheck, column: pa.Array) -> int:
    pattern = check.arguments[1]
    pattern = json.loads(pattern) if pattern.startswith('"') else pattern
    return _count_false(pc.match_substring_regex(column, f"^(?:{pattern})$"))


def _count_older(check: QualityCheck, column: pa.Array) -> int:
    age = _AGE.fullmatch(check.arguments[1])
    if age is None:
        raise ValueError(f"'{check.arguments[1]}' is no age: write 30s, 15m, 6h or 2d")
    if not pa.types.is_temporal(column.type) or pa.types.is_time(column.type) or pa.types.is_duration(column.type):
        raise ValueError(f"'{check.arguments[0]}' is {column.type}, neither a date nor a point in time")
    seconds = time.time() - int(age[1]) * _SECONDS[age[2]]
    zone = getattr(column.type, "tz", None)
    since = pa.scalar(int(seconds * 1_000_000), pa.timestamp("us", zone))
    return len(column) - (pc.sum(pc.greater_equal(column.cast(since.type), since)).as_py() or 0)


_COUNT_FAILURES: Mapping[str, Callable[[QualityCheck, pa.Array], int]] = {
    "between": _count_outside,
    "in_set": _count_other_values,
    "matches": _count_not_matching,
    "freshness": _count_older,
}
"""Checks of single rows, by kind: a function that counts the values of a column that fail."""


def _count_false(passed: pa.Array) -> int:
    return int(pc.sum(pc.invert(passed)).as_py() or 0)


def _try_check(check: QualityCheck, column: pa.Array) -> None:
    """Try a check on a column. Raises RefusedError for arguments that are not of its type."""
    try:
        _COUNT_FAILURES[check.kind](check, column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, ValueError) as error:
        raise RefusedError(f"The check {check.text}: {error}") from error


def _value(text: str, dtype: pa.DataType) -> pa.Scalar:
    value = json.loads(text) if text.startswith('"') else text
    return pa.scalar(value).cast(pa.float64() if pa.types.is_floating(dtype) else dtype)
