"""Change events as Debezium writes them, with and without their schema."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

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
