"""Checks before publishing: what the new rows must be like, measured in tasks, judged by the driver.

    rows >= 1000        rejected <= 10      not_null(id)      between(score, 0, 1)      unique(id)      unique(a, b)

`unique` looks at the table with the new rows in it. Rows with a null in the key are never equal to others.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.pipeline.driver.environment import set_in_task
from tiltyard.pipeline.spark_tasks import task_variables
from tiltyard.pipeline.table_location import TableLocation
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.writing.fragments import FragmentRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COUNT_CHECK = re.compile(r"(rows|rejected) *(<=|>=|==|<|>) *(\d+)")
_FUNCTION_CHECK = re.compile(r"(not_null|between|unique)\((.+)\)")
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le, ">=": operator.ge, "==": operator.eq, "<": operator.lt, ">": operator.gt,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class QualityCheck:
    """One check: its text, its kind, and what stands in its brackets (or sign and number)."""

    text: str
    kind: str
    given: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it looks at."""
        return {"not_null": self.given, "between": self.given[:1], "unique": self.given}.get(self.kind, ())


def parse_check(text: str) -> QualityCheck:
    """A check from its text. Raises RefusedError."""
    if found := _COUNT_CHECK.fullmatch(text.strip()):
        return QualityCheck(text, found[1], (found[2], found[3]))
    if found := _FUNCTION_CHECK.fullmatch(text.strip()):
        given = tuple(part.strip() for part in found[2].split(","))
        if found[1] != "between" or len(given) == 3:
            return QualityCheck(text, found[1], given)
    raise RefusedError(
        f"'{text}' is no check: write rows >= 1000, rejected <= 10, not_null(id), between(score, 0, 1) or unique(id)."
    )


def validate_checks(checks: Sequence[QualityCheck], schema: pa.Schema) -> None:
    """Raise RefusedError for a check of a column that the table does not have, or bounds that it cannot have."""
    for check in checks:
        for name in check.columns:
            if name not in schema.names:
                raise RefusedError(f"The check {check.text}: there is no column '{name}'.")
            if check.kind == "unique" and pa.types.is_nested(schema.field(name).type):
                raise RefusedError(f"The check {check.text}: '{name}' is {schema.field(name).type}, no key.")
        if check.kind == "between":
            _bounds(check, schema.field(check.given[0]).type)


@dataclass(slots=True)
class CheckCounter:
    """What the checks found wrong in some rows: how many by the check's text."""

    checks: tuple[QualityCheck, ...]
    wrong: dict[str, int] = field(default_factory=dict)

    def look(self, batch: pa.RecordBatch) -> None:
        """Count what is wrong in a batch."""
        for check in self.checks:
            if check.kind == "not_null":
                bad = sum(batch.column(name).null_count for name in check.given)
            elif check.kind == "between":
                column = batch.column(check.given[0])
                low, high = _bounds(check, column.type)
                inside = pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))
                bad = pc.sum(pc.invert(inside)).as_py() or 0
            else:
                continue
            if bad:
                self.wrong[check.text] = self.wrong.get(check.text, 0) + bad


def find_failed_checks(
    checks: Sequence[QualityCheck], rows: int, rejected: int, wrong: Sequence[Mapping[str, int]]
) -> list[str]:
    """What fails, in words; [] if all is well. `unique` is judged elsewhere."""
    failed = []
    for check in checks:
        if check.kind in ("rows", "rejected"):
            number = rows if check.kind == "rows" else rejected
            if not _COMPARE[check.given[0]](number, int(check.given[1])):
                failed.append(f"{check.text}: {number} {check.kind}")
        elif count := sum(part.get(check.text, 0) for part in wrong):
            failed.append(f"{check.text}: {count} rows are not")
    return failed


def _bounds(check: QualityCheck, dtype: pa.DataType) -> tuple[pa.Scalar, pa.Scalar]:
    """The bounds, as the column's type. Raises RefusedError."""
    try:
        low, high = (_bound(text, dtype) for text in check.given[1:])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RefusedError(f"The check {check.text}: {error}") from error
    return low, high


def _bound(text: str, dtype: pa.DataType) -> pa.Scalar:
    plain = json.loads(text) if text.startswith('"') else text
    return pa.scalar(plain).cast(pa.float64() if pa.types.is_floating(dtype) else dtype)


_TASKS = 64


def count_duplicate_keys(
    spark: SparkSession, location: TableLocation, columns: Sequence[str], fresh: Sequence[str], version: int
) -> int:
    """How many keys are there more than once, in the fragments `fresh` and the table at `version` (0: none)."""
    old = [part.fragment_id for part in location.open(version).get_fragments()] if version else []
    tasks = [FragmentRows(location, files=part) for part in _split(fresh)]
    tasks += [FragmentRows(location, version, part) for part in _split(old)]
    if not tasks:
        return 0
    count = len(tasks)
    keys = spark.range(0, count, 1, count).mapInArrow(_read_keys(tasks, columns, task_variables(spark)), "k binary")
    found = keys.groupBy("k").count().where("count > 1").count()
    return int(found)


def _split(parts: Sequence[Any]) -> list[tuple[Any, ...]]:
    size = -(-len(parts) // _TASKS)
    return [tuple(parts[first : first + size]) for first in range(0, len(parts), size)] if parts else []


def _read_keys(tasks: Sequence[FragmentRows], columns: Sequence[str], variables: Mapping[str, str]) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_in_task(variables)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for keys in tasks[number].read(columns):
                    yield pa.record_batch([_to_binary(keys)], ["k"])

    return run


def _to_binary(keys: pa.RecordBatch) -> pa.Array:
    """Keys as bytes, without those that have a null. Two keys are the same bytes only if they are the same.

    Of several columns, each text but the last has its length before it.
    """
    valid = [column.is_valid() for column in keys.columns]
    keys = keys.filter(functools.reduce(pc.and_, valid))
    texts = [_to_text(column) for column in keys.columns]
    found = texts[-1]
    for text in reversed(texts[:-1]):
        length = pc.binary_length(text).cast(pa.string()).cast(pa.binary())
        found = pc.binary_join_element_wise(length, text, found, b":")
    return found


def _to_text(column: pa.Array) -> pa.Array:
    """Values as the bytes of their text; bytes as they are."""
    plain = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    return (column if plain else column.cast(pa.string())).cast(pa.binary())
