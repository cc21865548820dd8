"""Events on their way to sinks: a file that is rotated, and a webhook that nobody answers, which makes dead letters."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.faults.sweep.installation import Installation, create_table
from tests.faults.sweep.operation import Begin, SweptOperation
from tiltyard.context import Services
from tiltyard.events.senders import EventSenders
from tiltyard.model.settings.event_sinks import MIN_FILE_BYTES

NAMES = [f"{number:0200}" for number in range(100)]
"""So many, and so long, that no more events fit one file."""
TABLES = ["a", "b"]
SECRET = "whsec_" + base64.b64encode(bytes(32)).decode()
UNANSWERED = "http://127.0.0.1:9/events"
SEND_SECONDS = 60.0


def lines_file(installation: Installation) -> str:
    return str(installation.folder / "events.jsonl")


@contextmanager
def open_senders(installation: Installation) -> Iterator[Services]:
    """Open the catalog with both sinks."""
    secret = installation.folder / "secret"
    secret.write_text(SECRET)
    hook = {"url": UNANSWERED, "secret": f"file:{secret}", "attempts": 1, "types": ["table.dropped"]}
    lines = {"file": lines_file(installation), "file_bytes": MIN_FILE_BYTES}
    with installation.namespace(event_sinks=json.dumps({"hook": hook, "lines": lines})) as namespace:
        yield namespace._services


def prepare_events(installation: Installation) -> None:
    """A file that is full of events, and changes since, of which the sinks have got none yet, as no worker runs."""
    with open_senders(installation), installation.namespace() as namespace:
        for name in NAMES:
            namespace.call("CreateNamespace", {"id": [name]})
    send_events(installation)
    with installation.namespace() as namespace:
        for name in TABLES:
            create_table(namespace, [name], 1)
            namespace.call("DropTable", {"id": [name]})


def send_events(installation: Installation, begin: Begin = lambda: None) -> None:
    with open_senders(installation) as services:
        begin()
        senders = EventSenders(services, threading.Event())
        senders.start_due()
        senders.stop(SEND_SECONDS)


def finish_events(installation: Installation) -> None:
    """The file has each event, the first time in its order; those for the webhook are dead letters."""
    installation.sql("UPDATE event_sinks SET lease_until = 0, due_at = 0")
    send_events(installation)
    expected = [event for (event,) in installation.sql("SELECT event_id FROM events ORDER BY position")]
    files = sorted(installation.folder.glob("events.jsonl*"), reverse=True)
    sent = [json.loads(line)["id"] for file in files for line in file.read_text().splitlines()]
    assert list(dict.fromkeys(sent)) == expected, (len(sent), len(set(sent)), len(expected))
    assert len(files) > 1
    [(last,)] = installation.sql("SELECT last_position FROM event_streams")
    assert installation.sql("SELECT position FROM event_sinks") == [(last,), (last,)]
    letters = installation.sql("SELECT event_id FROM event_dead_letters WHERE sink = 'hook' ORDER BY position")
    dropped = installation.sql("SELECT event_id FROM events WHERE type = 'table.dropped' ORDER BY position")
    assert letters == dropped and len(letters) == len(TABLES)


EVENTS: dict[str, SweptOperation] = {"events": SweptOperation(prepare_events, send_events, finish_events)}
