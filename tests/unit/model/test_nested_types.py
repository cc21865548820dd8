"""Comparing and casting nested types, whatever Arrow calls their inner fields; casts that lose a value are refused."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tiltyard.model.schemas.nested_types import (
    cast_array,
    is_same_schema,
    is_same_type,
    map_renamings,
    unknown_fields,
    with_standard_maps,
)

INT = pa.int64()
TEXT = pa.string()


def item(kind: pa.DataType, name: str = "item", nullable: bool = True) -> pa.Field:
    return pa.field(name, kind, nullable)


def map_of(value: pa.DataType, key: str = "key", name: str = "value") -> pa.DataType:
    return pa.map_(pa.field(key, TEXT, nullable=False), pa.field(name, value))


def map_from_parquet() -> pa.Array:
    """A map as pyarrow reads it from Parquet: its entries are named like the column."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"m": pa.array([[("a", 1)], None, []], map_of(INT))}), sink)
    return pq.read_table(sink)["m"].chunk(0)


ALIKE: list[tuple[pa.Array, pa.DataType]] = [
    (pa.array([[1], None], pa.list_(item(INT, "element"))), pa.list_(INT)),
    (pa.array([[1], None], pa.list_(item(INT, "element"), 1)), pa.list_(INT, 1)),
    (pa.array([[1], None], pa.large_list(item(INT, "array"))), pa.large_list(INT)),
    (pa.array([[[1]], None], pa.list_(item(pa.list_(item(INT, "element")), "array"))), pa.list_(pa.list_(INT))),
    (pa.array([{"a": [1]}], pa.struct([("a", pa.list_(item(INT, "element")))])), pa.struct([("a", pa.list_(INT))])),
    (pa.array([[("a", 1)], None], map_of(INT, "k", "v")), map_of(INT)),
    (map_from_parquet(), map_of(INT)),
    (pa.array([[("a", [1])]], map_of(pa.list_(item(INT, "element")))), map_of(pa.list_(INT))),
    (pa.array([[[("a", 1)]]], pa.list_(item(map_of(INT, "k"), "element"))), pa.list_(map_of(INT))),
]


@pytest.mark.parametrize(("array", "target"), ALIKE, ids=[str(kind) for _, kind in ALIKE])
def test_cast_array_takes_the_inner_names_of_the_wanted_type_both_ways(array: pa.Array, target: pa.DataType) -> None:
    assert array.type.equals(target), "Arrow sees no difference"
    assert not is_same_type(array.type, target)
    cast = cast_array(array, target)
    assert is_same_type(cast.type, target)
    assert cast.to_pylist() == array.to_pylist()
    assert is_same_type(cast_array(cast, array.type).type, array.type)


def test_is_same_type_takes_no_account_of_metadata() -> None:
    first, second = (pa.struct([pa.field("a", INT, metadata={"k": value})]) for value in "xy")
    assert is_same_type(first, second)
    assert is_same_schema(pa.schema([pa.field("a", first)]), pa.schema([pa.field("a", second)]))
    assert not is_same_schema(pa.schema([pa.field("a", ALIKE[0][0].type)]), pa.schema([pa.field("a", ALIKE[0][1])]))


def test_is_same_type_sees_nullability_and_types() -> None:
    assert not is_same_type(pa.list_(item(INT, nullable=False)), pa.list_(INT))
    assert not is_same_type(pa.list_(INT), pa.list_(pa.int32()))
    assert is_same_type(pa.dictionary(pa.int8(), TEXT), pa.dictionary(pa.int8(), TEXT))
    assert is_same_type(pa.uuid(), pa.uuid())


@pytest.mark.parametrize(
    ("kind", "value", "target", "error"),
    [
        (pa.struct([("a", INT), ("b", INT)]), {"a": 1, "b": 2}, pa.struct([("a", INT)]), "no field 'b'"),
        (
            pa.list_(pa.struct([("a", pa.struct([("x", INT)]))])),
            [{"a": {"x": 1}}],
            pa.list_(pa.struct([("a", pa.struct([("y", INT)]))])),
            "no field 'a.x'",
        ),
        (map_of(pa.struct([("a", INT)])), [("k", {"a": 1})], map_of(pa.struct([("b", INT)])), "no field 'a'"),
        (pa.list_view(INT), [1], pa.list_(INT), "List views"),
        (pa.struct([("a", pa.list_view(INT))]), {"a": [1]}, pa.struct([("a", pa.list_(INT))]), "List views"),
    ],
)
def test_cast_array_refuses_where_pyarrow_would_lose_values(
    kind: pa.DataType, value: Any, target: pa.DataType, error: str
) -> None:
    with pytest.raises(pa.ArrowNotImplementedError, match=error):
        cast_array(pa.array([value], kind), target)


def test_cast_array_refuses_what_may_not_be_null_as_a_value() -> None:
    strict = pa.struct([pa.field("a", INT, nullable=False)])
    for array in (pa.array([{}], pa.struct([])), pa.array([{"a": None}], pa.struct([("a", INT)]))):
        with pytest.raises(pa.ArrowInvalid, match="non-nullable"):
            cast_array(array, strict)


def test_unknown_fields_names_paths_at_any_depth() -> None:
    source = pa.struct([("a", INT), ("b", pa.list_(pa.struct([("c", INT), ("d", INT)])))])
    target = pa.struct([("b", pa.list_(pa.struct([("c", INT)])))])
    assert list(unknown_fields(source, target)) == ["a", "b.d"]
    assert list(unknown_fields(target, source)) == []
    assert list(unknown_fields(source, pa.list_(INT))) == []


def test_map_renamings_give_a_table_names_that_pyarrow_can_say(tmp_path: Path) -> None:
    maps = pa.map_(TEXT, map_of(INT, "k", "v"))
    sink = io.BytesIO()
    rows = {"m x": pa.array([[("a", [("b", 1)])]], maps), "l": pa.array([[[("a", [])]]], pa.list_(maps)), "id": [1]}
    pq.write_table(pa.table(rows), sink)
    table = pq.read_table(sink)
    dataset = lance.write_dataset(table, tmp_path / "t.lance")
    plain = dataset.schema
    assert not is_same_schema(table.schema, plain)
    assert is_same_schema(with_standard_maps(table.schema), plain)
    renamings = map_renamings(dataset)
    assert [entry["path"] for entry in renamings][:2] == ["`m x`.`m x`.value.value", "`m x`.`m x`"]
    with pytest.raises(OSError, match="different schema"):
        lance.write_dataset(table.cast(plain), dataset, mode="append")
    dataset.alter_columns(*renamings)
    assert map_renamings(dataset) == []
    dataset = lance.write_dataset(table.cast(plain), dataset, mode="append")
    assert dataset.to_table().to_pylist() == table.to_pylist() * 2


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


@pytest.mark.parametrize("array, target", LOSSES, ids=lambda value: str(getattr(value, "type", value)))
def test_cast_that_loses_a_value_is_refused(array: pa.Array, target: pa.DataType) -> None:
    array.cast(target)  # pyarrow says nothing
    with pytest.raises(pa.ArrowInvalid, match="would become"):
        cast_array(array, target)


@pytest.mark.parametrize("array, target", NO_LOSSES, ids=lambda value: str(getattr(value, "type", value)))
def test_cast_that_loses_nothing_passes(array: pa.Array, target: pa.DataType) -> None:
    assert repr(cast_array(array, target).to_pylist()) == repr(array.cast(target).to_pylist())
