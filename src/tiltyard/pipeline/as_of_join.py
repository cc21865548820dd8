"""Join rows with those of another table as they were at a moment: features for training, without a look ahead.

Each row of the left side gets the last row of the right side that has its keys and is not after its time. Rows of both
sides are put in one order, within parts of the time, so that one key of most rows is not the work of one task; what a
part has not found itself is carried from the parts before it. No row is compared with all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError
from pyspark.sql import functions as F  # noqa: N812  # Spark's own custom
from pyspark.sql import types
from pyspark.sql.window import Window

from tiltyard.model.text.sql_text import quote_identifier

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Direction = Literal["backward", "forward"]

TIME_PARTS = 32
"""Parts of the time, each with about as many rows."""
_QUANTILE_ACCURACY = 1000
_TIME_TYPES = (types.TimestampType, types.TimestampNTZType, types.DateType, types.NumericType)
_WITHOUT_ORDER = ("map<", "variant")


@dataclass(frozen=True, slots=True)
class AsOf:
    """Which row of the right side a row of the left side gets.

    `on` are the keys, of one name and type on both sides. `backward` is the last row that is not after the left row's
    time, `forward` the first one that is not before it; without `allow_exact`, one of another time. A row that is
    further away than `tolerance` (a timedelta, or a number where times are numbers) is none. Of several rows of one key
    and time the largest in its columns, in their order, is taken.
    """

    on: Sequence[str]
    left_time: str
    right_time: str
    tolerance: timedelta | float | None = None
    direction: Direction = "backward"
    allow_exact: bool = True
    suffix: str = ""


def join_as_of(left: DataFrame, right: DataFrame, how: AsOf) -> DataFrame:
    """Return the left side's rows, each with the columns of its row of the right side, null where there is none.

    Keys are there once; `suffix` is added to names of the right side that the left side has, too. The times are read at
    once, to find the parts; the rows when the result is. Raises InvalidInputError, TableColumnNotFoundError.
    """
    _check_columns(left, right, how)
    right_names = _right_names(left, right, how)
    events = _left_events(left, how).unionByName(_right_events(right, how), allowMissingColumns=True)
    events = events.withColumn("part", _part_of(events))
    is_forward = how.direction == "forward"
    order = F.desc_nulls_first if is_forward else F.asc_nulls_first
    is_behind = F.col("is_left") if how.allow_exact else ~F.col("is_left")
    window = Window.partitionBy("keys", "part").orderBy(order("time"), is_behind.asc(), F.asc("ties"))
    found = F.last("right", ignorenulls=True).over(window.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    ordered = events.withColumn("found", found).withColumn("position", F.row_number().over(window))

    lasts = ordered.groupBy("keys", "part").agg(F.max_by("found", "position").alias("last"))
    before = Window.partitionBy("keys").orderBy(order("part")).rowsBetween(Window.unboundedPreceding, -1)
    carried = lasts.select(
        F.col("keys").alias("its_keys"),
        F.col("part").alias("its_part"),
        F.last("last", ignorenulls=True).over(before).alias("carried"),
    )
    is_of_part = F.col("keys").eqNullSafe(F.col("its_keys")) & (F.col("part") == F.col("its_part"))
    joined = ordered.where("is_left").join(carried, is_of_part, "left")
    match = F.when(F.col("time").isNotNull(), F.coalesce("found", "carried"))
    if how.tolerance is not None:
        match = F.when(_distance(match, how) <= F.lit(how.tolerance), match)
    joined = joined.select("left", match.alias("right"))
    return joined.select(
        *(F.col("left").getField(name).alias(name) for name in left.columns),
        *(F.col("right").getField(name).alias(title) for name, title in right_names.items()),
    )


def _left_events(frame: DataFrame, how: AsOf) -> DataFrame:
    return frame.select(*_key_and_time(how.on, how.left_time), F.lit(True).alias("is_left"), _row(frame).alias("left"))


def _right_events(frame: DataFrame, how: AsOf) -> DataFrame:
    """Return the rows that can be found: those that have all keys and a time."""
    found = frame
    for name in (*how.on, how.right_time):
        found = found.where(_column(name).isNotNull())
    ordered = [field.name for field in frame.schema if not any(sign in _type(field) for sign in _WITHOUT_ORDER)]
    return found.select(
        *_key_and_time(how.on, how.right_time),
        F.lit(False).alias("is_left"),
        _row(frame).alias("right"),
        F.struct(*map(_column, ordered)).alias("ties"),
    )


def _key_and_time(on: Sequence[str], time: str) -> list[Column]:
    keys = F.struct(*(_column(name).alias(f"key{number}") for number, name in enumerate(on)))
    return [keys.alias("keys"), _column(time).alias("time")]


def _row(frame: DataFrame) -> Column:
    return F.struct(*map(_column, frame.columns))


def _column(name: str) -> Column:
    return F.col(quote_identifier(name))


def _part_of(events: DataFrame) -> Column:
    """Return the number of the part that a row's time is in. The bounds are fixed here: all of a plan has the same."""
    shares = [number / TIME_PARTS for number in range(1, TIME_PARTS)]
    bounds = events.select(F.percentile_approx("time", shares, _QUANTILE_ACCURACY)).head()
    part: Column = F.lit(0)
    for bound in sorted(set(bounds[0] or ())) if bounds is not None else ():
        part = part + F.when(F.col("time") >= F.lit(bound), 1).otherwise(0)
    return part


