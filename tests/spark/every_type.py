"""A table with a column of every type that Lance stores and Spark can carry, with the edges of its values."""

from __future__ import annotations

import decimal
from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
NEW, LESS_OLD, OLD = (datetime(year, 1, 1, tzinfo=UTC).replace(tzinfo=None) for year in (2026, 1950, 1900))
POINT = pa.struct([("x", pa.float64()), ("tags", pa.list_(pa.string()))])
VECTOR = pa.list_(pa.float32(), 2)
HALVES = pa.list_(pa.float16(), 2)
DEEP = pa.struct(
    [
        ("vector", VECTOR),
        ("price", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("inner", pa.struct([("raw", pa.large_binary()), ("halves", HALVES)])),
        ("color", pa.dictionary(pa.int8(), pa.string())),
    ]
)
FULL = {
    "vector": [1.0, 2.5],
    "price": decimal.Decimal("9.99"),
    "at": NOW,
    "inner": {"raw": b"\0\xff", "halves": [np.float16(0.5), np.float16(-1)]},
    "color": "red",
}
HOLLOW = dict.fromkeys(FULL)
TYPES: Mapping[str, tuple[pa.DataType, list[Any]]] = {
    "bool": (pa.bool_(), [True, False]),
    "int8": (pa.int8(), [-128, 127]),
    "int16": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "uint8": (pa.uint8(), [0, 255]),
    "uint16": (pa.uint16(), [0, 65_535]),
    "uint32": (pa.uint32(), [0, 2**32 - 1]),
    "uint64": (pa.uint64(), [0, 2**64 - 1]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "float16": (pa.float16(), [np.float16(0.5), np.float16(-2)]),
    "float32": (pa.float32(), [0.5, float("-inf")]),
    "float64": (pa.float64(), [0.1, float("inf")]),
    "vector16": (pa.list_(pa.float16(), 2), [[np.float16(1), np.float16(2)], [np.float16(3), np.float16(4)]]),
    "vector32": (pa.list_(pa.float32(), 3), [[1.0, 2.0, 3.5], [4.0, 5.0, 6.0]]),
    "vector64": (pa.list_(pa.float64(), 2), [[0.1, 0.2], [0.3, 0.4]]),
    "vector_int8": (pa.list_(pa.int8(), 2), [[1, -2], [3, 4]]),
    "vector_uint8": (pa.list_(pa.uint8(), 2), [[0, 255], [3, 4]]),
    "vector_bool": (pa.list_(pa.bool_(), 3), [[True, False, True], [False, False, True]]),
    "vectors": (pa.list_(VECTOR), [[[1.0, 2.0], [3.0, 4.0]], []]),
    "string": (pa.string(), ["", "Grüße"]),
    "large_string": (pa.large_string(), ["a", "b"]),
    "binary": (pa.binary(), [b"", b"\0\1"]),
    "large_binary": (pa.large_binary(), [b"x", b"y"]),
    "fixed_binary": (pa.binary(3), [b"abc", b"def"]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["red", "red"]),
    "dictionary_large": (pa.dictionary(pa.int16(), pa.large_string()), ["red", "blue"]),
    "decimal_small": (pa.decimal128(5, 2), [decimal.Decimal("-999.99"), decimal.Decimal("0.01")]),
    "decimals": (pa.list_(pa.decimal128(20, 3)), [[decimal.Decimal("1.125"), None], []]),
    "decimal": (pa.decimal128(38, 10), [decimal.Decimal("1.0000000001"), decimal.Decimal(-7)]),
    "date32": (pa.date32(), [date(1969, 1, 1), date(2100, 12, 31)]),
    "date64": (pa.date64(), [date(1969, 1, 1), date(2100, 12, 31)]),
    "time32": (pa.time32("ms"), [time(0, 0), time(23, 59, 59, 999_000)]),
    "time64": (pa.time64("us"), [time(0, 0), time(23, 59, 59, 999_999)]),
    "timestamp": (pa.timestamp("us"), [NOW.replace(tzinfo=None), OLD]),
    "timestamp_s": (pa.timestamp("s"), [NEW, OLD]),
    "timestamp_ms": (pa.timestamp("ms"), [NEW, OLD]),
    "timestamp_ns": (pa.timestamp("ns"), [NEW, LESS_OLD]),
    "timestamp_utc": (pa.timestamp("us", "UTC"), [NOW, NOW - timedelta(days=30_000)]),
    "timestamp_zone": (pa.timestamp("us", "Europe/Berlin"), [NOW, NOW + timedelta(days=180)]),
    "duration": (pa.duration("us"), [timedelta(microseconds=1), timedelta(days=-3)]),
    "list": (pa.list_(pa.int32()), [[1, None], []]),
    "lists": (pa.list_(pa.list_(pa.int64())), [[[1], [], None], []]),
    "large_list": (pa.large_list(pa.string()), [["a"], ["b", "c"]]),
    "struct": (POINT, [{"x": 1.5, "tags": ["a", None]}, {"x": None, "tags": None}]),
    "structs": (pa.list_(POINT), [[{"x": 1.5, "tags": []}], []]),
    "deep": (DEEP, [FULL, HOLLOW]),
    "deeps": (pa.list_(DEEP), [[FULL, None, HOLLOW], []]),
}


def every_type() -> pa.Table:
    """Three rows; the last is all nulls."""
    return pa.table({key: pa.array([*values, None], dtype) for key, (dtype, values) in TYPES.items()})
