"""Messages in Avro, as a schema registry's serializers write them: the byte 0, the schema's id, the record.

They are turned into the JSON that Kafka Connect writes of the same values, with its schema, and read as that.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.streams.messages import Decoder, KeyChange, Message, UnreadableMessageError
from tiltyard.pipeline.streams.schema_registry import SchemaRegistry
from tiltyard.runtime.cache import MAX_FACTS_BYTES, lasting_facts

_HEADER_BYTES = 5
MAX_DEPTH = 64
"""How deep a schema may nest."""
_CONNECT = "org.apache.kafka.connect.data."
_MEANINGS = {
    "date": f"{_CONNECT}Date",
    "time-millis": f"{_CONNECT}Time",
    "time-micros": "io.debezium.time.MicroTime",
    "timestamp-millis": f"{_CONNECT}Timestamp",
    "timestamp-micros": "io.debezium.time.MicroTimestamp",
    "decimal": f"{_CONNECT}Decimal",
}
"""What Avro's logical types are called in a schema of Kafka Connect."""


_PARSED_SIZE = 10
"""How many bytes a parsed schema takes for each of its text."""
_MAX_SIZE = MAX_FACTS_BYTES // 4
"""What the largest ones are counted as: they are kept, too, as long as messages have them."""


@dataclass(frozen=True, slots=True)
class _Schema:
    """A parsed schema, the schema of Kafka Connect that says what its values mean, and how many bytes both take."""

    parsed: Any
    of_connect: dict[str, Any]
    size: int

    def __sizeof__(self) -> int:
        return self.size


class AvroDecoder:
    """Reads messages in Avro by a decoder of JSON."""

    def __init__(self, registry: SchemaRegistry, decode: Decoder) -> None:
        """Raises RefusedError where the package that reads Avro is not installed."""
        try:
            import fastavro  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise RefusedError("Messages in Avro need fastavro: pip install 'tiltyard[kafka]'.") from error
        self._fastavro = fastavro
        self._registry = registry
        self._decode = decode
        self._scope = object()
        """That of schemas in the process's cache: another stream may not be allowed to read them."""

    def __call__(self, message: Message, on: Sequence[str]) -> KeyChange | None:
        """Read a message. Raises UnreadableMessageError, and as `SchemaRegistry.find` does."""
        key = None if message.key is None else self._to_json(message.key, "The key")
        value = None if message.value is None else self._to_json(message.value, "The value")
        return self._decode(Message(key, value), on)

    def _to_json(self, data: bytes, what: str) -> bytes:
        """Return a value with its schema as Kafka Connect writes it."""
        if len(data) < _HEADER_BYTES or data[0] != 0:
            raise UnreadableMessageError(
                f"{what} is no Avro of a schema registry, which begins with the byte 0 and the id of its schema."
            )
        schema_id = int.from_bytes(data[1:_HEADER_BYTES], "big")
        schema, connect_schema = self._find_schema(schema_id)
        stream = io.BytesIO(data[_HEADER_BYTES:])
        try:
            payload = self._fastavro.schemaless_reader(stream, schema, None)
        except (EOFError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
            raise UnreadableMessageError(f"{what} is no record of its schema {schema_id}: {error}") from error
        if stream.read(1):
            raise UnreadableMessageError(f"{what} is longer than a record of its schema {schema_id}.")
        return msgspec.json.encode({"schema": connect_schema, "payload": payload})

    def _find_schema(self, schema_id: int) -> tuple[Any, Any]:
        """Return the parsed schema of an id, and the schema of Kafka Connect that says what its values mean."""
        key = "Avro schema", self._scope, schema_id
        schema: _Schema = lasting_facts.get_or_make(key, lambda: self._read_schema(schema_id))
        return schema.parsed, schema.of_connect

    def _read_schema(self, schema_id: int) -> _Schema:
        sources = self._registry.find(schema_id)
        named: dict[str, Any] = {}
        try:
            parsed = [self._fastavro.parse_schema(_name_meanings(source), named) for source in sources][-1]
        except (self._fastavro.schema.SchemaParseException, ValueError, TypeError, LookupError) as error:
            raise UnreadableMessageError(f"The schema {schema_id} is no Avro schema: {error}") from error
        return _Schema(
            parsed, _to_connect(parsed, named), min(_PARSED_SIZE * len(msgspec.json.encode(sources)), _MAX_SIZE)
        )


def _name_meanings(schema: Any, depth: int = 0) -> Any:
    """Return an Avro schema whose logical types are names of Kafka Connect's: their values are read as they are."""
    if depth > MAX_DEPTH:
        raise ValueError(f"it nests deeper than {MAX_DEPTH}")
    if isinstance(schema, list):
        return [_name_meanings(branch, depth + 1) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    named = {name: _name_meanings(value, depth + 1) for name, value in schema.items() if name in _NESTED}
    others = {name: value for name, value in schema.items() if name not in _NESTED and name not in _LOGICAL}
    if (meaning := _MEANINGS.get(str(schema.get("logicalType")))) is not None:
        others.setdefault("connect.name", meaning)
    if "scale" in schema:
        others["connect.parameters"] = {"scale": str(schema["scale"])}
    return {**others, **named}


_NESTED = frozenset({"type", "fields", "items", "values"})
_LOGICAL = frozenset({"logicalType", "scale", "precision"})


def _to_connect(schema: Any, named: Mapping[str, Any], depth: int = 0) -> dict[str, Any]:
    """Return what a schema of Kafka Connect says of a parsed Avro schema: the names of its types, and its columns."""
    if depth > MAX_DEPTH:  # a record that has itself as a column
        return {}
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        return _to_connect(branches[0], named, depth + 1) if len(branches) == 1 else {}
    if isinstance(schema, str):
        return _to_connect(named[schema], named, depth + 1) if schema in named else {}
    found: dict[str, Any] = {"name": schema.get("connect.name"), "parameters": schema.get("connect.parameters")}
    if schema.get("type") == "record" and depth < _COLUMN_DEPTH:
        found["fields"] = [
            {**_to_connect(field["type"], named, depth + 1), "field": field["name"]} for field in schema["fields"]
        ]
    return found


_COLUMN_DEPTH = 8
"""How deep columns are looked at: those of the row before or after a change are two records deep."""
