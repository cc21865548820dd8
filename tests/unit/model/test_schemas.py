"""Arrow schemas as JSON: both dialects, there and back."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.model.schemas.arrow_json import from_json, parse_type, to_json, to_remote_json

UNITS = st.sampled_from(["s", "ms", "us", "ns"])
ZONES = st.sampled_from([None, "UTC", "+05:30", "Europe/Berlin"])
INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
SIMPLE = st.sampled_from(
    [
        *INTEGERS,
        *(pa.null(), pa.bool_(), pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64()),
        *(pa.utf8(), pa.large_utf8(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()),
        *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    ]
)


@st.composite
def decimals(draw: st.DrawFn) -> pa.DataType:
    kind, digits = draw(
        st.sampled_from([(pa.decimal32, 9), (pa.decimal64, 18), (pa.decimal128, 38), (pa.decimal256, 76)])
    )
    return kind(draw(st.integers(1, digits)), draw(st.integers(-digits, digits)))


LEAVES = st.one_of(
    SIMPLE,
    st.builds(pa.timestamp, UNITS, ZONES),
    st.builds(pa.duration, UNITS),
    st.builds(pa.binary, st.integers(0, 64)),
    decimals(),
)
METADATA = st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2)


def fields(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.Field]:
    def make(name: str, kind: pa.DataType, nullable: bool, metadata: dict[str, str]) -> pa.Field:
        return pa.field(name, kind, nullable or pa.types.is_null(kind), metadata or None)

    return st.builds(make, st.text(max_size=6), types, st.booleans(), METADATA)


def nested(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    return st.one_of(
        st.builds(pa.list_, fields(types)),
        st.builds(pa.large_list, fields(types)),
        st.builds(pa.list_view, fields(types)),
        st.builds(pa.list_, fields(types), st.integers(0, 2000)),
        st.builds(pa.struct, st.lists(fields(types), max_size=3)),
        st.builds(
            lambda key, item, keys_sorted: pa.map_(key.with_nullable(False), item, keys_sorted=keys_sorted),
            fields(types.filter(lambda kind: not pa.types.is_null(kind))),
            fields(types),
            st.booleans(),
        ),
        st.builds(pa.dictionary, st.sampled_from(INTEGERS), types, ordered=st.booleans()),
    )


SCHEMAS = st.builds(
    lambda columns, metadata: pa.schema(columns, metadata=metadata or None),
    st.lists(fields(st.recursive(LEAVES, nested, max_leaves=5)), max_size=4),
    METADATA,
)


@settings(max_examples=300, deadline=None)
@given(SCHEMAS)
def test_to_json_any_schema_is_read_back_exactly(schema: pa.Schema) -> None:
    wire = msgspec.json.decode(msgspec.json.encode(to_json(schema)))
    assert from_json(wire).equals(schema, check_metadata=True)


@settings(max_examples=300, deadline=None)
@given(st.recursive(LEAVES, nested, max_leaves=5))
def test_parse_type_takes_what_to_json_writes_as_text(kind: pa.DataType) -> None:
    (field,) = to_json(pa.schema([("c", kind)])).fields
    assert parse_type(msgspec.json.encode(field.type).decode()) == kind


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.text(),
        st.recursive(
            st.none() | st.text(max_size=9) | st.integers(),
            lambda inner: (
                st.dictionaries(st.sampled_from(["type", "fields", "length", "name", "nullable"]), inner)
                | st.lists(inner, max_size=2)
            ),
        ),
    )
)
def test_parse_type_anything_else_is_invalid_input(value: Any) -> None:
    try:
        parse_type(value)
    except InvalidInputError:
        return


SPECIFICATION_NAMES = [
    (pa.utf8(), {"type": "utf8"}),
    (pa.float16(), {"type": "float16"}),
    (pa.timestamp("us"), {"type": "timestamp"}),
    (pa.timestamp("us", "UTC"), {"type": "timestamp:us:UTC"}),
    (pa.decimal128(10, 2), {"type": "decimal:128:10:2"}),
    (pa.decimal128(38, 18), {"type": "decimal128", "length": 38018}),
    (pa.binary(16), {"type": "fixed_size_binary", "length": 16}),
    (pa.dictionary(pa.int32(), pa.utf8()), {"type": "dict:utf8:int32:false"}),
]
REMOTE_NAMES = [
    (pa.utf8(), {"type": "string"}),
    (pa.large_utf8(), {"type": "large_string"}),
    (pa.float16(), {"type": "halffloat"}),
    (pa.float32(), {"type": "float"}),
    (pa.float64(), {"type": "double"}),
    (pa.date32(), {"type": "date32:day"}),
    (pa.date64(), {"type": "date64:ms"}),
    (pa.time32("s"), {"type": "time32:s"}),
    (pa.timestamp("us"), {"type": "timestamp:us:-"}),
    (pa.timestamp("us", "UTC"), {"type": "timestamp:us:UTC"}),
    (pa.duration("us"), {"type": "duration:us"}),
    (pa.decimal128(10, 2), {"type": "decimal:128:10:2"}),
    (pa.decimal128(38, 18), {"type": "decimal:128:38:18"}),
    (pa.binary(16), {"type": "fixed_size_binary", "length": 16}),
    (pa.dictionary(pa.int32(), pa.utf8()), {"type": "dict:string:int32:false"}),
    (
        pa.list_(pa.float32(), 4),
        {
            "type": "fixed_size_list",
            "length": 4,
            "fields": [{"name": "item", "nullable": True, "type": {"type": "float"}}],
        },
    ),
]


@pytest.mark.parametrize(("kind", "expected"), SPECIFICATION_NAMES)
def test_to_json_a_type_has_the_name_others_read(kind: pa.DataType, expected: dict[str, Any]) -> None:
    assert msgspec.to_builtins(to_json(pa.schema([("c", kind)])).fields[0].type) == expected


@pytest.mark.parametrize(("kind", "expected"), REMOTE_NAMES)
def test_to_remote_json_a_type_has_the_name_of_lance(kind: pa.DataType, expected: dict[str, Any]) -> None:
    schema = pa.schema([("c", kind)])
    assert to_remote_json(schema)["fields"][0]["type"] == expected
    assert from_json(to_remote_json(schema)) == schema


def test_to_remote_json_of_a_map_is_its_list_of_entries() -> None:
    written = from_json(to_remote_json(pa.schema([("c", pa.map_(pa.utf8(), pa.int32()))])))
    entries = pa.struct([pa.field("key", pa.utf8(), nullable=False), pa.field("value", pa.int32())])
    assert written.field("c").type == pa.list_(pa.field("entries", entries, nullable=False))


@pytest.mark.parametrize(
    "kind", [pa.json_(), pa.uuid(), pa.bool8(), pa.fixed_shape_tensor(pa.float32(), [2, 3], dim_names=["a", "b"])]
)
def test_to_json_extension_types_come_back_as_themselves(kind: pa.DataType) -> None:
    schema = pa.schema([pa.field("c", kind, metadata={"k": "v"}), ("d", pa.list_(kind))])
    for written in (to_json(schema), to_remote_json(schema)):
        assert from_json(written) == schema


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("int32", pa.int32()),
        ("float", pa.float32()),
        ("Utf8", pa.utf8()),
        ('"double"', pa.float64()),
        ('{"type": "int64"}', pa.int64()),
        ({"type": "boolean"}, pa.bool_()),
        ("fixed_size_list:float:128", pa.list_(pa.float32(), 128)),
        ("fixed_size_list:fixed_size_list:halffloat:2:3", pa.list_(pa.list_(pa.float16(), 2), 3)),
        ({"type": "decimal128", "length": 10002}, pa.decimal128(10, 2)),
        ({"type": "decimal128", "length": 9998}, pa.decimal128(10, -2)),
        ({"type": "decimal128"}, pa.decimal128(38, 18)),
        (
            {"type": "fixedsizelist", "length": 2, "fields": [{"name": "e", "type": "float32"}]},
            pa.list_(pa.field("e", pa.float32()), 2),
        ),
        (
            {
                "type": "map",
                "fields": [{"name": "key", "nullable": False, "type": "utf8"}, {"name": "value", "type": "int8"}],
            },
            pa.map_(pa.utf8(), pa.int8()),
        ),
    ],
)
def test_parse_type_reads_what_other_writers_make(value: Any, kind: pa.DataType) -> None:
    assert parse_type(value) == kind


@pytest.mark.parametrize(
    "value",
    ["", "foo", "time32:us", "decimal:128:99:2", "decimal:100:9:2", "decimal:128:9", "dict:string", "{bad", "[1]",
     "fixed_size_list:float:-1",
     "fixed_size_list:" * 2000, {}, {"type": 5}, {"type": "list"}, {"type": "list", "fields": []},
     {"type": "decimal32"}, {"type": "fixed_size_binary"},
     {"type": "fixed_size_list", "fields": [{"name": "x", "type": "int8"}]}],
)  # fmt: skip
def test_parse_type_nonsense_is_invalid_input(value: Any) -> None:
    with pytest.raises(InvalidInputError):
        parse_type(value)


def test_from_json_a_field_that_cannot_be_is_invalid_input() -> None:
    with pytest.raises(InvalidInputError, match="non-nullable"):
        from_json({"fields": [{"name": "c", "nullable": False, "type": {"type": "null"}}]})


def test_to_json_what_lance_cannot_store_is_unsupported() -> None:
    with pytest.raises(UnsupportedOperationError, match="month_day_nano_interval"):
        to_json(pa.schema([("c", pa.month_day_nano_interval())]))
