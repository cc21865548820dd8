"""Sinks of events: where they are sent, which of them, and how they are signed.

The secret that signs is never in the settings themselves, but a reference: `env:NAME` or `file:PATH`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from tiltyard.model.refusals import RefusedError
from tiltyard.model.settings.kafka_topics import CONNECTION_PROPERTIES, SCHEME, SECRET_PROPERTIES, Topic
from tiltyard.model.settings.storages import is_reference

MAX_SINKS = 16
"""Each that has something to send takes a thread of a worker."""
MIN_FILE_BYTES, MAX_FILE_BYTES = 1 << 16, 1 << 40
"""Bytes after which a file of events is rotated: the least and the greatest value."""
MAX_FILES = 1_000
"""Rotated files that are kept at most."""
MAX_EVENT_ATTEMPTS = 100
"""What the attempts of a sink can be at most."""
MAX_TIMEOUT_SECONDS = 60.0
"""What the timeout of a sink can be at most: its sender has a lease meanwhile."""
AUDIT_SINK = "audit-webhook"
"""The name of the sink that the setting audit_webhook is."""
_NAME = re.compile(r"[\w-]{1,64}", re.ASCII)


class EventSink(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A sink: a webhook, or a topic of Kafka, at `url`, or a `file` of JSON lines.

    It gets events of `types` (all without any) of the object with the id `object`, and of all in it. `secret` signs
    what a webhook gets, `headers` are sent with it; `properties` are those of Kafka's client. An event that was not
    taken in `attempts` is a dead letter. A file is rotated after `file_bytes`, and the last `files` are kept.
    """

    url: str = ""
    file: str = ""
    types: tuple[str, ...] = ()
    object: str = ""
    secret: str = ""
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    properties: dict[str, str] = msgspec.field(default_factory=dict)
    timeout: float = 10.0
    attempts: int = 12
    file_bytes: int = 64 << 20
    files: int = 10

    @property
    def is_topic(self) -> bool:
        """Whether it is a topic of Kafka."""
        return self.url.startswith(SCHEME)


def audit_sink(url: str, headers: Mapping[str, str]) -> EventSink:
    """Return the sink that gets the audit's records alone, unsigned: its headers say whose they are."""
    return EventSink(url=url, headers=dict(headers), types=("audit",))


def event_sinks_problem(sinks: Mapping[str, EventSink]) -> str | None:
    """Return what is wrong with the setting `event_sinks`; None if nothing is."""
    if len(sinks) > MAX_SINKS:
        return f"The setting event_sinks has more than {MAX_SINKS} sinks."
    for name, sink in sinks.items():
        if problem := _sink_problem(name, sink):
            return f"The event sink {name} cannot be used: {problem}."
    return None


def _sink_problem(name: str, sink: EventSink) -> str | None:
    if name == AUDIT_SINK:
        return "its name is that of the setting audit_webhook"
    if not _NAME.fullmatch(name):
        return "its name has letters, digits, - and _, up to 64"
    if bool(sink.url) == bool(sink.file):
        return "set either its url or its file"
    if sink.secret and not is_reference(sink.secret):
        return "its secret is in plain text, write env:NAME or file:PATH"
    if not 0.1 <= sink.timeout <= MAX_TIMEOUT_SECONDS or not 1 <= sink.attempts <= MAX_EVENT_ATTEMPTS:
        return f"its timeout is 0.1 to {MAX_TIMEOUT_SECONDS:g} seconds, its attempts are 1 to {MAX_EVENT_ATTEMPTS}"
    if sink.properties and not sink.is_topic:
        return "properties are those of a topic of Kafka"
    if sink.is_topic:
        return _topic_problem(sink)
    return _webhook_problem(sink) if sink.url else _file_problem(sink)


def _topic_problem(sink: EventSink) -> str | None:
    try:
        Topic.parse(sink.url)
    except RefusedError:
        return "its url is kafka://HOST:PORT/TOPIC, with commas between several brokers"
    if sink.secret or sink.headers:
        return "a topic has neither secret nor headers, but properties"
    if unknown := sorted({*sink.properties} - CONNECTION_PROPERTIES):
        return f"{unknown[0]} is not one of the properties {', '.join(sorted(CONNECTION_PROPERTIES))}"
    for name in sorted(SECRET_PROPERTIES.intersection(sink.properties)):
        if not is_reference(sink.properties[name]):
            return f"its {name} is in plain text, write env:NAME or file:PATH"
    return None


def _webhook_problem(sink: EventSink) -> str | None:
    parts = urlsplit(sink.url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        return "its url is one of http or https, without credentials, or a topic of Kafka"
    if not sink.secret:
        return "a webhook needs a secret, so that its receiver can tell whose messages they are"
    return None


def _file_problem(sink: EventSink) -> str | None:
    if not Path(sink.file).is_absolute():
        return "its file is an absolute path"
    if sink.secret or sink.headers:
        return "a file has neither secret nor headers"
    if not MIN_FILE_BYTES <= sink.file_bytes <= MAX_FILE_BYTES or not 1 <= sink.files <= MAX_FILES:
        return f"its file_bytes are {MIN_FILE_BYTES} to {MAX_FILE_BYTES}, its files 1 to {MAX_FILES}"
    return None
