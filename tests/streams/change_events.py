"""Change events as Debezium writes them: in JSON, with and without their schema, and in Avro."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from typing import Any

import fastavro

COLUMNS = [
    {"type": "int64", "field": "id", "optional": False},
    {"type": "string", "field": "title", "optional": True},
    {"type": "int32", "field": "day", "name": "io.debezium.time.Date"},
    {"type": "int64", "field": "at", "name": "io.debezium.time.MicroTimestamp"},
    {"type": "int64", "field": "at_ms", "name": "io.debezium.time.Timestamp"},
    {"type": "int32", "field": "clock", "name": "io.debezium.time.Time"},
    {
        "type": "bytes",
        "field": "price",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2", "connect.decimal.precision": "10"},
    },
    {"type": "struct", "field": "any", "name": "io.debezium.data.VariableScaleDecimal"},
]
SCHEMA = {
    "type": "struct",
    "fields": [
        {"type": "struct", "field": "before", "fields": COLUMNS, "optional": True},
        {"type": "struct", "field": "after", "fields": COLUMNS, "optional": True},
        {"type": "string", "field": "op"},
    ],
}
KEY_SCHEMA = {"type": "struct", "fields": [{"type": "int64", "field": "id"}]}


def event(op: str, after: Mapping[str, Any] | None, before: Mapping[str, Any] | None = None, **more: Any) -> bytes:
    """Return an event with its schema."""
    return json.dumps({"schema": SCHEMA, "payload": {"before": before, "after": after, "op": op, **more}}).encode()


def plain_event(op: str, after: Mapping[str, Any] | None, before: Mapping[str, Any] | None = None) -> bytes:
    """Return an event without a schema (`value.converter.schemas.enable=false`)."""
    return json.dumps({"before": before, "after": after, "op": op, "source": {"lsn": 1}, "ts_ms": 1}).encode()


def key(id_: int) -> bytes:
    """Return the key of a message, with its schema."""
    return json.dumps({"schema": KEY_SCHEMA, "payload": {"id": id_}}).encode()


def decimal(unscaled: int) -> str:
    """Return the bytes of a decimal's digits, as JSON has them."""
    return base64.b64encode(unscaled.to_bytes(8, "big", signed=True)).decode()


AVRO_ROW = {
    "type": "record",
    "name": "Value",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "title", "type": ["null", "string"], "default": None},
        {"name": "day", "type": ["null", {"type": "int", "connect.name": "io.debezium.time.Date"}], "default": None},
        {"name": "at", "type": ["null", {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}]},
        {"name": "seen", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {
            "name": "price",
            "type": [
                "null",
                {
                    "type": "bytes",
                    "logicalType": "decimal",
                    "scale": 2,
                    "precision": 10,
                    "connect.name": "org.apache.kafka.connect.data.Decimal",
                    "connect.parameters": {"scale": "2", "connect.decimal.precision": "10"},
                },
            ],
        },
        {
            "name": "any",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "VariableScaleDecimal",
                    "namespace": "io.debezium.data",
                    "connect.name": "io.debezium.data.VariableScaleDecimal",
                    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
                },
            ],
        },
        {"name": "raw", "type": ["null", "bytes"]},
    ],
}
AVRO_EVENT = {
    "type": "record",
    "name": "Envelope",
    "namespace": "shop.films",
    "fields": [
        {"name": "before", "type": ["null", AVRO_ROW], "default": None},
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "op", "type": "string"},
    ],
}
AVRO_KEY = {"type": "record", "name": "Key", "namespace": "shop.films", "fields": [{"name": "id", "type": "long"}]}


def avro(schema_id: int, schema: Any, record: Any) -> bytes:
    """Return a record as a registry's serializers write it, without conversions of logical types."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(without_logical_types(schema)), record)
    return b"\0" + schema_id.to_bytes(4, "big") + stream.getvalue()


def without_logical_types(schema: Any) -> Any:
    """Return a schema whose values are written as they are."""
    if isinstance(schema, list):
        return [without_logical_types(each) for each in schema]
    if isinstance(schema, dict):
        return {name: without_logical_types(each) for name, each in schema.items() if name != "logicalType"}
    return schema
