"""Check new rows before they are published: counts are taken in tasks, and the driver decides.

    rows >= 1000        rejected <= 10      not_null(id)      between(score, 0, 1)      unique(id)      unique(a, b)

`unique` covers the table with the new rows in it: tasks read only the key columns, and a Spark aggregation counts them,
which spills and shuffles as needed. Keys that contain a null are never equal.
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

from tiltyard.pipeline.private_variables import set_task_variables
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
    """A check: its text, its kind, and its arguments (or operator and number)."""

    text: str
    kind: str
    arguments: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that it checks."""
        return {"not_null": self.arguments, "between": self.arguments[:1], "unique": self.arguments}.get(self.kind, ())


def parse_check(text: str) -> QualityCheck:
    """Parse a check. Raises RefusedError."""
    if match := _COUNT_CHECK.fullmatch(text.strip()):
        return QualityCheck(text, match[1], (match[2], match[3]))
    if match := _FUNCTION_CHECK.fullmatch(text.strip()):
        arguments = tuple(part.strip() for part in match[2].split(","))
        if match[1] != "between" or len(arguments) == 3:
            return QualityCheck(text, match[1], arguments)
    raise RefusedError(
        f"'{text}' is not a check: write rows >= 1000, rejected <= 10, not_null(id), between(score, 0, 1) "
        "or unique(id)."
    )


def validate_checks(checks: Sequence[QualityCheck], schema: pa.Schema) -> None:
    """Raise RefusedError for a check of a column that the table lacks, or with bounds that are not of its type."""
    for check in checks:
        for name in check.columns:
            if name not in schema.names:
                raise RefusedError(f"The check {check.text}: there is no column '{name}'.")
            if check.kind == "unique" and pa.types.is_nested(schema.field(name).type):
                raise RefusedError(f"The check {check.text}: '{name}' is {schema.field(name).type}, no key.")
        if check.kind == "between":
            _bounds(check, schema.field(check.arguments[0]).type)


@dataclass(slots=True)
class CheckCounter:
    """Counts the rows that fail each check, by the check's text."""

    checks: tuple[QualityCheck, ...]
    failures: dict[str, int] = field(default_factory=dict)

    def count(self, batch: pa.RecordBatch) -> None:
        """Count the failures in a batch."""
        for check in self.checks:
            if check.kind == "not_null":
                bad = sum(batch.column(name).null_count for name in check.arguments)
            elif check.kind == "between":
                column = batch.column(check.arguments[0])
                low, high = _bounds(check, column.type)
                inside = pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))
                bad = pc.sum(pc.invert(inside)).as_py() or 0
            else:
                continue
            if bad:
                self.failures[check.text] = self.failures.get(check.text, 0) + bad


def find_failed_checks(
    checks: Sequence[QualityCheck], rows: int, rejected: int, failures: Sequence[Mapping[str, int]]
) -> list[str]:
    """Return a sentence for each failed check, except for `unique`."""
    failed = []
    for check in checks:
        if check.kind in ("rows", "rejected"):
            number = rows if check.kind == "rows" else rejected
            if not _COMPARE[check.arguments[0]](number, int(check.arguments[1])):
                failed.append(f"{check.text}: {number} {check.kind}")
        elif count := sum(counts.get(check.text, 0) for counts in failures):
            failed.append(f"{check.text}: {count} rows are not")
    return failed


def _bounds(check: QualityCheck, dtype: pa.DataType) -> tuple[pa.Scalar, pa.Scalar]:
    """Return the bounds, cast to the column's type. Raises RefusedError."""
    try:
        low, high = (_bound(text, dtype) for text in check.arguments[1:])
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RefusedError(f"The check {check.text}: {error}") from error
    return low, high


def _bound(text: str, dtype: pa.DataType) -> pa.Scalar:
    value = json.loads(text) if text.startswith('"') else text
    return pa.scalar(value).cast(pa.float64() if pa.types.is_floating(dtype) else dtype)


_MAX_SCAN_TASKS = 64


MAX_KEYS_IN_DRIVER = 1_000_000
"""Up to so many keys are counted in this process: starting Spark's tasks takes longer."""


def count_duplicate_keys(
    spark: SparkSession | None, location: TableLocation, columns: Sequence[str], fresh: Sequence[str], version: int
) -> int:
    """Count the keys that occur more than once in the fragments `fresh` and the table at `version` (0: none).

    Without a session they are counted in this process, whose memory then holds them.
    """
    committed = [part.fragment_id for part in location.open(version).get_fragments()] if version else []
    tasks = [FragmentRows(location, files=part) for part in _split(fresh)]
    tasks += [FragmentRows(location, version, part) for part in _split(committed)]
    if not tasks:
        return 0
    if spark is None:
        arrays = [_to_binary(batch) for task in tasks for batch in task.read(columns)]
        counts = pc.value_counts(pa.chunked_array(arrays, pa.binary())).field("counts")
        return int(pc.sum(pc.greater(counts, 1)).as_py() or 0)
    count = len(tasks)
    keys = spark.range(0, count, 1, count).mapInArrow(_read_keys(tasks, columns, task_variables(spark)), "k binary")
    duplicates = keys.groupBy("k").count().where("count > 1").count()
    return int(duplicates)


def _split(parts: Sequence[Any]) -> list[tuple[Any, ...]]:
    size = -(-len(parts) // _MAX_SCAN_TASKS)
    return [tuple(parts[first : first + size]) for first in range(0, len(parts), size)] if parts else []


def _read_keys(tasks: Sequence[FragmentRows], columns: Sequence[str], variables: Mapping[str, str]) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_task_variables(variables)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for keys in tasks[number].read(columns):
                    yield pa.record_batch([_to_binary(keys)], ["k"])

    return run


def _to_binary(keys: pa.RecordBatch) -> pa.Array:
    """Encode keys as bytes, equal only for equal keys; keys with a null are left out.

    Of several columns, each text but the last is preceded by its length.
    """
    valid = [column.is_valid() for column in keys.columns]
    keys = keys.filter(functools.reduce(pc.and_, valid))
    texts = [_to_text(column) for column in keys.columns]
    encoded = texts[-1]
    for text in reversed(texts[:-1]):
        length = pc.binary_length(text).cast(pa.string()).cast(pa.binary())
        encoded = pc.binary_join_element_wise(length, text, encoded, b":")
    return encoded


def _to_text(column: pa.Array) -> pa.Array:
    """Return values as the bytes of their text; binary values as they are."""
    is_binary = pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)
    return (column if is_binary else column.cast(pa.string())).cast(pa.binary())
