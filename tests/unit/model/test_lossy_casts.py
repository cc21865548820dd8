"""Casts that pyarrow makes, and that lose a value: each is refused, and what is no loss passes."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from tiltyard.model.schemas.nested_types import cast_array

NOON = datetime.fromisoformat("2020-01-01T12:00")
MIDNIGHT = datetime.fromisoformat("2020-01-01T00:00")
PAIRS = pa.map_(pa.string(), pa.float64())
Case = tuple[pa.Array, pa.DataType]

LOSSES: list[Case] = [
    (pa.array([1.0, 1e300]), pa.float32()),
    (pa.array([1e6]), pa.float16()),
    (pa.array([70000]), pa.float16()),
    (pa.array([2049]), pa.float16()),
    (pa.array([None, Decimal("1e39")], pa.decimal256(50, 0)), pa.float32()),
    (pa.array([0.5, 0.25]), pa.decimal128(5, 1)),
    (pa.array([MIDNIGHT, NOON]), pa.date32()),
    (pa.array([NOON.replace(tzinfo=UTC)]), pa.date32()),
    (pa.array([NOON]), pa.date64()),
    (pa.array([[1.0], None, [2.0, 1e300]]), pa.list_(pa.float32())),
    (pa.array([[1.0, 1e300]], pa.list_(pa.float64(), 2)), pa.list_(pa.float32(), 2)),
    (pa.array([{"a": {"b": 1e300}}]), pa.struct([("a", pa.struct([("b", pa.float32())]))])),
    (pa.array([[("k", 1.0)], [("k", 1e300)]], PAIRS), pa.map_(pa.string(), pa.float32())),
    (pa.array([1e300, 1.0]).dictionary_encode(), pa.float32()),
    (pa.array(["1", "1e300"]), pa.float32()),
    (pa.array(["1e999"], pa.large_string()), pa.float64()),
    (pa.array([1, None, 2]), pa.bool_()),
    (pa.array([0.5]), pa.bool_()),
    (pa.array([NOON]), pa.time64("us")),
    (pa.array([[1], [2]]), pa.list_(pa.bool_())),
]
NO_LOSSES: list[Case] = [
    (pa.array([0.1, float("inf"), float("-inf"), float("nan"), None]), pa.float32()),
    (pa.array([2048, None]), pa.float16()),
    (pa.array([Decimal("1.5"), Decimal("0.1"), None]), pa.float64()),
    (pa.array([0.1, 12.5, None]), pa.decimal128(5, 1)),
    (pa.array([MIDNIGHT, None]), pa.date32()),
    (pa.array([date(2020, 1, 1)]), pa.timestamp("us")),
    (pa.array([[1.0], None, [2.0, None], []]), pa.list_(pa.float32())),
    (pa.array([[1e300], [1.0], [2.0]]).slice(1), pa.list_(pa.float32())),
    (pa.array([[("k", 1e300)], [("k", 1.0)]], PAIRS).slice(1), pa.map_(pa.string(), pa.float32())),
    (pa.array([{"a": 1e300}, {"a": 1.0}]).slice(1), pa.struct([("a", pa.float32()), ("b", pa.int8())])),
    (pa.array([], pa.float64()), pa.float16()),
    (pa.array(["1e30", "inf", "-Infinity", None]), pa.float32()),
    (pa.array([0, 1, None]), pa.bool_()),
    (pa.array([1.0, 0.0]), pa.bool_()),
    (pa.array([datetime.fromisoformat("1970-01-01T12:00"), None]), pa.time64("us")),
]


@pytest.mark.parametrize("array, wanted", LOSSES, ids=lambda value: str(getattr(value, "type", value)))
def test_cast_that_loses_a_value_is_refused(array: pa.Array, wanted: pa.DataType) -> None:
    array.cast(wanted)  # pyarrow says nothing
    with pytest.raises(pa.ArrowInvalid, match="would become"):
        cast_array(array, wanted)


@pytest.mark.parametrize("array, wanted", NO_LOSSES, ids=lambda value: str(getattr(value, "type", value)))
def test_cast_that_loses_nothing_passes(array: pa.Array, wanted: pa.DataType) -> None:
    assert repr(cast_array(array, wanted).to_pylist()) == repr(array.cast(wanted).to_pylist())
