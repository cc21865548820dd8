"""Events come to their sinks, signed, in order, and what a sink does not take is not lost."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.events.receiver import Receiver, eventually, short_type, sinks_of
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream
from tiltyard.cli import main

ROWS = pa.table({"id": pa.array(range(10), pa.int64())})


def run(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["events", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def test_changes_come_signed_and_in_order_to_a_webhook_and_a_file(root: Path, tmp_path: Path) -> None:
    lines = tmp_path / "events.jsonl"
    with Receiver() as receiver:
        environ = sinks_of(
            hook={"url": receiver.url, "types": ["table", "namespace.created"]},
            lines={"file": str(lines), "object": "b", "file_bytes": 1 << 16, "files": 2},
        )
        server = ServerProcess(root, environ=environ)
        with Wire(server.url) as wire:
            wire.good(wire.namespace(["a"], "create"))
            wire.good(wire.namespace(["b"], "create"))
            wire.good(wire.table(["a", "t"], "create", stream(ROWS)))
            wire.good(wire.table(["a", "t"], "insert", stream(ROWS)))
            wire.good(wire.table(["a", "t"], "rename", {"new_table_name": "u", "new_namespace_id": ["b"]}))
            wire.good(wire.table(["b", "u"], "drop"))
            wire.good(wire.table(["b", "u"], "create", stream(ROWS)))
        eventually(lambda: receiver.types().count("table.created") == 2, "the second table")
        types = [each for each in receiver.types() if each != "table.altered"]
        assert types[:4] == ["namespace.created", "namespace.created", "table.created", "table.version.created"]
        assert types[4:6] == ["table.renamed", "table.dropped"]
        renamed = next(event for event in receiver.events if short_type(event) == "table.renamed")
        assert (renamed["data"]["id"], renamed["data"]["old_id"], renamed["subject"]) == (["b", "u"], ["a", "t"], "b$u")
        created, again = (event for event in receiver.events if short_type(event) == "table.created")
        assert created["data"]["object_id"] != again["data"]["object_id"], "the same name, and another table"
        sequences = [event["sequence"] for event in receiver.events]
        assert sequences == sorted(sequences) and len({event["id"] for event in receiver.events}) == len(sequences)
        eventually(lambda: lines.exists() and "table.dropped" in lines.read_text(), "the file")
        kept = [json.loads(line) for line in lines.read_text().splitlines()]
        assert {event["subject"] for event in kept} == {"b", "b$u"}
        assert "table.dropped" in run("list", "--root", str(root), "--type", "table.dropped")
        assert "hook: at " in run("sinks", "--root", str(root))
        metrics = Wire(server.url).http.get("/metrics").text
        assert (
            'tiltyard_event_sink_lag{sink="hook"}' in metrics and 'tiltyard_event_dead_letters{sink="lines"}' in metrics
        )
        assert server.stop() == 0


def test_receiver_that_fails_gets_all_once_it_recovers_and_one_that_hangs_holds_up_no_other(root: Path) -> None:
    is_ill = True
    with Receiver(lambda _: 500 if is_ill else 204) as ill, Receiver(lambda _: None) as hanging, Receiver() as sound:
        sinks = {"ill": {"url": ill.url}, "hanging": {"url": hanging.url, "timeout": 0.5}, "sound": {"url": sound.url}}
        server = ServerProcess(root, environ=sinks_of(**sinks))
        with Wire(server.url) as wire:
            wire.good(wire.namespace(["a"], "create"))
            wire.good(wire.table(["a", "t"], "create", stream(ROWS)))
        eventually(lambda: "table.created" in sound.types(), "the sound one")
        assert not ill.events and not hanging.events
        eventually(lambda: len(ill.tries) >= 2 and len(hanging.tries) >= 2, "both are tried again")
        assert len({*ill.tries}) == len({*hanging.tries}) == 1, "the first one, again, with its id"
        is_ill = False
        eventually(lambda: len(ill.events) == len(sound.events), "the one that recovered")
        assert [event["id"] for event in ill.events] == [event["id"] for event in sound.events]
        assert server.stop() == 0


def test_refused_event_is_a_dead_letter_that_is_sent_again_by_command_and_all_are_by_replay(root: Path) -> None:
    refused = {"table.created"}
    with Receiver(lambda event: 422 if short_type(event) in refused else 204) as receiver:
        server = ServerProcess(root, environ=sinks_of(hook={"url": receiver.url, "attempts": 1}))
        with Wire(server.url) as wire:
            wire.good(wire.table(["t"], "create", stream(ROWS)))
            wire.good(wire.namespace(["next"], "create"))
        eventually(lambda: "namespace.created" in receiver.types(), "what follows the refused one")
        at_root = ("--root", str(root))
        letters = run("dead-letters", "hook", *at_root)
        assert "status 422" in letters and json.loads(run("dead-letters", "hook", "--json", *at_root))["subject"] == "t"
        refused.clear()
        assert run("resend", "hook", *at_root) == "To be sent again: 1 events.\n"
        eventually(lambda: "table.created" in receiver.types(), "the dead letter")
        eventually(lambda: not run("dead-letters", "hook", *at_root), "no dead letter is left")
        first = [event["id"] for event in receiver.events]
        assert "gets" in run("replay", "hook", "--after", "0", *at_root)
        eventually(lambda: len(receiver.events) == 2 * len(first), "all are there twice")
        assert {*first} == {event["id"] for event in receiver.events}
        assert server.stop() == 0


def test_audit_has_a_webhook_that_gets_its_records_alone_as_the_events_that_they_are(root: Path) -> None:
    headers = {"TILTYARD_AUDIT_WEBHOOK_HEADERS": '{"authorization": "Bearer hook"}'}
    with Receiver(is_signed=False) as receiver, Receiver() as other:
        environ = {"TILTYARD_AUDIT_WEBHOOK": receiver.url, "TILTYARD_AUDIT": "changes", **headers}
        server = ServerProcess(root, environ=environ | sinks_of(other={"url": other.url}))
        with Wire(server.url) as wire:
            wire.good(wire.namespace(["a"], "create", {"context": {"job": "nightly"}}))
        eventually(lambda: receiver.events and other.events, "both have what they want")
        assert server.stop() == 0
    [event] = receiver.events
    assert {name: event[name] for name in ("specversion", "type", "source", "subject")} == {
        "specversion": "1.0",
        "type": "io.tiltyard.audit.call.v1",
        "source": "/tiltyard",
        "subject": "a",
    }
    data = event["data"]
    assert (data["operation"], data["record_id"], data["context"]) == (
        "CreateNamespace",
        event["id"],
        {"job": "nightly"},
    )
    assert "code" not in data and data["duration_micros"] > 0
    assert receiver.headers[0]["authorization"] == "Bearer hook" and "webhook-signature" not in receiver.headers[0]
    assert other.types() == ["namespace.created"]


def test_sink_that_comes_too_late_is_told_so_and_a_server_without_events_records_none(root: Path) -> None:
    server = ServerProcess(root)
    with Wire(server.url) as wire:
        wire.good(wire.namespace(["a"], "create"))
        assert wire.http.get("/tiltyard/v1/events").status_code == 406
    assert server.stop() == 0
    result = CliRunner().invoke(main, ["events", "list", "--root", str(root)])
    assert result.exit_code == 1 and "keeps no events" in result.output
    with Receiver(lambda _: 500) as receiver:
        server = ServerProcess(root, environ=sinks_of(hook={"url": receiver.url}) | {"TILTYARD_JOBS": "0"})
        with Wire(server.url) as wire:
            for name in ("b", "c", "d"):
                wire.good(wire.namespace([name], "create"))
        assert server.stop() == 0
        from tiltyard.store import open_store

        with open_store(f"sqlite:///{root}/catalog.db") as store:
            assert (store.number_events(), store.sweep_events(0, 1, 100)) == (3, 2)
        receiver.answer = lambda _: 204
        server = ServerProcess(root, environ=sinks_of(hook={"url": receiver.url}))
        eventually(lambda: len(receiver.events) == 2, "the loss, and what is left")
        assert receiver.types() == ["events.lost", "namespace.created"]
        assert receiver.events[0]["data"] == {"after": 0, "until": 2}
        eventually(lambda: "missed 2" in run("sinks", "--root", str(root)), "the sink has missed two")
        assert server.stop() == 0
