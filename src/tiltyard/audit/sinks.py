"""Sinks: where audit records go besides the catalog, as JSON lines in a file or as CloudEvents to a webhook."""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import urllib3

from tiltyard.audit.record_queue import RecordQueue
from tiltyard.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tiltyard.model.spec import models

log = logging.getLogger("tiltyard.audit")

STDERR = "stderr"
_ENCODER = msgspec.json.Encoder()

MAX_QUEUED_EVENTS = 10_000
TIMEOUT_SECONDS = 10.0
CLOSING_SECONDS = 2.0
MEDIA_TYPE = "application/cloudevents+json"
EVENT_TYPE = "io.tiltyard.audit.call.v1"
EVENT_SOURCE = "/tiltyard"

RETRIES = urllib3.Retry(
    total=8,
    backoff_factor=0.2,
    backoff_max=15,
    status_forcelist=[408, 425, 429, 500, 502, 503, 504],
    allowed_methods=None,
    redirect=False,
    raise_on_status=False,
)
"""About a minute in all; a Retry-After is respected. An event that is sent twice has the same id."""


class Sink(Protocol):
    """Takes audit records, besides the database."""

    target: str

    def send(self, entries: Sequence[models.AuditEntry]) -> None:
        """Send records; log those that cannot be sent, and raise nothing."""

    def lost_count(self) -> int:
        """Return how many records could not be sent."""

    def close(self) -> None:
        """Send what can be sent within a few seconds."""


class LineSink:
    """Appends JSON lines to a file or to standard error.

    The file may be moved away at any time (logrotate), and several processes may share it.
    """

    target = "lines"

    def __init__(self, target: str) -> None:
        """Check that the file can be written. Raises ConfigError."""
        self._lost = 0
        self._target = target
        if target != STDERR:
            try:
                os.close(self._open())
            except OSError as error:
                raise ConfigError(f"The audit's file {target} cannot be written: {error.strerror}.") from error

    def send(self, entries: Sequence[models.AuditEntry]) -> None:
        """Append records in one write, so that lines of several processes do not mix."""
        lines = _ENCODER.encode_lines(entries)
        try:
            if self._target == STDERR:
                sys.stderr.write(lines.decode())
                sys.stderr.flush()
                return
            file = self._open()
            try:
                _write_all(file, lines)
            finally:
                os.close(file)
        except OSError as error:
            self._lost += len(entries)
            log.error("%d audit records are not in %s: %s", len(entries), self._target, error)  # noqa: TRY400 - no trace

    def lost_count(self) -> int:
        return self._lost

    def close(self) -> None:
        """Do nothing: no record is held back."""

    def _open(self) -> int:
        return os.open(self._target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)


def _write_all(file: int, lines: bytes) -> None:
    while lines:
        lines = lines[os.write(file, lines) :]


class WebhookSink(RecordQueue["models.AuditEntry"]):
    """Posts each record as a CloudEvent (https://cloudevents.io, HTTP binding, structured mode).

    Of MAX_QUEUED_EVENTS that wait, further ones are dropped and counted.
    """

    target = "webhook"

    def __init__(self, url: str, headers: Mapping[str, str], retries: urllib3.Retry = RETRIES) -> None:
        self._dropped = 0
        self._failed = 0
        self._url = url
        self._headers = {**headers, "content-type": MEDIA_TYPE}
        self._pool = urllib3.PoolManager(retries=retries, timeout=TIMEOUT_SECONDS)
        super().__init__("audit-webhook")

    def send(self, entries: Sequence[models.AuditEntry]) -> None:
        for entry in entries:
            if self.waiting < MAX_QUEUED_EVENTS:
                self.add(entry)
                continue
            self._dropped += 1
            if self._dropped == 1:
                log.warning("the audit's webhook does not keep up: events are being dropped")
        self.hand_over_soon()

    def lost_count(self) -> int:
        return self._dropped + self._failed

    def close(self) -> None:
        if self._closing:
            return
        self.end(CLOSING_SECONDS)
        if unsent := self.waiting:
            log.error("%d audit events were not sent to the webhook before the server stopped", unsent)

    def hand_over(self, batch: list[models.AuditEntry]) -> None:
        for entry in batch:
            try:
                self._post(entry)
            except Exception:  # a broken event must not end the thread
                self._failed += 1
                log.exception("an audit event cannot be sent")

    def _post(self, entry: models.AuditEntry) -> None:
        try:
            response = self._pool.request("POST", self._url, body=_to_event(entry), headers=self._headers)
        except urllib3.exceptions.HTTPError as error:
            self._count_failure(entry, type(error).__name__)
            return
        if response.status >= 300:
            self._count_failure(entry, f"status {response.status}")

    def _count_failure(self, entry: models.AuditEntry, reason: str) -> None:
        self._failed += 1
        log.error("audit event %s is not with the webhook: %s", entry.record_id, reason)


def _to_event(entry: models.AuditEntry) -> bytes:
    at = datetime.fromtimestamp(entry.at_millis / 1000, UTC).isoformat(timespec="milliseconds")
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": entry.record_id,
        "source": EVENT_SOURCE,
        "type": EVENT_TYPE,
        "time": at.replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "data": entry,
    }
    if entry.object:
        event["subject"] = entry.object
    return msgspec.json.encode(event)
