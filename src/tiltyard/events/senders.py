"""Send events to the sinks of the settings, in order, at least once: of all servers, one sends to a sink at a time.

A sender claims its sink's lease, and acknowledges in the catalog what was delivered. Whoever goes on after it, begins
behind the last acknowledgement: what was sent after that is sent again, with the same ids.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lance_namespace.errors import ConcurrentModificationError, LanceNamespaceError

from tiltyard.events.cloudevents import encode_event, encode_loss
from tiltyard.events.deliveries import Delivery, FileDelivery, Message, NotDeliveredError, WebhookDelivery
from tiltyard.events.filters import EventFilter
from tiltyard.events.kafka import KafkaDelivery
from tiltyard.events.signatures import read_signing_secret
from tiltyard.model.settings.storages import SecretError, read_secret
from tiltyard.runtime.failpoints import Point, reach
from tiltyard.runtime.lease import LEASE_MS, Lease
from tiltyard.runtime.pool import KeyedThreads
from tiltyard.store.events.outbox import NUMBER_EVENTS
from tiltyard.store.events.sinks import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Services
    from tiltyard.model.settings.event_sinks import EventSink
    from tiltyard.store.events.outbox import EventRecord
    from tiltyard.store.events.sinks import EventSinkRecord

log = logging.getLogger("tiltyard.events")

PAGE = 500
"""Events that are read at a time."""
ACKNOWLEDGE_SECONDS = 1.0
"""How often a sender acknowledges what it has delivered, besides at its end: what is sent again after a crash."""
FIRST_WAIT_MS, MAX_WAIT_MS = 1_000, 300_000
"""How long a sink rests after an event that it did not take: twice as long each time, five minutes at most."""


class EventSenders:
    """Starts to send to each sink that has something to get whenever `start_due` is called, by one thread.

    A sink has a thread of its own: a receiver that hangs is waited for, and must not delay others, as a loop would.
    """

    def __init__(self, services: Services, stopping: threading.Event) -> None:
        self._services = services
        self._stopping = stopping
        self._owner = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._threads = KeyedThreads[str]()

    def start_due(self) -> None:
        """Give new events their positions, and start what is due. Raises ServiceUnavailableError."""
        sinks = self._services.settings.all_event_sinks
        if not sinks and not self._services.settings.events:
            return
        store = self._services.store
        while store.has_unnumbered_events() and store.number_events() == NUMBER_EVENTS:
            pass
        stream = store.event_stream() if sinks else None
        if stream is None:
            return
        resent, now = store.dead_letter_counts(), self._services.clock()
        for record in store.list_event_sinks():
            has_work = record.position < stream.last_position or resent.get(record.name, (0, 0))[1] > 0
            is_free = record.lease_until <= now and record.due_at <= now and record.name not in self._threads
            if record.name in sinks and has_work and is_free:
                self._threads.start(
                    record.name, f"events-{record.name}", partial(self._send, record.name, sinks[record.name])
                )

    def stop(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for what runs, which ends after the event under way."""
        self._threads.stop(timeout)

    def _send(self, name: str, sink: EventSink) -> None:
        try:
            record = self._services.store.claim_event_sink(name, self._owner, LEASE_MS)
            if record is not None:
                send_events(self._services, self._owner, record, sink, self._stopping)
        except LanceNamespaceError as error:
            if not self._services.outage_log.report(error):
                log.warning("events are not sent to %s: %s", name, error)
        except Exception:  # without it the thread would end in silence
            log.exception("events are not sent to %s", name)


def send_events(
    services: Services, owner: str, record: EventSinkRecord, sink: EventSink, stopping: threading.Event
) -> None:
    """Send to a claimed sink until it has all, does not take one, or this process stops; release it then.

    Raises ServiceUnavailableError where the catalog is away.
    """
    store = services.store
    try:
        delivery = open_delivery(record.name, sink)
    except SecretError as error:
        log.error("%s", error)  # noqa: TRY400 - the message says all
        store.release_event_sink(record.name, owner, 0, str(error), MAX_WAIT_MS)
        return
    renew = partial(store.renew_event_sink, record.name, owner, LEASE_MS)
    lease = Lease(f"event sink {record.name}", renew, report=services.outage_log.report)
    try:
        with suppress(ConcurrentModificationError):  # moved or removed meanwhile, or another has it
            _Sender(services, owner, record, sink, delivery, lease, stopping).run()
    finally:
        lease.close()
        delivery.close()


def open_delivery(name: str, sink: EventSink) -> Delivery:
    """Return what delivers to a sink. Raises SecretError, for a secret that cannot be read or is none."""
    if sink.file:
        return FileDelivery(Path(sink.file), sink.file_bytes, sink.files)
    if sink.is_topic:
        return KafkaDelivery(name, sink)
    owner = f"The event sink {name}"
    try:
        key = sink.secret and read_signing_secret(read_secret(owner, sink.secret))
    except ValueError as error:
        raise SecretError(f"{owner} has no secret: {error}.") from error
    return WebhookDelivery(sink, key or None)


