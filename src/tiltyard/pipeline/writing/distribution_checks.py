"""Check how the values of a column are distributed against the last run that checked it: `distribution(price, 0.1)`.

The mean and five quantiles may be as far from those of that run as a part of its spread, which is what lies between the
quantiles of 10 and 90 %; the share of nulls may differ by as much. Each commit keeps what was measured, and the first
run has nothing to compare with. Few values are measured in this process, exactly; many by Spark, whose quantiles are
those of ranks that are right to a ten-thousandth.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.change_feed.table_history import read_transactions
from tiltyard.pipeline.private_variables import set_task_variables
from tiltyard.pipeline.spark_tasks import task_variables
from tiltyard.pipeline.writing.fragments import FragmentRows
from tiltyard.pipeline.writing.key_checks import new_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tiltyard.contracts.checks import QualityCheck
    from tiltyard.pipeline.table_location import TableLocation
    from tiltyard.pipeline.writing.target_table import TargetTable

PROFILES_PROPERTY = "tiltyard.profiles"
"""The property of a Lance transaction that holds the measured profiles by column, as JSON."""
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
MAX_VERSIONS = 200
"""Versions in which the last run is searched: index builds, compactions and other writers come between two runs."""
_SPARK_ACCURACY = 10_000


class ColumnProfile(msgspec.Struct, frozen=True):
    """How the values of a column are distributed: their mean and QUANTILES, of those that are neither null nor NaN."""

    rows: int
    nulls: int
    mean: float | None = None
    quantiles: tuple[float, ...] = ()

    @property
    def null_share(self) -> float:
        """Return the share of rows without a value; 0 without rows."""
        return self.nulls / self.rows if self.rows else 0.0

    def metrics(self) -> dict[str, float]:
        """Return mean and quantiles by what sentences call them; none without a value."""
        if self.mean is None:
            return {}
        names = [f"{round(100 * quantile)} % quantile" for quantile in QUANTILES]
        return {"mean": self.mean, **dict(zip(names, self.quantiles, strict=True))}

    @property
    def spread(self) -> float:
        """Return what lies between the outer quantiles; where all values are one, its size, or 1 for zero."""
        return self.quantiles[-1] - self.quantiles[0] or abs(self.quantiles[0]) or 1.0


def measure(spark: SparkSession | None, location: TableLocation, column: str, fresh: Sequence[str]) -> ColumnProfile:
    """Measure a column in the fragments `fresh`; without a session in this process, whose memory then holds it."""
    tasks = new_rows(location, fresh)
    if not tasks:
        return ColumnProfile(0, 0)
    if spark is None:
        return _measure_here([_to_double(batch) for task in tasks for batch in task.read([column])])
    values = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(
        _read_values(tasks, column, task_variables(spark)), "v double"
    )
    quantiles = ", ".join(map(str, QUANTILES))
    row = values.selectExpr(
        "count(*) AS rows", "count(v) AS valid", "avg(v) AS mean",
        f"percentile_approx(v, array({quantiles}), {_SPARK_ACCURACY}) AS quantiles",
    ).collect()[0]  # fmt: skip
    return ColumnProfile(row.rows, row.rows - row.valid, row.mean, tuple(row.quantiles or ()))


def compare(check: QualityCheck, profile: ColumnProfile, last: ColumnProfile | None) -> str:
    """Return a sentence on what differs by more than the check allows, the farthest first; "" for nothing."""
    if last is None or not last.rows or not profile.rows:
        return ""
    tolerance = float(check.arguments[1])
    if abs(profile.null_share - last.null_share) > tolerance:
        return f"{check.text}: {profile.null_share:.3g} of the rows are null, and {last.null_share:.3g} in the last run"
    before, now = last.metrics(), profile.metrics()
    if not before or not now:
        return ""
    distances = {name: abs(now[name] - before[name]) / last.spread for name in before}
    name = max(distances, key=distances.__getitem__)
    if distances[name] <= tolerance:
        return ""
    return (
        f"{check.text}: the {name} is {now[name]:g}, and was {before[name]:g} in the last run, "
        f"{distances[name]:.3g} of its spread away"
    )


def find_last_profiles(target: TargetTable) -> dict[str, ColumnProfile]:
    """Return what the last runs have measured in the table, by column; of each column the newest."""
    profiles: dict[str, ColumnProfile] = {}
    if not target.base:
        return profiles
    dataset = target.table.dataset(target.base)
    for _, transaction in read_transactions(dataset, target.base - MAX_VERSIONS):
        for column, profile in _parse((transaction.transaction_properties or {}).get(PROFILES_PROPERTY)).items():
            profiles.setdefault(column, profile)
    return profiles


def to_properties(profiles: Mapping[str, ColumnProfile]) -> dict[str, str]:
    """Return the property of the commit that keeps the profiles; none without rows."""
    kept = {column: profile for column, profile in profiles.items() if profile.rows}
    return {PROFILES_PROPERTY: msgspec.json.encode(kept).decode()} if kept else {}


def _parse(text: str | None) -> dict[str, ColumnProfile]:
    """Return the profiles of a commit; none of an invalid property, which whoever writes the table can write."""
    if text is None:
        return {}
    try:
        profiles = msgspec.json.decode(text, type=dict[str, ColumnProfile])
    except (msgspec.MsgspecError, RecursionError):
        return {}
    return {name: each for name, each in profiles.items() if len(each.quantiles) in (0, len(QUANTILES))}


def _measure_here(parts: Sequence[pa.Array]) -> ColumnProfile:
    column = pa.chunked_array(parts, pa.float64())
    valid = column.drop_null()
    if not len(valid):
        return ColumnProfile(len(column), len(column))
    quantiles = pc.quantile(valid, list(QUANTILES), interpolation="lower")
    return ColumnProfile(len(column), len(column) - len(valid), pc.mean(valid).as_py(), tuple(quantiles.to_pylist()))


def _read_values(tasks: Sequence[FragmentRows], column: str, variables: Mapping[str, str]) -> Any:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        set_task_variables(variables)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for rows in tasks[number].read([column]):
                    yield pa.record_batch([_to_double(rows)], ["v"])

    return run


def _to_double(rows: pa.RecordBatch) -> pa.Array:
    """Return the first column as numbers, of times the seconds since 1970; what is no number is null."""
    column = rows.column(0)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    elif pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
        column = pc.divide(column.cast(pa.timestamp("us")).cast(pa.int64()).cast(pa.float64(), safe=False), 1e6)
    values = column.cast(pa.float64(), safe=False)
    return pc.if_else(pc.is_finite(values), values, pa.scalar(None, pa.float64()))