def _distance(match: Column, how: AsOf) -> Column:
    times = F.col("left").getField(how.left_time), match.getField(how.right_time)
    earlier, later = times if how.direction == "forward" else times[::-1]
    return later - earlier


def _right_names(left: DataFrame, right: DataFrame, how: AsOf) -> dict[str, str]:
    """Return the names in the result of the right side's columns. Raises InvalidInputError for names that are taken."""
    names: dict[str, str] = {}
    taken = set(left.columns)
    for name in right.columns:
        if name not in how.on:
            names[name] = title = f"{name}{how.suffix}" if name in left.columns else name
            if title in taken:
                raise InvalidInputError(
                    f"Both sides have a column {title}: give a suffix for those of the right side, as suffix='_right'."
                )
            taken.add(title)
    return names


def _check_columns(left: DataFrame, right: DataFrame, how: AsOf) -> None:
    """Raise TableColumnNotFoundError, InvalidInputError for columns that cannot be joined."""
    for side, frame, time in (("left", left, how.left_time), ("right", right, how.right_time)):
        if len(set(frame.columns)) < len(frame.columns):
            raise InvalidInputError(f"Two columns of the {side} side have one name: rename one.")
        for name in (*how.on, time):
            if name not in frame.columns:
                raise TableColumnNotFoundError(
                    f"The {side} side has no column {name}: it has {', '.join(frame.columns)}."
                )
        if not isinstance(frame.schema[time].dataType, _TIME_TYPES):
            raise InvalidInputError(f"{time} is {_type(frame.schema[time])}: times are timestamps, dates or numbers.")
    for here, there in (*((name, name) for name in how.on), (how.left_time, how.right_time)):
        kinds = _type(left.schema[here]), _type(right.schema[there])
        if kinds[0] != kinds[1]:
            raise InvalidInputError(f"{here} is {kinds[0]} on the left, {there} {kinds[1]} on the right: cast one.")
        if any(sign in kinds[0] for sign in _WITHOUT_ORDER):
            raise InvalidInputError(f"{here} is {kinds[0]}, which cannot be compared: choose another key.")
    _check_tolerance(left.schema[how.left_time].dataType, how)


def _check_tolerance(kind: types.DataType, how: AsOf) -> None:
    tolerance = how.tolerance
    if tolerance is None:
        return
    is_number = isinstance(kind, types.NumericType)
    expected = (int, float) if is_number else timedelta
    if isinstance(tolerance, bool) or not isinstance(tolerance, expected):
        raise InvalidInputError(
            f"tolerance: {how.left_time} is {kind.simpleString()}: give a {'number' if is_number else 'timedelta'}."
        )
    is_below_0 = tolerance < timedelta(0) if isinstance(tolerance, timedelta) else not tolerance >= 0  # a NaN, too
    if is_below_0:
        raise InvalidInputError("tolerance is below 0: give how far away a row may be.")


def _type(field: types.StructField) -> str:
    return field.dataType.simpleString()
