"""Audit records as CloudEvents, one POST for each (https://cloudevents.io, HTTP binding, structured mode)."""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime
from queue import Full, Queue
from typing import TYPE_CHECKING, Any

import msgspec
import urllib3

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tiltyard.model.spec import models

log = logging.getLogger("tiltyard.audit")

MOST_WAITING = 10_000
TIMEOUT_SECONDS = 10.0
CLOSING_SECONDS = 2.0
MEDIA = "application/cloudevents+json"
TYPE = "io.tiltyard.audit.call.v1"
SOURCE = "/tiltyard"

RETRIES = urllib3.Retry(
    total=8,
    backoff_factor=0.2,
    backoff_max=15,
    status_forcelist=[408, 425, 429, 500, 502, 503, 504],
    allowed_methods=None,
    redirect=False,
    raise_on_status=False,
)
"""About a minute in all; a Retry-After is heeded. An event that comes twice has the same id."""


class Webhook:
    """Sends from a thread of its own, out of a bounded queue: what does not fit is dropped and counted."""

    name = "webhook"

    def __init__(self, url: str, headers: Mapping[str, str], retries: urllib3.Retry = RETRIES) -> None:
        self._dropped = 0
        self._failed = 0
        self._url = url
        self._headers = {**headers, "content-type": MEDIA}
        self._queue: Queue[models.AuditEntry | None] = Queue(MOST_WAITING)
        self._pool = urllib3.PoolManager(retries=retries, timeout=TIMEOUT_SECONDS)
        self._thread = threading.Thread(target=self._run, name="audit-webhook", daemon=True)
        self._thread.start()

    def take(self, entries: Sequence[models.AuditEntry]) -> None:
        """See Sink."""
        for one in entries:
            try:
                self._queue.put_nowait(one)
            except Full:
                self._dropped += 1
                if self._dropped == 1:
                    log.warning("the audit's webhook does not keep up: events are being dropped")

    def lost(self) -> int:
        """See Sink."""
        return self._dropped + self._failed

    def close(self) -> None:
        """See Sink."""
        deadline = time.monotonic() + CLOSING_SECONDS
        while not self._queue.empty() and time.monotonic() < deadline:
            time.sleep(0.01)
        if left := self._queue.qsize():
            log.error("%d audit events were not sent to the webhook before the server stopped", left)
            return
        self._queue.put(None)
        self._thread.join(CLOSING_SECONDS)

    def _run(self) -> None:
        while (one := self._queue.get()) is not None:
            try:
                self._send(one)
            except Exception:  # a broken event must not end the thread
                self._failed += 1
                log.exception("an audit event cannot be sent")

    def _send(self, one: models.AuditEntry) -> None:
        try:
            answer = self._pool.request("POST", self._url, body=_event(one), headers=self._headers)
        except urllib3.exceptions.HTTPError as error:
            self._lost(one, type(error).__name__)
            return
        if answer.status >= 300:
            self._lost(one, f"status {answer.status}")

    def _lost(self, one: models.AuditEntry, reason: str) -> None:
        self._failed += 1
        log.error("audit event %s is not with the webhook: %s", one.record_id, reason)


def _event(one: models.AuditEntry) -> bytes:
    at = datetime.fromtimestamp(one.at_millis / 1000, UTC).isoformat(timespec="milliseconds")
    event: dict[str, Any] = {
        "specversion": "1.0",
        "id": one.record_id,
        "source": SOURCE,
        "type": TYPE,
        "time": at.replace("+00:00", "Z"),
        "datacontenttype": "application/json",
        "data": one,
    }
    if one.object:
        event["subject"] = one.object
    return msgspec.json.encode(event)
