"""Keys as Arrow tables of a key's columns: nulls and duplicates among them, and SQL that looks them up."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.model.schemas.nested_types import is_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Key = tuple[Any, ...]

MAX_LISTED = 1000
"""Values of one IN list."""
_RANGE_RATIO = 2
"""Integers are looked up as a range which has up to so many times as many numbers as there are integers."""
_HASH_MASK = 2**64 - 1
_MIN_LITERAL = -(2**63)
"""The integer that SQL has no plain literal of."""


def first_null(keys: pa.Table) -> str | None:
    """Return the first column that has a null; None where there is none."""
    return next((name for name in keys.column_names if keys.column(name).null_count), None)


def first_duplicate(keys: pa.Table) -> Key | None:
    """Return a key that a table has twice, the first one in its order; None where all keys are different."""
    names = keys.column_names
    if keys.num_rows < 2:
        return None
    if len(names) == 1 and len(pc.unique(keys.column(0))) == keys.num_rows:
        return None
    counts = keys.group_by(names, use_threads=False).aggregate([([], "count_all")])
    return first_key(counts.filter(pc.greater(counts.column("count_all"), 1)).select(names))


def first_key(keys: pa.Table) -> Key | None:
    """Return the first key of a table; None for an empty one."""
    return tuple(column[0].as_py() for column in keys.columns) if keys.num_rows else None


def matching_keys(keys: pa.Table, among: pa.Table) -> pa.Table:
    """Return the rows of `keys` whose key is in `among`. Both have the same columns, in the same order."""
    if not keys.num_rows or not among.num_rows:
        return keys.slice(0, 0)
    if keys.num_columns == 1:
        return keys.filter(pc.is_in(keys.column(0), value_set=among.column(0).combine_chunks()))
    return keys.join(among, keys.column_names, join_type="left semi", use_threads=False).select(keys.column_names)


def other_keys(keys: pa.Table, among: pa.Table) -> pa.Table:
    """Return the rows of `keys` whose key is not in `among`. Both have the same columns, in the same order."""
    if keys.num_columns == 1:
        return keys.filter(pc.invert(pc.is_in(keys.column(0), value_set=among.column(0).combine_chunks())))
    return keys.join(among, keys.column_names, join_type="left anti", use_threads=False).select(keys.column_names)


def key_tuples(keys: pa.Table) -> list[Key]:
    """Return keys as tuples that can be compared: numbers stand for dates and timestamps."""
    return list(zip(*(_comparable(column).to_pylist() for column in keys.columns), strict=True))


def key_hashes(keys: pa.Table) -> NDArray[np.uint64]:
    """Return a hash of each key: equal ones for equal keys, in this process. Those of one integer are different."""
    type_ = keys.column(0).type
    if keys.num_columns == 1 and (pa.types.is_integer(type_) or _is_date_or_time(type_)):
        return np.asarray(_comparable(keys.column(0))).astype(np.uint64, casting="unsafe")
    return np.fromiter((hash(values) & _HASH_MASK for values in key_tuples(keys)), np.uint64, keys.num_rows)


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(_integer_type(column.type)) if _is_date_or_time(column.type) else column


def _integer_type(type_: pa.DataType) -> pa.DataType:
    """Return the type that a date or timestamp is counted in."""
    return pa.int32() if pa.types.is_date32(type_) else pa.int64()


def is_dense(keys: pa.Table) -> bool:
    """Return whether keys are integers next to each other, as those of a counter, which one range has."""
    if keys.num_columns > 1 or not keys.num_rows or not pa.types.is_integer(keys.column(0).type):
        return False
    least, most = _bounds(keys.column(0))
    return bool(most - least < _RANGE_RATIO * keys.num_rows)


def lookup_filter(keys: pa.Table, columns: Sequence[str]) -> str:
    """Return SQL that these columns have values of `keys`: a condition that all rows with one of the keys meet."""
    if keys.num_rows > 1 and is_dense(keys):
        least, most = map(_integer_literal, _bounds(keys.column(0)))
        return f"`{columns[0]}` BETWEEN {least} AND {most}"
    return " AND ".join(
        f"`{column}` IN ({', '.join(dict.fromkeys(_literals(keys.column(column))))})" for column in columns
    )


def _bounds(column: pa.ChunkedArray) -> tuple[int, int]:
    """Return the least and the greatest of some integers."""
    bounds = pc.min_max(column).as_py()
    return bounds["min"], bounds["max"]


def has_literals(type_: pa.DataType) -> bool:
    """Return whether values of a type can be looked up by `lookup_filter`; others are found by a scan."""
    if pa.types.is_timestamp(type_):
        return type_.tz is None or _TIME_ZONE.fullmatch(type_.tz) is not None
    return not pa.types.is_decimal(type_) or type_.scale >= 0


_TIME_ZONE = re.compile(r"[A-Za-z0-9_+/:-]{1,64}")
_UNITS = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}


def _literals(column: pa.ChunkedArray) -> list[str]:
    """Return a column's values as literals of SQL; a text or bytes can contain nothing that ends its literal."""
    type_, values = column.type, _comparable(column).to_pylist()
    if pa.types.is_boolean(type_):
        return [str(value).lower() for value in values]
    if is_text(type_):
        return ["'" + value.replace("'", "''") + "'" for value in values]
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_) or pa.types.is_fixed_size_binary(type_):
        return [f"X'{value.hex()}'" for value in values]
    if pa.types.is_decimal(type_):
        return [f"arrow_cast('{value:f}', 'Decimal128({type_.precision}, {type_.scale})')" for value in values]
    if _is_date_or_time(type_):
        bits, name = _integer_type(type_).bit_width, _time_name(type_)
        return [f"arrow_cast(arrow_cast('{value}', 'Int{bits}'), '{name}')" for value in values]
    return [_integer_literal(value) for value in values]


def _integer_literal(value: int) -> str:
    """Return a plain literal, which Lance reads several times faster than a cast."""
    return str(value) if value > _MIN_LITERAL else f"arrow_cast('{value}', 'Int64')"


def _is_date_or_time(type_: pa.DataType) -> bool:
    return bool(pa.types.is_date(type_) or pa.types.is_timestamp(type_))


def _time_name(type_: pa.DataType) -> str:
    """Return the name by which DataFusion's arrow_cast has the type of a date or timestamp."""
    if pa.types.is_date(type_):
        return f"Date{type_.bit_width}"
    zone = "None" if type_.tz is None else f'Some("{type_.tz}")'
    return f"Timestamp({_UNITS[type_.unit]}, {zone})"
