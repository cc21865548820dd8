"""Change events in Avro, with the schemas of a registry: the same rows as in JSON; what is wrong is said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from lance_namespace.errors import ServiceUnavailableError

from tests.services.schema_registry import Registry, schema_registry
from tests.streams.change_events import AVRO_EVENT, AVRO_KEY, AVRO_ROW, avro
from tiltyard.model.jobs import DRIVER_VARIABLE
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.streams.avro import AvroDecoder
from tiltyard.pipeline.streams.messages import Message, UnreadableMessageError, decode_debezium
from tiltyard.pipeline.streams.schema_registry import CA_FILE, URL, USER_INFO, SchemaRegistry

ROW = {
    "id": 1, "title": "a\nb", "day": -1, "at": 1_500_000, "seen": -1, "price": (-1205).to_bytes(4, "big", signed=True),
    "any": {"scale": 3, "value": b"\x05"}, "raw": b"\x00\xff",
}  # fmt: skip
EXPECTED = {
    "id": 1, "title": "a\nb", "day": "1969-12-31", "at": "1970-01-01 00:00:01.500000",
    "seen": "1969-12-31 23:59:59.999", "price": "-12.05", "any": "0.005", "raw": "AP8=",
}  # fmt: skip


@pytest.fixture
def registry() -> Iterator[Registry]:
    """Return a registry with the schemas of keys (1) and of events (2)."""
    with schema_registry() as registry:
        registry.add(AVRO_KEY)
        registry.add(AVRO_EVENT)
        yield registry


@pytest.fixture
def decode(registry: Registry) -> AvroDecoder:
    return AvroDecoder(SchemaRegistry(registry.url), decode_debezium)


def event(op: str, after: Any = None, before: Any = None, schema_id: int = 2) -> bytes:
    return avro(schema_id, AVRO_EVENT, {"op": op, "after": after, "before": before})


def key(id_: int) -> bytes:
    return avro(1, AVRO_KEY, {"id": id_})


def test_events_are_the_rows_and_deletes_that_they_are_in_json(registry: Registry, decode: AvroDecoder) -> None:
    for op in ("c", "r", "u"):
        change = decode(Message(key(1), event(op, ROW)), ["id"])
        assert change is not None and not change.is_delete
        assert json.loads(change.line, parse_float=str) == EXPECTED
    nothing = {"id": 7, **dict.fromkeys(("title", "day", "at", "seen", "price", "any", "raw"))}
    change = decode(Message(None, event("c", nothing)), ["id"])
    assert change is not None and json.loads(change.line) == nothing
    for message in (Message(key(3), event("d", None, {**nothing, "id": 3})), Message(key(3), event("d"))):
        change = decode(message, ["id"])
        assert change is not None and (change.is_delete, json.loads(change.line)) == (True, {"id": 3})
    assert decode(Message(key(3), None), ["id"]) is None, "a tombstone follows its delete"
    assert registry.requests == 2, "a schema is asked for once"


def test_schemas_that_refer_to_others_are_put_together(registry: Registry, decode: AvroDecoder) -> None:
    registry.add({**AVRO_ROW, "namespace": "shop.films"}, subject="films-row")
    fields = [{"name": "before", "type": ["null", "Value"]}, *AVRO_EVENT["fields"][1:]]  # type: ignore[index]
    reference = {"name": "shop.films.Value", "subject": "films-row", "version": 1}
    number = registry.add({**AVRO_EVENT, "fields": fields}, [reference])
    change = decode(Message(None, event("c", ROW, schema_id=number)), ["id"])
    assert change is not None and json.loads(change.line, parse_float=str) == EXPECTED


def test_messages_that_are_no_events_are_refused_with_the_reason(registry: Registry, decode: AvroDecoder) -> None:
    other = registry.add({"type": "wrong"})
    protobuf = registry.add("", schemaType="PROTOBUF")
    good = event("c", ROW)
    for value, reason in {
        b'{"op": "c"}': "The value is no Avro of a schema registry, which begins with the byte 0",
        b"\0\0\0": "The value is no Avro",
        good[:-3]: "The value is no record of its schema 2",
        good + b"x": "The value is longer than a record of its schema 2",
        b"\0\0\0\0\x63": "has no schema of the id 99",
        b"\0" + other.to_bytes(4, "big"): f"The schema {other} is no Avro schema",
        b"\0" + protobuf.to_bytes(4, "big"): f"The schema of the id {protobuf} is PROTOBUF, and only Avro is read",
        event("t"): "A truncation of the source is not applied",
    }.items():
        with pytest.raises(UnreadableMessageError, match=reason):
            decode(Message(None, value), ["id"])


def test_registry_that_does_not_answer_is_an_outage_and_no_reason_to_reject_rows(
    registry: Registry, decode: AvroDecoder
) -> None:
    registry.status = 503
    with pytest.raises(ServiceUnavailableError, match="answers 503"):
        decode(Message(None, event("c", ROW)), ["id"])
    away = AvroDecoder(SchemaRegistry("http://127.0.0.1:1"), decode_debezium)
    with pytest.raises(ServiceUnavailableError, match="does not answer"):
        away(Message(None, event("c", ROW)), ["id"])
    registry.status = 200
    assert decode(Message(None, event("c", ROW)), ["id"]) is not None


def test_password_is_sent_to_the_registry_of_its_file_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with schema_registry("me:secret") as registry:
        registry.add(AVRO_KEY)
        opened = SchemaRegistry.open(registry.url, {USER_INFO: "me:secret"})
        assert opened is not None and opened.find(1) == [AVRO_KEY]
        opened = SchemaRegistry.open(None, {URL: registry.url, USER_INFO: "me:secret"})
        assert opened is not None and opened.find(1) == [AVRO_KEY]
        refused = SchemaRegistry.open(registry.url, {})
        assert refused is not None
        with pytest.raises(RefusedError, match=f"answers 401: name its user .*{USER_INFO}"):
            refused.find(1)
    assert SchemaRegistry.open(None, {CA_FILE: "x"}) is None
    for properties in ({URL: "https://ours", USER_INFO: "me:secret"}, {USER_INFO: "me:secret"}):
        monkeypatch.setenv(DRIVER_VARIABLE, "worker")
        with pytest.raises(RefusedError, match="not for the schema registry http://evil") as refusal:
            SchemaRegistry.open("http://evil", properties)
        assert "secret" not in str(refusal.value)
    for address in ("ftp://a", "http://me:secret@a", "registry:8081"):
        with pytest.raises(RefusedError, match="is an address http://HOST:PORT or https://HOST without a user"):
            SchemaRegistry.open(address, {})
