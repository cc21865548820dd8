"""What messages say: rows, deletes, change events of Debezium with the meaning of their values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError

from tests.streams.change_events import decimal, event, key, plain_event
from tiltyard.model.jobs import DRIVER_VARIABLE
from tiltyard.model.refusals import RefusedError
from tiltyard.model.settings.kafka_topics import Topic
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.streams.job import stream
from tiltyard.pipeline.streams.kafka import read_json_rows, read_properties
from tiltyard.pipeline.streams.messages import Message, UnreadableMessageError, decode_debezium, decode_row


def debezium(value: bytes | None, message_key: bytes | None = None) -> tuple[bool, Any] | None:
    change = decode_debezium(Message(message_key, value), ["id"])
    return None if change is None else (change.is_delete, json.loads(change.line))


def test_events_are_upserts_and_deletes() -> None:
    row = {"id": 1, "title": "a\nb"}
    for make in (event, plain_event):
        for op in ("c", "r", "u"):
            assert debezium(make(op, row)) == (False, row)
        assert debezium(make("d", None, row)) == (True, {"id": 1})
        assert debezium(make("d", None), key(1)) == (True, {"id": 1})
        assert debezium(make("d", None, {"title": "x"}), b'{"id": 2}') == (True, {"id": 2})
        assert debezium(make("m", None)) is None
    assert debezium(None, key(1)) is None, "a tombstone follows its delete"


def test_values_of_events_have_the_meaning_that_their_schema_gives_them() -> None:
    row = {
        "id": 1, "title": None, "day": -1, "at": 1_500_000, "at_ms": -1, "clock": 3_723_004,
        "price": decimal(-1205), "any": {"scale": 3, "value": decimal(5)},
    }  # fmt: skip
    change = decode_debezium(Message(None, event("c", row)), ["id"])
    assert change is not None
    assert json.loads(change.line, parse_float=str) == {
        "id": 1, "title": None, "day": "1969-12-31", "at": "1970-01-01 00:00:01.500000",
        "at_ms": "1969-12-31 23:59:59.999", "clock": "01:02:03.004", "price": "-12.05", "any": "0.005",
    }  # fmt: skip


def test_numbers_of_events_keep_their_digits() -> None:
    change = decode_debezium(Message(None, b'{"op": "c", "after": {"id": 1, "n": 0.1234567890123456789}}'), ["id"])
    assert change is not None
    assert change.line == b'{"id": 1, "n": 0.1234567890123456789}'


@pytest.mark.parametrize(
    ("value", "message_key", "reason"),
    [
        (b"no json", None, "no change event"),
        (b'{"op": "c"}', None, "no row 'after'"),
        (b'{"op": "x"}', None, "'x' is not applied"),
        (b'{"op": "t"}', None, "truncation"),
        (b'{"id": 1}', None, "None' is not applied"),
        (b'{"op": "c", "after": [1]}', None, "no JSON object"),
        (b'{"op": "d"}', None, "no key"),
        (b'{"op": "d"}', b'{"other": 1}', "has no 'id'"),
        (b'{"op": "d"}', b"\xff", "key is no JSON"),
        (event("c", {"id": 1, "price": "no base64"}), None, "'price' is not of its schema's type"),
        (event("c", {"id": 1, "day": 10**12}), None, "'day' is not of its schema's type"),
    ],
)
def test_events_that_say_no_change_are_refused_with_the_reason(
    value: bytes, message_key: bytes | None, reason: str
) -> None:
    with pytest.raises(UnreadableMessageError, match=reason):
        debezium(value, message_key)


def test_messages_without_a_value_delete_by_key() -> None:
    change = decode_row(Message(b"7", None), ["id"])
    assert change is not None and change.is_delete and change.line == b'{"id":7}'
    change = decode_row(Message(b'{"b": "x", "a": 1, "c": 2}', None), ["a", "b"])
    assert change is not None and json.loads(change.line) == {"a": 1, "b": "x"}
    assert decode_row(Message(b"7", None), []) is None
    with pytest.raises(UnreadableMessageError, match="several columns"):
        decode_row(Message(b"7", None), ["a", "b"])
    for value in (b"[1]", b"1", b"", b'{"a": 1}{"a": 2}', b"\xff"):
        with pytest.raises(UnreadableMessageError, match="no JSON object"):
            decode_row(Message(None, value), [])


def test_rows_of_lines_keep_their_numbers_beside_those_that_do_not_fit() -> None:
    table = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us"))])
    lines = [
        b'{"id": 1, "at": "2020-01-01 00:00:00"}',
        b'{"id": "x"}',
        b"{}",
        b'{"id": 2.5}',
        b'{"new": true, "id": 4}',
    ]
    batches, rejected = read_json_rows(lines, [10, 11, 12, 13, 14], table)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["id"], row["new"], row["__stream_sequence"]) for row in rows] == [
        (1, None, 10),
        (None, None, 12),
        (4, True, 14),
    ]
    assert [number for number, _ in rejected] == [11, 13]
    assert read_json_rows([b"{}"], [5], None)[1][0][0] == 5


def test_a_file_of_properties_is_for_its_brokers_and_loads_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, file = Topic.parse("kafka://a:9092,b:9092/films"), tmp_path / "client.properties"
    assert (topic.servers, topic.name) == ("a:9092,b:9092", "films")
    file.write_text("# signs in\n\nsasl.username = me\nsasl.password=a=b \n")
    assert read_properties(str(file), topic) == {"sasl.username": "me", "sasl.password": "a=b"}
    monkeypatch.setenv(DRIVER_VARIABLE, "worker")
    with pytest.raises(RefusedError, match="not for the brokers"):
        read_properties(str(file), topic)
    file.write_text("bootstrap.servers=b:9092,a:9092\nsasl.username=me\n")
    assert read_properties(str(file), topic) == {"sasl.username": "me"}
    with pytest.raises(RefusedError, match="not for the brokers"):
        read_properties(str(file), Topic.parse("kafka://evil:9092/films"))
    for line in ("plugin.library.paths=/tmp/evil.so", "top secret"):
        file.write_text(f"{line}\n")
        with pytest.raises(RefusedError, match="line 1") as refusal:
            read_properties(str(file), topic)
        assert line not in str(refusal.value)
    with pytest.raises(RefusedError, match="cannot be read"):
        read_properties(str(tmp_path), topic)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("kafka://a:1", {}, "kafka://HOST:PORT/TOPIC"),
        ("kafka://a:1/b/c", {}, "kafka://HOST:PORT/TOPIC"),
        ("kafka://u@a:1/b", {}, "kafka://HOST:PORT/TOPIC"),
        ("kafka://a:1/b", {"format": "csv"}, "json or debezium"),
        ("kafka://a:1/b", {"format": "debezium"}, "--on"),
        ("folder", {"format": "debezium", "on": ["id"]}, "for topics"),
        ("folder", {"kafka": "file"}, "for topics"),
        ("folder", {"schema_registry": "http://a"}, "for topics"),
        ("kafka://a:1/b", {"schema_registry": "http://a"}, "say --format debezium"),
        ("kafka://a:1/b", {"schema_registry": "a", "format": "debezium", "on": ["id"]}, "--schema-registry is an addr"),
    ],
)
def test_wrong_options_of_topics_are_refused(films: Table, source: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        stream(LocalRun(), films.connection, None, source, str(films), **options)


def test_a_line_with_a_name_that_no_table_can_have_is_rejected_alone() -> None:
    lines = [b'{"id": 1}', b'{"id": 2, "": 1}', b'{"id": 3}']
    batches, rejected = read_json_rows(lines, [0, 1, 2], pa.schema([("id", pa.int64())]))
    assert sorted(row["id"] for batch in batches for row in batch.to_pylist()) == [1, 3]
    assert [number for number, _ in rejected] == [1]
