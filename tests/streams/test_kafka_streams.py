"""Streams of a broker's topics: JSON by append and by key, change events, drivers that are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from lance_namespace.errors import InvalidInputError, ServiceUnavailableError

import tiltyard
from tests.services.kafka import Broker, kafka_broker
from tests.services.ports import reserve_port
from tests.services.schema_registry import schema_registry
from tests.services.server import ServerProcess
from tests.streams.change_events import AVRO_EVENT, AVRO_KEY, avro, event, key, plain_event
from tests.streams.test_folder_streams import ids, rows
from tests.streams.test_stream_jobs import has_figure, wait_until
from tiltyard.pipeline.catalog_client import Table
from tiltyard.pipeline.runs import LocalRun, RunCanceledError
from tiltyard.pipeline.streams import job as stream_job
from tiltyard.pipeline.streams import kafka
from tiltyard.pipeline.streams.job import stream
from tiltyard.runtime.failpoints import VARIABLE, Point

pytestmark = pytest.mark.extended

Follow = Callable[..., Mapping[str, Any]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Start a broker for the whole file."""
    with kafka_broker(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def topic(request: pytest.FixtureRequest, broker: Broker) -> str:
    """Return the name of a topic with two partitions that no other test uses."""
    name = f"topic-{abs(hash(request.node.nodeid))}"
    broker.create(name, 2)
    return name


@pytest.fixture
def follow(broker: Broker, topic: str, films: Table) -> Follow:
    """Return a function that takes all messages to the table."""

    def run(**options: Any) -> Mapping[str, Any]:
        arguments = {"available_now": True, "batch_seconds": 0.2, **options}
        uri = f"kafka://{broker.servers}/{topic}"
        return stream(LocalRun(), films.connection, None, uri, str(films), **arguments)

    return run


def message(**row: Any) -> tuple[None, bytes]:
    return None, json.dumps(row).encode()


def test_messages_are_appended_once_over_all_partitions(
    broker: Broker, topic: str, films: Table, follow: Follow, tmp_path: Path
) -> None:
    assert follow()["rows"] == 0
    broker.send(topic, [message(id=1, v="a"), message(id=2, v="b")])
    broker.send(topic, [message(id=3, v="c"), (None, b"no json"), (None, None)], partition=1)
    figures = follow(rejects=str(tmp_path / "bad"))
    assert (figures["rows"], figures["rejected"], figures["lag"]) == (3, 1, 0)
    [file] = (tmp_path / "bad").iterdir()
    assert f"{topic}, partition 1, offset 1: " in file.read_text()
    broker.grow(topic, 3)
    broker.send(topic, [message(id=4, v="d", new=1.5)], partition=2)
    broker.send(topic, [message(id=5, v=6)])
    assert follow(rejects=str(tmp_path / "bad"))["rows"] == 2
    assert follow()["rows"] == 0
    assert rows(films, "id", "v", "new") == [
        (1, "a", None), (2, "b", None), (3, "c", None), (4, "d", 1.5), (5, "6", None),
    ]  # fmt: skip


def test_messages_by_key_replace_and_delete_in_order(broker: Broker, topic: str, films: Table, follow: Follow) -> None:
    broker.send(topic, [message(id=1, v=1), (b"1", None), message(id=2, v=2), message(id=1, v=3), (b"9", None)])
    follow(on=["id"])
    assert rows(films, "id", "v") == [(1, 3), (2, 2)]
    broker.send(topic, [(b'{"id": 1}', None), message(id=2, v=4), (b"2", None), message(id=2, v=5)])
    follow(on=["id"], batch_rows=2)
    assert rows(films, "id", "v") == [(2, 5)]
    broker.send(topic, [(b"2", None)])
    follow(on=["id"])
    assert ids(films) == []


def test_change_events_are_applied_in_the_order_of_each_key(
    broker: Broker, topic: str, films: Table, follow: Follow
) -> None:
    first = {"id": 1, "title": "a", "day": 0}
    events = [event("r", first), event("u", {**first, "title": "b", "day": 1}, first)]
    events += [event("c", {"id": number, "title": "x", "day": number}) for number in range(2, 8)]
    broker.send(topic, [(None, each) for each in events])
    follow(format="debezium", on=["id"])
    gone = [(key(2), event("d", None, {"id": 2, "title": "x"})), (key(2), None), (key(3), event("d", None, None))]
    again = [(key(4), event("d", None, {"id": 4})), (key(4), event("c", {"id": 4, "title": "back", "day": 9}))]
    broker.send(topic, [*gone, *again, (key(5), plain_event("u", {"id": 5, "title": "plain", "day": "1970-01-02"}))])
    figures = follow(format="debezium", on=["id"], batch_rows=2)
    assert figures["lag"] == 0
    table = films.dataset().to_table().sort_by("id")
    assert [(row["id"], row["title"], str(row["day"])[:10]) for row in table.to_pylist()] == [
        (1, "b", "1970-01-02"), (4, "back", "1970-01-10"), (5, "plain", "1970-01-02"),
        (6, "x", "1970-01-07"), (7, "x", "1970-01-08"),
    ]  # fmt: skip


def test_change_events_in_avro_are_applied_with_the_schemas_of_a_registry(
    broker: Broker, topic: str, films: Table, follow: Follow, tmp_path: Path
) -> None:
    names = ("title", "day", "at", "seen", "price", "any", "raw")
    with schema_registry("me:secret") as registry:
        keys, events = registry.add(AVRO_KEY), registry.add(AVRO_EVENT)
        (tmp_path / "client.properties").write_text("schema.registry.basic.auth.user.info=me:secret\n")
        messages: list[tuple[bytes | None, bytes | None]] = []
        for number in range(4):
            row = {"id": number, **dict.fromkeys(names), "title": "x", "day": number}
            messages.append((None, avro(events, AVRO_EVENT, {"op": "c", "after": row, "before": None})))
        gone = avro(events, AVRO_EVENT, {"op": "d", "after": None, "before": None})
        messages += [(avro(keys, AVRO_KEY, {"id": 2}), gone), (None, b'{"op": "c"}')]
        broker.send(topic, messages)
        options = {"kafka": str(tmp_path / "client.properties"), "rejects": str(tmp_path / "bad")}
        figures = follow(format="debezium", on=["id"], schema_registry=registry.url, **options)
    assert (figures["rows"], figures["rejected"], figures["lag"]) == (4, 1, 0)  # of key 2 the last event
    table = films.dataset().to_table().sort_by("id")
    assert [(row["id"], str(row["day"])[:10]) for row in table.to_pylist()] == [
        (0, "1970-01-01"), (1, "1970-01-02"), (3, "1970-01-04"),
    ]  # fmt: skip


def test_aborted_transactions_are_left_out_and_end_the_lag(
    broker: Broker, topic: str, films: Table, follow: Follow
) -> None:
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": topic})
    producer.init_transactions(60)
    for number, end in enumerate((producer.commit_transaction, producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(topic, json.dumps({"id": number}).encode(), partition=0)
        producer.flush(60)
        end(60)
    assert follow()["lag"] == 0
    assert ids(films) == [0]


def test_a_new_stream_may_begin_with_the_newest_messages(
    broker: Broker, topic: str, films: Table, follow: Follow
) -> None:
    broker.send(topic, [message(id=1)])
    follow(name="all")
    follow(start="latest", name="new")
    broker.send(topic, [message(id=2)])
    follow(start="latest", name="new")
    assert ids(films) == [1, 2]


def test_messages_that_were_deleted_unread_are_an_error(
    broker: Broker, topic: str, films: Table, follow: Follow
) -> None:
    from confluent_kafka import TopicPartition

    broker.send(topic, [message(id=1)])
    follow()
    broker.send(topic, [message(id=number) for number in range(2, 5)])
    [deleted] = broker.admin.delete_records([TopicPartition(topic, 0, 3)]).values()
    deleted.result(60)
    with pytest.raises(InvalidInputError, match=r"no offset 1 in partition 0.*--name"):
        follow()
    assert ids(films) == [1]


def test_topics_and_brokers_that_are_not_there_are_errors(
    broker: Broker, films: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (LocalRun(), films.connection, None)
    with pytest.raises(InvalidInputError, match="nowhere cannot be read"):
        stream(*arguments, f"kafka://{broker.servers}/nowhere", str(films))
    monkeypatch.setattr(kafka, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(stream_job, "OUTAGE_SECONDS", 0.0)
    port, reserved = reserve_port()
    with reserved, pytest.raises(ServiceUnavailableError, match="do not answer"):
        stream(*arguments, f"kafka://127.0.0.1:{port}/films", str(films))


def test_a_topic_that_is_followed_shows_its_lag_and_is_canceled(
    streams_server: ServerProcess, broker: Broker, topic: str
) -> None:
    lake = tiltyard.connect(streams_server.url)
    run = lake.stream(f"kafka://{broker.servers}/{topic}", topic, on="id", batch_seconds=0.1)
    sender = threading.Thread(
        target=lambda: [broker.send(topic, [message(id=number, v=number)], number % 2) for number in range(50)]
    )
    sender.start()
    sender.join(60)
    listed = lake.run(run.id)
    wait_until(has_figure(listed, "rows", "50"))
    wait_until(has_figure(listed, "lag", "0"))
    run.cancel()
    with pytest.raises(RunCanceledError):
        run.wait(60)
    assert lake.table(topic).count() == 50


def test_a_killed_driver_repeats_and_loses_nothing(
    streams_server: ServerProcess, broker: Broker, topic: str, tmp_path: Path
) -> None:
    broker.send(topic, [(None, event("c", {"id": number, "title": str(number)})) for number in range(30)])
    broker.send(topic, [(key(number), event("d", None, {"id": number})) for number in range(10)])
    command = [sys.executable, "-m", "tiltyard", "job", "stream", "--uri", streams_server.url, "--available-now"]
    command += ["--format", "debezium", "--on", "id", "--batch-rows", "16"]
    command += [f"kafka://{broker.servers}/{topic}", topic]
    for point in (Point.AFTER_FINALIZE, Point.BEFORE_RECORD):
        moment = tmp_path / "now"
        moment.touch()
        environ = {**os.environ, VARIABLE: f"{point}@{moment}"}
        assert subprocess.run(command, env=environ, check=False, timeout=120).returncode == -signal.SIGKILL
    lake = tiltyard.connect(streams_server.url)
    assert lake.table(topic).count() == 16
    lake.stream(f"kafka://{broker.servers}/{topic}", topic, on="id", format="debezium", available_now=True)
    assert sorted(lake.table(topic).to_arrow()["id"].to_pylist()) == list(range(10, 30))