class _Sender:
    """Sends to one sink, which this process holds the lease of."""

    def __init__(
        self,
        services: Services,
        owner: str,
        record: EventSinkRecord,
        sink: EventSink,
        delivery: Delivery,
        lease: Lease,
        stopping: threading.Event,
    ) -> None:
        self._store = services.store
        self._clock = services.clock
        self._name, self._owner = record.name, owner
        self._leased = record.name, owner, LEASE_MS
        self._attempts = record.attempts
        self._position = self._acknowledged = record.position
        self._acknowledged_at = time.monotonic()
        self._sink = sink
        self._filter = EventFilter(sink.types, sink.object)
        self._delivery = delivery
        self._lease = lease
        self._stopping = stopping

    def run(self) -> None:
        """Send, and release the lease. Raises ConcurrentModificationError once it is another's."""
        try:
            self._resend()
            self._tell_loss()
            while self._goes_on() and (page := self._store.list_events(self._position, PAGE)):
                self._send_page(page)
        except NotDeliveredError as error:
            self._acknowledge()
            self._rest(str(error))
            return
        self._acknowledge()
        self._store.release_event_sink(self._name, self._owner)

    def _goes_on(self) -> bool:
        return not self._stopping.is_set() and self._lease.check()

    def _send_page(self, page: Sequence[EventRecord]) -> None:
        size = self._delivery.max_messages
        wanted = [event for event in page if self._filter.matches(event)]
        for start in range(0, len(wanted), size):
            if not self._goes_on():
                return
            batch = wanted[start : start + size]
            self._position = batch[0].position - 1
            if not self._deliver(batch):
                return
            if time.monotonic() - self._acknowledged_at >= ACKNOWLEDGE_SECONDS:
                self._acknowledge()
        self._position = page[-1].position

    def _deliver(self, batch: Sequence[EventRecord]) -> bool:
        """Deliver events; one that is refused for good is a dead letter, and those behind it are delivered.

        Returns False where it has to stop before that. Raises NotDeliveredError.
        """
        left = [(event, Message(event.id, encode_event(event))) for event in batch]
        while left:
            try:
                self._delivery.deliver([message for _, message in left])
                delivered = len(left)
            except NotDeliveredError as error:
                delivered = error.delivered
                self._attempts = 1 if delivered else self._attempts + 1
                if delivered:
                    self._position = left[delivered - 1][0].position
                if self._attempts < min(self._sink.attempts, error.attempts or self._sink.attempts):
                    raise
                self._bury(*left[delivered], str(error))
                delivered += 1
            self._position = left[delivered - 1][0].position
            self._attempts = 0
            del left[:delivered]
            reach(Point.EVENT_SENT)
            if left and not self._goes_on():
                return False
        return True

    def _bury(self, event: EventRecord, message: Message, reason: str) -> None:
        log.error("event %s is a dead letter of %s: %s", event.id, self._name, reason)
        letter = DeadLetter(self._name, event.id, event.position, message.body.decode(), reason, 0, is_resent=False)
        self._store.add_dead_letter(*self._leased, letter, event.position)
        self._acknowledged = event.position

    def _resend(self) -> None:
        """Send dead letters once more, as a command has asked for; those that are not taken stay dead letters."""
        while self._goes_on() and (letters := self._store.dead_letters_to_resend(self._name, PAGE)):
            for letter in letters:
                try:
                    self._delivery.deliver([Message(letter.event_id, letter.body.encode())])
                except NotDeliveredError as error:
                    self._store.keep_dead_letter(letter, str(error))
                else:
                    self._store.delete_dead_letters(self._name, [letter.event_id])

    def _tell_loss(self) -> None:
        """Tell a sink which events were deleted before it came to them. Raises NotDeliveredError."""
        stream = self._store.event_stream()
        if stream is None or stream.lost_until <= self._position:
            return
        after, until = self._position, stream.lost_until
        log.error("%s is too late for %d events: their retention has ended", self._name, until - after)
        body = encode_loss(self._name, after, until, self._clock())
        try:
            self._delivery.deliver([Message(f"lost-{self._name}-{after}-{until}", body)])
        except NotDeliveredError:
            self._attempts += 1
            raise
        self._attempts = 0
        self._position = self._acknowledged = until
        self._store.acknowledge_events(*self._leased, until, until - after)

    def _acknowledge(self) -> None:
        if self._position > self._acknowledged:
            self._store.acknowledge_events(*self._leased, self._position)
            self._acknowledged = self._position
        self._acknowledged_at = time.monotonic()

    def _rest(self, reason: str) -> None:
        wait = min(MAX_WAIT_MS, FIRST_WAIT_MS << min(self._attempts - 1, 20))
        log.warning("events for %s wait %d s: %s", self._name, wait // 1000, reason)
        self._store.release_event_sink(self._name, self._owner, self._attempts, reason, wait)
