"""Evaluate checks of single rows on Arrow rows: the one evaluator of servers, jobs and tests.

Conditions in SQL are evaluated by Lance, as filters and computed columns are: over a dataset in memory, which has the
columns that the conditions read and nothing else. What they may call, the server has checked when they were declared.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.model.refusals import RefusedError

ROW_KINDS = ("not_null", "between", "in_set", "matches", "expect")
"""Kinds of checks that each row passes or fails by itself."""
_MAX_PLAIN_BYTES = 32 << 20
"""Bytes of the values of dictionaries that are made plain at a time."""
_AGE = re.compile(r"(\d{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class RowCheck(Protocol):
    """What the evaluator takes of a check (`checks.QualityCheck`)."""

    @property
    def text(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def arguments(self) -> tuple[str, ...]: ...
    def columns_of(self, schema: pa.Schema) -> tuple[str, ...]: ...


def failing_rows(checks: Sequence[RowCheck], rows: pa.Table) -> list[pa.ChunkedArray]:
    """Return for each check of single rows, or of `freshness`, which rows fail it (are too old): booleans, no nulls.

    Raises RefusedError for a condition that cannot be computed on these rows.
    """
    read = rows.select(list(dict.fromkeys(name for check in checks for name in check.columns_of(rows.schema))))
    step = _rows_at_once(read)
    if step >= read.num_rows:
        return _failing_rows(checks, _without_dictionaries(read))
    parts = [
        _failing_rows(checks, _without_dictionaries(read.slice(start, step))) for start in range(0, read.num_rows, step)
    ]
    columns = zip(*parts, strict=True)
    return [pa.chunked_array([chunk for part in column for chunk in part.chunks]) for column in columns]


def _failing_rows(checks: Sequence[RowCheck], rows: pa.Table) -> list[pa.ChunkedArray]:
    expected = iter(_failing_expectations([check for check in checks if check.kind == "expect"], rows))
    return [next(expected) if check.kind == "expect" else _FAILING[check.kind](check, rows) for check in checks]


def _rows_at_once(rows: pa.Table) -> int:
    """Return of how many rows the values of dictionaries are made plain at a time, which repeat what they are of."""
    longest: int = 1
    for column in rows.columns:
        if not pa.types.is_dictionary(column.type) or not _has_length(column.type.value_type):
            continue
        lengths = [pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0 for chunk in column.chunks]
        longest += max(lengths, default=0)
    return max(1, _MAX_PLAIN_BYTES // longest)


def _has_length(dtype: pa.DataType) -> bool:
    kinds = pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary
    return any(is_kind(dtype) for is_kind in kinds)


def _without_dictionaries(rows: pa.Table) -> pa.Table:
    """Return rows with plain values in place of dictionaries, which few functions of Arrow take."""
    for index, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            plain = pa.field(field.name, field.type.value_type)
            rows = rows.set_column(index, plain, rows.column(index).cast(plain.type))
    return rows


def split_failing(checks: Sequence[RowCheck], rows: pa.Table) -> tuple[pa.Table, list[tuple[str, dict[str, Any]]]]:
    """Return the rows that pass all checks; and each other one, with the text of the first check that it fails.

    The rows themselves are returned where all pass. Raises RefusedError.
    """
    if not checks or not rows.num_rows:
        return rows, []
    masks = failing_rows(checks, rows)
    failing = functools.reduce(pc.or_, masks)
    if not pc.any(failing).as_py():
        return rows, []
    reasons: dict[int, str] = {}
    for check, mask in zip(checks, masks, strict=True):
        for index in pc.indices_nonzero(mask).to_pylist():
            reasons.setdefault(index, check.text)
    failed = rows.filter(failing).to_pylist()
    ordered = [reasons[index] for index in sorted(reasons)]
    return rows.filter(pc.invert(failing)), list(zip(ordered, failed, strict=True))


def check_arguments(check: RowCheck, schema: pa.Schema) -> None:
    """Try a check on rows of no values. Raises RefusedError for arguments that are not of its columns' types."""
    try:
        if check.kind == "expect":
            _check_condition(check, schema)
        else:
            names = check.arguments if check.kind == "not_null" else check.arguments[:1]
            failing_rows([check], pa.table({name: pa.nulls(1, schema.field(name).type) for name in names}))
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, ValueError) as error:
        raise RefusedError(f"The check {check.text}: {error}") from error


def expected_columns(schema: pa.Schema, condition: str) -> tuple[str, ...]:
    """Return the columns that a condition in SQL may read: those whose names are words of it, in any case."""
    return tuple(
        name for name in schema.names if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", condition, re.IGNORECASE)
    )


def first_failing(rows: pa.Table, failing: pa.ChunkedArray, columns: Sequence[str]) -> dict[str, Any]:
    """Return the values that the first failing row has in some columns."""
    return dict(rows.select(list(columns)).slice(pc.index(failing, True).as_py(), 1).to_pylist()[0])


