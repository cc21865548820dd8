"""Every Arrow type that Lance stores, through the clients that read schemas as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lance_namespace_urllib3_client as generated_client
import pyarrow as pa
import pytest

from tiltyard.model.schemas.arrow_json import from_json

if TYPE_CHECKING:
    from collections.abc import Callable

UNITS = ("s", "ms", "us", "ns")
TYPES = [
    *(pa.bool_(), pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64()),
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.utf8(), pa.large_utf8(), pa.binary(), pa.large_binary(), pa.binary(16), pa.null()),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), *map(pa.duration, UNITS)),
    *(pa.timestamp(unit, zone) for unit in UNITS for zone in (None, "UTC", "+05:30", "Europe/Berlin")),
    *(pa.decimal128(10, 2), pa.decimal128(38, 18), pa.decimal128(9, -3), pa.decimal256(50, 3)),
    *(pa.dictionary(pa.int32(), pa.utf8()), pa.dictionary(pa.uint8(), pa.large_utf8())),
    *(pa.dictionary(pa.int8(), pa.int64()), pa.list_(pa.int32()), pa.large_list(pa.utf8())),
    *(pa.list_(pa.float32(), 4), pa.list_(pa.list_(pa.float16(), 2), 3), pa.list_(pa.struct([("a", pa.int8())]))),
    pa.struct([pa.field("a", pa.utf8(), nullable=False), ("b", pa.float16())]),
    *(pa.json_(), pa.uuid()),
]  # fmt: skip
FIELDS = [pa.field(f"c{number}", kind, metadata={"k": f"{number}"}) for number, kind in enumerate(TYPES)]
SCHEMA = pa.schema([*FIELDS, pa.field("last", pa.int8(), nullable=False)], metadata={"of": "the schema"})


@pytest.fixture
def table(remote: Any, fresh: Callable[[str], str]) -> str:
    name = fresh("types")
    remote.create_table(name, schema=SCHEMA)
    return name


def test_remote_schema_equals_the_original(remote: Any, table: str) -> None:
    assert remote.open_table(table).schema.equals(SCHEMA, check_metadata=True)


def test_remote_schema_of_a_map_is_its_entries(remote: Any, fresh: Callable[[str], str]) -> None:
    name = fresh("maps")
    remote.create_table(name, schema=pa.schema([("m", pa.map_(pa.utf8(), pa.int32()))]))
    kind = remote.open_table(name).schema.field("m").type
    assert pa.types.is_list(kind)
    assert [field.name for field in kind.value_type] == ["key", "value"]


def test_generated_client_schema_can_be_read_back_exactly(generated: Any, table: str) -> None:
    request = generated_client.DescribeTableRequest(load_detailed_metadata=True)
    described = generated_client.TableApi(generated).describe_table(table, request, load_detailed_metadata=True)
    assert described.var_schema is not None
    assert from_json(described.var_schema.to_dict()).equals(SCHEMA, check_metadata=True)
