"""How a sink gets events: by signed requests to a webhook, as lines of a file that is rotated, or by `kafka`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import urllib3

from tiltyard.events.cloudevents import MEDIA_TYPE
from tiltyard.events.signatures import ID, SIGNATURE, TIMESTAMP, sign
from tiltyard.runtime.durability import append_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tiltyard.model.settings.event_sinks import EventSink

MAX_REFUSALS = 3
"""Attempts after which an event is a dead letter that its receiver refuses for itself (most statuses of 400 to 499)."""
PASSING = frozenset({408, 409, 425, 429})
"""Statuses of those that pass, as 500 to 599 do: it is tried as often as the sink's attempts say."""


class NotDeliveredError(Exception):
    """A sink did not take an event: that behind the first `delivered` ones.

    `attempts` is how often it is worth trying, None for as often as the sink says.
    """

    def __init__(self, reason: str, attempts: int | None = None, delivered: int = 0) -> None:
        super().__init__(reason)
        self.attempts = attempts
        self.delivered = delivered


@dataclass(frozen=True, slots=True)
class Message:
    """An event as it is sent: with its id, by which receivers know what they have already."""

    id: str
    body: bytes


class Delivery(Protocol):
    """What gets messages to a sink."""

    max_messages: int
    """How many are delivered in one call."""

    def deliver(self, messages: Sequence[Message]) -> None:
        """Deliver messages, in order. Raises NotDeliveredError, which says how many of the first are delivered."""

    def close(self) -> None:
        """Close connections."""


class WebhookDelivery:
    """Posts each event, signed where there is a key, and waits for a status of 200 to 299."""

    max_messages = 1

    def __init__(self, sink: EventSink, key: bytes | None, clock: Callable[[], float] = time.time) -> None:
        self._url = sink.url
        self._headers = {**sink.headers, "content-type": MEDIA_TYPE, "user-agent": "tiltyard"}
        self._key = key
        self._clock = clock
        self._pool = urllib3.PoolManager(retries=False, timeout=sink.timeout)

    def deliver(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._post(message)

    def _post(self, message: Message) -> None:
        at = int(self._clock())
        signed = {ID: message.id, TIMESTAMP: str(at)}
        if self._key is not None:
            signed[SIGNATURE] = sign(self._key, message.id, at, message.body)
        try:
            response = self._pool.request(
                "POST", self._url, body=message.body, headers={**self._headers, **signed}, redirect=False
            )
        except urllib3.exceptions.HTTPError as error:
            raise NotDeliveredError(f"no answer: {type(error).__name__}") from error
        status = response.status
        if not 200 <= status < 300:
            is_refusal = 300 <= status < 500 and status not in PASSING
            raise NotDeliveredError(f"status {status}", MAX_REFUSALS if is_refusal else None)

    def close(self) -> None:
        self._pool.clear()


class FileDelivery:
    """Appends events to a file, a line of JSON each, durable before they count as delivered.

    A full file is renamed: `NAME.1` is the last one before it.
    """

    max_messages = 500

    def __init__(self, file: Path, max_bytes: int, max_files: int) -> None:
        self._file = file
        self._max_bytes = max_bytes
        self._max_files = max_files

    def deliver(self, messages: Sequence[Message]) -> None:
        lines = b"".join(message.body + b"\n" for message in messages)
        try:
            self._rotate(len(lines))
            append_lines(self._file, lines, durably=True)
        except OSError as error:
            raise NotDeliveredError(f"{self._file} cannot be written: {error.strerror}") from error

    def _rotate(self, size: int) -> None:
        """Rename the files where this one would get too large."""
        if not self._file.exists() or self._file.stat().st_size + size <= self._max_bytes:
            return
        for number in range(self._max_files - 1, 0, -1):
            earlier = self._numbered(number)
            if earlier.exists():
                earlier.replace(self._numbered(number + 1))
        self._file.replace(self._numbered(1))
        self._numbered(self._max_files).unlink(missing_ok=True)

    def _numbered(self, number: int) -> Path:
        return self._file.with_name(f"{self._file.name}.{number}")

    def close(self) -> None:
        """Do nothing: the file is open while it is written alone."""
