"""Messages of topics: rows of JSON, Debezium's change events, Avro with its schema."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from tests.fuzz.parsers.target import split_input, target
from tiltyard.pipeline.streams.avro import AvroDecoder
from tiltyard.pipeline.streams.kafka import read_json_rows
from tiltyard.pipeline.streams.messages import (
    Decoder,
    KeyChange,
    Message,
    UnreadableMessageError,
    decode_debezium,
    decode_row,
)

EVENT_WORDS = (
    '{"op":"c","after":{"id":1}} {"payload": "schema": "before": "d" "u" "fields": "name": "field":'
    ' "io.debezium.time.Date" "io.debezium.time.MicroTimestamp" "org.apache.kafka.connect.data.Decimal"'
    ' "io.debezium.data.VariableScaleDecimal" "parameters":{"scale":"2"} null "AQ==" -1 99999999999'
)


def _check_change(change: KeyChange | None) -> None:
    """A change is one line with one object, which the reader of rows takes."""
    if change is None:
        return
    assert b"\n" not in change.line and b"\r" not in change.line
    with contextlib.suppress(UnicodeDecodeError):  # the row is rejected, as any that is not UTF-8
        assert isinstance(json.loads(change.line), dict)
    batches, rejected = read_json_rows([change.line], [1], None)
    assert sum(batch.num_rows for batch in batches) + len(rejected) == 1


def _decode(decode: Decoder, data: bytes) -> None:
    key, value = split_input(data, 2)
    _check_change(decode(Message(key or None, value or None), ["id"]))


@target(
    UnreadableMessageError,
    words='{"id":1} null 1 "a" {"payload":{"id":1}} \n \\u00e9 1e999',
    also="pipeline.streams.kafka pipeline.streams.messages pipeline.sources.json_lines pipeline.sources.text_types",
)
def message_row(data: bytes) -> None:
    """A message is a row, or says why it is none."""
    _decode(decode_row, data)


@target(
    UnreadableMessageError,
    words=EVENT_WORDS,
    also="pipeline.streams.debezium pipeline.streams.messages pipeline.sources.json_lines pipeline.sources.text_types",
)
def message_debezium(data: bytes) -> None:
    """A change event is a row, a key to delete, or says why it is neither."""
    _decode(decode_debezium, data)


class _Registry:
    """A registry with one schema."""

    def __init__(self, schema: bytes) -> None:
        self._schema = schema

    def find(self, schema_id: int) -> list[Any]:
        try:
            return [json.loads(self._schema)]
        except (ValueError, RecursionError) as error:  # as the registry's own client
            raise UnreadableMessageError(f"no schema {schema_id}") from error


@target(
    UnreadableMessageError,
    words='{"type":"record","name":"r","fields":[{"name":"id","type":"long"}]} "null" ["null","string"] "bytes" "fixed"'
    ' "size": "array","items": "map","values": "enum","symbols": "logicalType":"decimal" "scale": "precision":'
    ' "date" "timestamp-micros" "int"',
    also="pipeline.streams.messages pipeline.streams.kafka",
)
def message_avro(data: bytes) -> None:
    """A message in Avro is a row, or says why it is none, whatever its schema."""
    schema, record = split_input(data, 2)
    decoder = AvroDecoder(_Registry(schema), decode_row)  # type: ignore[arg-type]  # what a decoder asks, it has
    _check_change(decoder(Message(None, b"\0\0\0\0\1" + record), ["id"]))
