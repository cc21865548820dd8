"""Deliver events to a topic of Kafka: in order for each object, written by all in-sync replicas before they count.

The client is idempotent, so that what it sends again within a connection is written once, and in order; a message that
was not acknowledged in time takes what comes after it with it. So a retry repeats the end of what was written, and
never puts an earlier change of an object behind a later one that its readers have not seen after it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tiltyard.events.cloudevents import MEDIA_TYPE, PARTITION_KEY
from tiltyard.events.deliveries import MAX_REFUSALS, NotDeliveredError
from tiltyard.model.settings.kafka_topics import SECRET_PROPERTIES, Topic
from tiltyard.model.settings.storages import SecretError, read_secret

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.events.deliveries import Message
    from tiltyard.model.settings.event_sinks import EventSink

_HEADERS = [("content-type", MEDIA_TYPE.encode())]
_OF_ONE_MESSAGE = frozenset({"MSG_SIZE_TOO_LARGE", "INVALID_MSG", "INVALID_RECORD", "POLICY_VIOLATION"})
"""Errors of a message that no further attempt takes; those of brokers, and of rights that may come, pass."""
UNACKNOWLEDGED = "no acknowledgement"
MAX_PROBLEM = 300
"""Characters of what the client says of its brokers that a reason has at most."""


class KafkaDelivery:
    """Writes events to a topic, each with the key of its object, and waits for the acknowledgement of all."""

    max_messages = 500

    def __init__(self, name: str, sink: EventSink) -> None:
        """Read the secrets of a sink. Raises SecretError, also where the client is not installed or refuses them."""
        try:
            from confluent_kafka import KafkaError, KafkaException, Producer  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise SecretError("Kafka gets events by confluent-kafka: install 'tiltyard[kafka]'.") from error
        self._topic, self._timeout = Topic.parse(sink.url), sink.timeout
        owner = f"The event sink {name}"
        self._properties = {
            **{
                key: read_secret(owner, value) if key in SECRET_PROPERTIES else value
                for key, value in sink.properties.items()
            },
            "bootstrap.servers": self._topic.servers,
            "acks": "all",
            "enable.idempotence": True,
            # Where Kafka's other clients put a key, so that all find the partition of an object.
            "partitioner": "murmur2_random",
            "linger.ms": 2,
            # Later than this client waits: it is closed then, with all that it still had to send.
            "delivery.timeout.ms": int(sink.timeout * 2000),
            "error_cb": self._note_problem,
            "log_level": 0,  # what goes wrong is the reason of a failure, which is logged
        }
        self._new_producer, self._exception = Producer, KafkaException
        self._refusals = (KafkaException, BufferError, ValueError, TypeError)
        self._purged = (KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT)
        self._problem = ""
        self._producer: Any = None
        try:
            self._open()
        except self._refusals as error:
            raise SecretError(f"{owner}: Kafka's client does not take its properties.") from error

    def _open(self) -> Any:
        if self._producer is None:
            self._producer = self._new_producer(self._properties)
        return self._producer

    def deliver(self, messages: Sequence[Message]) -> None:
        """Write messages, in order. Raises NotDeliveredError, which says how many of the first are written."""
        delivered, reason = self._write(messages)
        if reason in _OF_ONE_MESSAGE and len(messages) - delivered > 1:  # those of its request were refused with it
            reason = None
            while reason is None and delivered < len(messages):
                count, reason = self._write(messages[delivered : delivered + 1])
                delivered += count
        if reason is not None:
            raise NotDeliveredError(reason, MAX_REFUSALS if reason in _OF_ONE_MESSAGE else None, delivered)

    def _write(self, messages: Sequence[Message]) -> tuple[int, str | None]:
        """Return how many of the first messages are written, and why the next one is not; None where all are."""
        producer, self._problem = self._open(), ""
        outcomes: list[str | None] = [UNACKNOWLEDGED] * len(messages)

        def note(error: Any, _: Any, number: int) -> None:
            if error is None or error.code() not in self._purged:
                outcomes[number] = None if error is None else _name(error)

        for number, message in enumerate(messages):
            try:
                producer.produce(
                    self._topic.name,
                    message.body,
                    partition_key(message.body),
                    headers=_HEADERS,
                    on_delivery=partial(note, number=number),
                )
            except self._refusals as error:
                outcomes[number] = _name(error.args[0]) if isinstance(error, self._exception) else type(error).__name__
                break
        if producer.flush(self._timeout) or any(outcomes):
            self.close()
        first = next((number for number, reason in enumerate(outcomes) if reason is not None), len(messages))
        if first == len(messages):
            return first, None
        reason = outcomes[first]
        return first, f"{reason}{self._problem}" if reason == UNACKNOWLEDGED else reason

    def _note_problem(self, error: Any) -> None:
        """Keep what the client says of its brokers, for the reason of a failure."""
        self._problem = f": {error.str()[:MAX_PROBLEM]}"

    def close(self) -> None:
        """Close connections; what was not written by now is not sent any more."""
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(0)
            self._producer = None


def _name(error: Any) -> str:
    return str(error.name()).lstrip("_")


def partition_key(body: bytes) -> bytes:
    """Return the key by which the events of one object come to one partition."""
    return str(msgspec.json.decode(body).get(PARTITION_KEY, "")).encode()
