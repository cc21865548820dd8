"""Events come to a topic of Kafka: each once, in order for each object, whatever the brokers do."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.events.receiver import eventually, short_type, sinks_of
from tests.events.test_sinks import ROWS, run
from tests.services.certificates import loopback_certificate
from tests.services.kafka import BROKER_PASSWORD, Broker, kafka_broker
from tests.services.ports import reserve_port
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream
from tiltyard.events.deliveries import Message, NotDeliveredError
from tiltyard.events.kafka import KafkaDelivery, partition_key
from tiltyard.model.settings.event_sinks import EventSink, event_sinks_problem
from tiltyard.model.settings.storages import SecretError


def test_broker_that_is_away_takes_nothing_and_says_so() -> None:
    port, reserved = reserve_port()
    delivery = KafkaDelivery("bus", EventSink(url=f"kafka://127.0.0.1:{port}/events", timeout=0.3))
    try:
        with pytest.raises(NotDeliveredError, match="no acknowledgement") as raised:
            delivery.deliver([message(1, "table/1"), message(2, "table/1")])
        assert (raised.value.delivered, raised.value.attempts) == (0, None)
        with pytest.raises(NotDeliveredError, match="MSG_SIZE_TOO_LARGE") as raised:
            delivery.deliver([message(3, "table/1", size=2_000_000)])
        assert (raised.value.delivered, raised.value.attempts) == (0, 3)
    finally:
        delivery.close()
        reserved.close()


def test_settings_of_a_topic_have_no_secret_in_plain_text_and_no_other_properties() -> None:
    url = "kafka://a:9092,b:9092/events"

    def problem(**fields: Any) -> str:
        return event_sinks_problem({"bus": EventSink(**{"url": url, **fields})}) or ""

    assert problem(properties={"security.protocol": "SASL_SSL", "sasl.password": "env:X"}) == ""
    assert "in plain text" in problem(properties={"sasl.password": "x"})
    assert "plugin.library.paths is not one of" in problem(properties={"plugin.library.paths": "/x"})
    assert "neither secret nor headers" in problem(secret="env:X")
    assert "kafka://HOST:PORT/TOPIC" in problem(url="kafka://a:9092")
    assert "of a topic of Kafka" in problem(url="http://a", secret="env:X", properties={"client.id": "x"})
    with pytest.raises(SecretError, match="needs the variable NONE_SUCH"):
        KafkaDelivery("bus", EventSink(url=url, properties={"sasl.password": "env:NONE_SUCH"}))
    with pytest.raises(SecretError, match="does not take its properties"):
        KafkaDelivery("bus", EventSink(url=url, properties={"security.protocol": "none such"}))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Start a broker for the whole file."""
    with kafka_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


def read_all(broker: Broker, topic: str, count: int) -> list[tuple[int, str, dict[str, Any], dict[str, bytes]]]:
    """Return at least `count` messages of a topic: partition, key, event and headers of each."""
    consumer = Consumer({"bootstrap.servers": broker.servers, "group.id": "test", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(3)])
    found: list[tuple[int, str, dict[str, Any], dict[str, bytes]]] = []

    def has_all() -> bool:
        for each in consumer.consume(1000, 0.2):
            assert each.error() is None
            headers = dict(each.headers() or ())
            found.append((each.partition(), each.key().decode(), json.loads(each.value()), headers))
        return len(found) >= count

    eventually(has_all, f"{count} messages")
    consumer.close()
    return found


@pytest.mark.extended
def test_changes_come_to_a_topic_by_the_key_of_their_object_and_go_on_after_the_broker_was_away(
    broker: Broker, tmp_path: Path
) -> None:
    url = broker.create("events", 3)
    server = ServerProcess(tmp_path / "root", environ=sinks_of(bus={"url": url, "timeout": 2}))
    with Wire(server.url) as wire:
        for name in "abcdef":
            wire.good(wire.namespace([name], "create"))
            wire.good(wire.table([name, "t"], "create", stream(ROWS)))
            wire.good(wire.table([name, "t"], "rename", {"new_table_name": "u"}))
        received = read_all(broker, "events", 18)
        broker.process.send_signal(signal.SIGSTOP)
        wire.good(wire.table(["a", "u"], "insert", stream(ROWS)))
        eventually(lambda: "no acknowledgement" in run("sinks", "--root", str(tmp_path / "root")), "it is away")
        wire.good(wire.table(["a", "u"], "drop"))
        broker.process.send_signal(signal.SIGCONT)
    eventually(lambda: ", 0 waiting" in run("sinks", "--root", str(tmp_path / "root")), "all is sent")
    assert server.stop() == 0
    received = read_all(broker, "events", len(received) + 2)
    assert {headers["content-type"] for *_, headers in received} == {b"application/cloudevents+json"}
    by_key: dict[str, list[str]] = {}
    for partition, key, event, _ in received:
        assert event["partitionkey"] == key and {each[0] for each in received if each[1] == key} == {partition}
        by_key.setdefault(key, []).append(event["sequence"])
    for sequences in by_key.values():
        firsts = list(dict.fromkeys(sequences))  # what is sent again keeps its sequence
        assert firsts == sorted(firsts)
    of_a = [key for _, key, event, _ in received if event.get("subject") == "a$t"]
    assert {short_type(event) for _, key, event, _ in received if key == of_a[0]} >= {
        "table.created",
        "table.renamed",
        "table.version.created",
        "table.dropped",
    }


@pytest.mark.extended
def test_broker_behind_tls_and_a_password_gets_events_of_who_has_both(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create("secured", 3)
    reached = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "ann",
        "sasl.password": "env:KAFKA_PASSWORD",
        "ssl.ca.location": str(broker.certificate),
    }

    def deliver(password: str, **properties: str) -> None:
        monkeypatch.setenv("KAFKA_PASSWORD", password)
        url = f"kafka://{broker.secured}/secured"
        delivery = KafkaDelivery("bus", EventSink(url=url, timeout=5, properties=reached | properties))
        try:
            delivery.deliver([message(1, "table/1")])
        finally:
            delivery.close()

    deliver(BROKER_PASSWORD)
    with pytest.raises(NotDeliveredError, match=r"[Aa]uthentication"):
        deliver("another")
    with pytest.raises(NotDeliveredError, match="certificate"):
        deliver(BROKER_PASSWORD, **{"ssl.ca.location": str(loopback_certificate(tmp_path).certificate)})
    assert len(read_all(broker, "secured", 1)) == 1


@pytest.mark.extended
def test_event_that_a_broker_refuses_is_told_apart_from_those_of_its_batch(broker: Broker) -> None:
    url = broker.create("small", 3, {"max.message.bytes": "1000"})
    delivery = KafkaDelivery("bus", EventSink(url=url, timeout=5))
    messages = [message(number, "table/1", 5_000 if number == 3 else 0) for number in range(6)]
    with pytest.raises(NotDeliveredError, match="MSG_SIZE_TOO_LARGE") as raised:
        delivery.deliver(messages)
    assert (raised.value.delivered, raised.value.attempts) == (3, 3)
    delivery.deliver(messages[4:])
    delivery.close()
    ids = [event["id"] for _, _, event, _ in read_all(broker, "small", 5)]
    assert list(dict.fromkeys(ids)) == ["0", "1", "2", "4", "5"]


def message(number: int, key: str, size: int = 0) -> Message:
    body = json.dumps({"id": str(number), "partitionkey": key, "data": "x" * size}).encode()
    assert partition_key(body) == key.encode()
    return Message(str(number), body)