def _check_condition(check: RowCheck, schema: pa.Schema) -> None:
    names = expected_columns(schema, check.arguments[0])
    if not names:
        raise RefusedError(f"The check {check.text}: its condition names no column of the table.")
    _compute([check], pa.table({name: pa.nulls(1, schema.field(name).type) for name in names}))


def _failing_expectations(checks: Sequence[RowCheck], rows: pa.Table) -> list[pa.ChunkedArray]:
    if not checks or not rows.num_rows:
        return [pa.chunked_array([], pa.bool_())] * len(checks)
    return [pc.fill_null(pc.invert(column), False) for column in _compute(checks, rows).columns]


def _compute(checks: Sequence[RowCheck], rows: pa.Table) -> pa.Table:
    """Return the values of conditions, true, false or null, a column for each. Raises RefusedError."""
    rows = _without_dictionaries(rows)
    import lance  # noqa: PLC0415  # most checks do without

    read = dict.fromkeys(name for check in checks for name in expected_columns(rows.schema, check.arguments[0]))
    plain = pa.table({name: rows.column(name) for name in read})  # without what the schema declares of columns
    conditions = {f"condition_{number}": check.arguments[0] for number, check in enumerate(checks)}
    try:
        dataset = lance.write_dataset(plain, f"memory://{uuid4().hex}")
        values = dataset.scanner(columns=conditions).to_table()
    except (ValueError, RuntimeError, OSError) as error:
        if len(checks) > 1:
            return pa.table(
                {name: _compute([check], rows).column(0) for name, check in zip(conditions, checks, strict=True)}
            )
        raise RefusedError(f"The check {checks[0].text}: its condition cannot be computed: {_reason(error)}") from error
    for check, column in zip(checks, values.columns, strict=True):
        if not pa.types.is_boolean(column.type):
            raise RefusedError(f"The check {check.text}: it is {column.type}, no condition.")
    return values


def _reason(error: Exception) -> str:
    """Return the first line of an error of Lance, without the place in its source."""
    return re.sub(r",? *(rust/|/|<)\S*:\d+(:\d+)?.*$", "", str(error).splitlines()[0]).strip().rstrip(".") + "."


def _null_rows(check: RowCheck, rows: pa.Table) -> pa.ChunkedArray:
    failing = rows.column(check.arguments[0]).is_null()
    for name in check.arguments[1:]:
        failing = pc.or_(failing, rows.column(name).is_null())
    return failing


def _rows_outside(check: RowCheck, rows: pa.Table) -> pa.ChunkedArray:
    column = rows.column(check.arguments[0])
    low, high = (_value(text, column.type) for text in check.arguments[1:])
    return _not(pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high)))


def _rows_of_other_values(check: RowCheck, rows: pa.Table) -> pa.ChunkedArray:
    column = rows.column(check.arguments[0])
    values = pa.array([_value(text, column.type).as_py() for text in check.arguments[1:]], column.type)
    return _not(pc.or_(pc.is_in(column, values), pc.is_null(column)))


def _rows_not_matching(check: RowCheck, rows: pa.Table) -> pa.ChunkedArray:
    pattern = check.arguments[1]
    pattern = json.loads(pattern) if pattern.startswith('"') else pattern
    return _not(pc.match_substring_regex(rows.column(check.arguments[0]), f"^(?:{pattern})$"))


def _older_rows(check: RowCheck, rows: pa.Table) -> pa.ChunkedArray:
    column, age = rows.column(check.arguments[0]), _AGE.fullmatch(check.arguments[1])
    if age is None:
        raise ValueError(f"'{check.arguments[1]}' is no age: write 30s, 15m, 6h or 2d")
    if not pa.types.is_temporal(column.type) or pa.types.is_time(column.type) or pa.types.is_duration(column.type):
        raise ValueError(f"'{check.arguments[0]}' is {column.type}, neither a date nor a point in time")
    seconds = time.time() - int(age[1]) * _SECONDS[age[2]]
    since = pa.scalar(int(seconds * 1_000_000), pa.timestamp("us", getattr(column.type, "tz", None)))
    return pc.invert(pc.fill_null(pc.greater_equal(column.cast(since.type), since), False))


_FAILING: Mapping[str, Callable[[RowCheck, pa.Table], pa.ChunkedArray]] = {
    "not_null": _null_rows,
    "between": _rows_outside,
    "in_set": _rows_of_other_values,
    "matches": _rows_not_matching,
    "freshness": _older_rows,
}


def _not(passed: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return which rows fail; a null passes."""
    return pc.fill_null(pc.invert(passed), False)


def _value(text: str, dtype: pa.DataType) -> pa.Scalar:
    value = json.loads(text) if text.startswith('"') else text
    return pa.scalar(value).cast(pa.float64() if pa.types.is_floating(dtype) else dtype)
