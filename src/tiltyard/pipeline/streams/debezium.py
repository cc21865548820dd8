"""Values of Debezium's events that mean more than their JSON: dates, times and decimals, by the event's schema.

Times become text without a zone, as Debezium gives local times; decimals become numbers with all of their digits.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec

from tiltyard.runtime.cache import cached

Converter = Callable[[bytes], bytes]
"""Turns the JSON of a value into what is read; raises ValueError, TypeError, OverflowError, ArithmeticError."""

_EPOCH = date(1970, 1, 1)
_SECONDS_A_DAY = 86_400
MAX_SCALE = 1_000


def _convert_date(text: bytes) -> bytes:
    return f'"{_EPOCH + timedelta(days=int(text))}"'.encode()


def _convert_timestamp(text: bytes, per_second: int) -> bytes:
    seconds, fraction = divmod(int(text), per_second)
    days, within = divmod(seconds, _SECONDS_A_DAY)
    return f'"{_EPOCH + timedelta(days=days)} {_clock(within, fraction, per_second)}"'.encode()


def _convert_time(text: bytes, per_second: int) -> bytes:
    seconds, fraction = divmod(int(text), per_second)
    return f'"{_clock(seconds, fraction, per_second)}"'.encode()


def _clock(seconds: int, fraction: int, per_second: int) -> str:
    digits = f".{fraction:0{len(str(per_second)) - 1}}" if fraction else ""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{digits}"


def _convert_decimal(text: bytes, scale: str) -> bytes:
    return _format_decimal(msgspec.json.decode(text, type=str), int(scale))


def _convert_variable_decimal(text: bytes) -> bytes:
    fields = msgspec.json.decode(text, type=dict[str, Any])
    return _format_decimal(str(fields.get("value")), int(fields.get("scale", 0)))


def _format_decimal(unscaled: str, scale: int) -> bytes:
    if abs(scale) > MAX_SCALE:
        raise ValueError(f"its scale is {scale}")
    number = int.from_bytes(base64.b64decode(unscaled, validate=True), "big", signed=True)
    return f"{Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale)):f}".encode()


_MILLIS, _MICROS, _NANOS = 10**3, 10**6, 10**9
_CONVERTERS: Mapping[str, Converter] = {
    "io.debezium.time.Date": _convert_date,
    "org.apache.kafka.connect.data.Date": _convert_date,
    "io.debezium.time.Timestamp": partial(_convert_timestamp, per_second=_MILLIS),
    "org.apache.kafka.connect.data.Timestamp": partial(_convert_timestamp, per_second=_MILLIS),
    "io.debezium.time.MicroTimestamp": partial(_convert_timestamp, per_second=_MICROS),
    "io.debezium.time.NanoTimestamp": partial(_convert_timestamp, per_second=_NANOS),
    "io.debezium.time.Time": partial(_convert_time, per_second=_MILLIS),
    "org.apache.kafka.connect.data.Time": partial(_convert_time, per_second=_MILLIS),
    "io.debezium.time.MicroTime": partial(_convert_time, per_second=_MICROS),
    "io.debezium.time.NanoTime": partial(_convert_time, per_second=_NANOS),
    "io.debezium.data.VariableScaleDecimal": _convert_variable_decimal,
}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"


class _Schema(msgspec.Struct):
    """A schema of Kafka Connect in JSON: `name` says what its values mean."""

    field: str = ""
    name: str | None = None
    fields: list[_Schema] = []
    parameters: dict[str, str] | None = None


@cached("Debezium schemas", "Converters of columns by the schema of events", max_entries=64)
def find_converters(schema: bytes, part: str | None) -> Mapping[str, Converter]:
    """Return the converters of columns by the schema of an event's part (`before`, `after`), or of a key (None).

    Raises msgspec.MsgspecError for what is no schema of Kafka Connect, UnicodeDecodeError, RecursionError.
    """
    struct = msgspec.json.decode(schema, type=_Schema)
    if part is not None:
        struct = next((field for field in struct.fields if field.field == part), _Schema())
    converters = {column.field: _converter(column) for column in struct.fields}
    return {name: converter for name, converter in converters.items() if converter is not None}


def _converter(column: _Schema) -> Converter | None:
    if column.name == _DECIMAL:
        scale = (column.parameters or {}).get("scale", "0")
        return partial(_convert_decimal, scale=scale)
    return _CONVERTERS.get(column.name or "")
