"""A topic of Kafka as the source of a stream: its partitions are read from recorded offsets on.

The table has the offsets, not Kafka: there is no consumer group. Messages of aborted transactions are left out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from lance_namespace.errors import ServiceUnavailableError

from tiltyard.model.refusals import RefusedError
from tiltyard.model.settings.kafka_topics import CONNECTION_PROPERTIES, Topic
from tiltyard.pipeline.jobs import is_worker_driver
from tiltyard.pipeline.sources.casts import ColumnSelection
from tiltyard.pipeline.sources.filesystem import local_path
from tiltyard.pipeline.sources.inspection import InspectedFile, adapt_to_table, json_reader
from tiltyard.pipeline.sources.json_lines import make_json_parser, parse_json_lines, profile_json
from tiltyard.pipeline.sources.readers import Format
from tiltyard.pipeline.sources.text_blocks import RejectedRow
from tiltyard.pipeline.sources.types import SchemaMode
from tiltyard.pipeline.streams.batches import BatchLimits, Position, StreamBatch, with_sequence
from tiltyard.pipeline.streams.messages import Decoder, Message, UnreadableMessageError
from tiltyard.pipeline.streams.schema_registry import REGISTRY_PROPERTIES

log = logging.getLogger("tiltyard.pipeline")

ANSWER_SECONDS = 20.0
"""How long the brokers may take to describe a topic."""
POLL_SECONDS = 0.2
DISCOVERY_SECONDS = 30.0
"""How often new partitions are looked for."""
MESSAGES_AT_ONCE = 1_000
MAX_QUEUED_KIB = 32 << 10
MAX_FILE_BYTES = 64 << 10
MAX_ROW_TEXT = 10_000

ALLOWED_PROPERTIES = CONNECTION_PROPERTIES | {
    "bootstrap.servers",
    "isolation.level",
    "fetch.message.max.bytes",
    "receive.message.max.bytes",
}
"""The client's properties that a file may have, beside those of a registry."""


def read_properties(file: str | None, topic: Topic) -> dict[str, str]:
    """Read the properties of Kafka's client from a file of lines NAME=VALUE, `#` for comments.

    A worker sends what the file holds only to the brokers that the file names: others choose the source. Raises
    RefusedError, which tells nothing of the file's content.
    """
    if file is None:
        return {}
    try:
        with Path(local_path(file)).open("rb") as opened:
            text = opened.read(MAX_FILE_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RefusedError(f"--kafka: the file {file} cannot be read as text.") from error
    properties: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            name, _, value = line.partition("=")
            if name.strip() not in ALLOWED_PROPERTIES | REGISTRY_PROPERTIES:
                raise RefusedError(
                    f"--kafka: line {number} of {file} is no property NAME=VALUE of these: "
                    f"{', '.join(sorted(ALLOWED_PROPERTIES | REGISTRY_PROPERTIES))}."
                )
            properties[name.strip()] = value.strip()
    servers = properties.pop("bootstrap.servers", "" if is_worker_driver() else topic.servers)
    if set(servers.split(",")) != set(topic.servers.split(",")):
        raise RefusedError(f"--kafka: {file} is not for the brokers {topic.servers} (bootstrap.servers).")
    return properties


@dataclass(slots=True)
class KafkaSource:
    """A topic that is read; `position` has the next offset of each partition, `on` is the table's key.

    A new stream begins with the oldest messages, or (`from_newest`) with those that come.
    """

    topic: Topic
    decode: Decoder
    on: Sequence[str]
    properties: Mapping[str, str]
    position: dict[str, int]
    from_newest: bool = False
    _consumer: Any = field(init=False)
    _ends: dict[str, int] = field(init=False, default_factory=dict)
    _discovered: float = field(init=False, default=0.0)
    _failure: list[str] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        try:
            from confluent_kafka import Consumer, KafkaException  # noqa: PLC0415  # an extra
        except ImportError as error:
            raise RefusedError("Kafka is read by confluent-kafka: install 'tiltyard[kafka]'.") from error
        own = {
            "bootstrap.servers": self.topic.servers,
            "group.id": "tiltyard",  # required, and not used: partitions are assigned, and no offsets committed
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": MAX_QUEUED_KIB,
            "error_cb": self._handle_error,
        }
        try:
            self._consumer = Consumer({"isolation.level": "read_committed", **self.properties, **own}, logger=log)
        except (KafkaException, ValueError, TypeError) as error:
            raise RefusedError("Kafka's client does not take the properties of the file (--kafka).") from error
        self._assign(is_new=not self.position)

    def read(self, schema: pa.Schema | None, limits: BatchLimits, check: Callable[[], None]) -> StreamBatch | None:
        """Return the next messages as rows and deletes; None if none arrive in the time that a batch may take."""
        batch = _MessageBatch(self.topic.name)
        deadline = time.monotonic() + limits.seconds
        while len(batch.messages) < limits.rows and batch.size < limits.bytes:
            check()
            if self._failure:
                raise RefusedError(f"{self.topic.servers}: {self._failure[0]}.")
            if (left := deadline - time.monotonic()) <= 0:
                break
            count = min(MESSAGES_AT_ONCE, limits.rows - len(batch.messages))
            had_messages = bool(batch.messages)
            for message in self._consumer.consume(count, min(left, POLL_SECONDS)):
                self._take(batch, message)
            if batch.messages and not had_messages:
                deadline = time.monotonic() + limits.seconds
        if time.monotonic() - self._discovered > DISCOVERY_SECONDS:
            self._assign(is_new=False)
        return batch.decode(self.decode, self.on, schema, self.position) if batch.messages else None

    def lag(self) -> int:
        """Return how many messages the brokers have behind the position, as of their last answers."""
        from confluent_kafka import TopicPartition  # noqa: PLC0415  # an extra

        lag = 0
        for partition, offset in self.position.items():
            _, end = self._consumer.get_watermark_offsets(TopicPartition(self.topic.name, int(partition)), cached=True)
            lag += max(0, max(end, self._ends.get(partition, 0)) - offset)
        return lag

    def is_caught_up(self) -> bool:
        """Return whether all messages that the brokers had when the topic was opened were read."""
        return all(self.position[partition] >= end for partition, end in self._ends.items())

    def live_position(self, position: Position) -> Position:
        """Return the position: partitions stay."""
        return position

    def close(self) -> None:
        """Leave the brokers."""
        self._consumer.close()

    def _take(self, batch: _MessageBatch, message: Any) -> None:
        """Add a message to the batch, or look at what the client says of a partition. Raises RefusedError."""
        from confluent_kafka import KafkaError  # noqa: PLC0415  # an extra

        error, partition = message.error(), str(message.partition())
        if error is None:
            batch.add(message)
            self.position[partition] = message.offset() + 1
        elif error.code() == KafkaError._PARTITION_EOF:  # behind the marks of transactions, which are no messages
            self.position[partition] = max(self.position[partition], message.offset())
        elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise RefusedError(
                f"{self.topic.name} has no offset {self.position.get(partition)} in partition {partition}: messages "
                "were deleted before they were read, or the topic was made anew. A stream of another name (--name) "
                "begins with what is there."
            )
        elif not error.retriable():
            raise RefusedError(f"{self.topic.name}, partition {partition}: {error.str()}.")
        else:
            log.info("topic %s, partition %s: %s", self.topic.name, partition, error.str())

    def _assign(self, *, is_new: bool) -> None:
        """Read all partitions of the topic, new ones from their beginning; of a new stream as it wants.

        Raises RefusedError for a topic that is not there, ServiceUnavailableError where no broker answers.
        """
        from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415  # an extra

        self._discovered = time.monotonic()
        try:
            description = self._consumer.list_topics(self.topic.name, timeout=ANSWER_SECONDS).topics[self.topic.name]
            if description.error is not None:
                raise RefusedError(f"The topic {self.topic.name} cannot be read: {description.error.str()}.")
            added = [number for number in description.partitions if str(number) not in self.position]
            for number in description.partitions:
                if str(number) in self._ends:
                    continue
                part = TopicPartition(self.topic.name, number)
                first, end = self._consumer.get_watermark_offsets(part, timeout=ANSWER_SECONDS)
                self.position.setdefault(str(number), end if is_new and self.from_newest else first)
                self._ends[str(number)] = end
        except KafkaException as error:
            if self._failure:
                raise RefusedError(f"{self.topic.servers}: {self._failure[0]}.") from error
            raise ServiceUnavailableError(
                f"The brokers {self.topic.servers} do not answer: {error.args[0].str()}."
            ) from error
        parts = [TopicPartition(self.topic.name, int(name), offset) for name, offset in self.position.items()]
        assigned = {part.partition for part in self._consumer.assignment()}
        new = [part for part in parts if part.partition not in assigned]
        if new:
            self._consumer.incremental_assign(new)
        if added and assigned:
            log.info("topic %s has the new partitions %s", self.topic.name, ", ".join(map(str, added)))

    def _handle_error(self, error: Any) -> None:
        """Remember an error that no waiting mends; the client's own thread calls it."""
        from confluent_kafka import KafkaError  # noqa: PLC0415  # an extra

        if error.fatal() or error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
            self._failure.append(error.str())
        else:
            log.info("brokers %s: %s", self.topic.servers, error.str())


@dataclass(slots=True)
class _MessageBatch:
    """The messages of a batch, in the order in which they came; within a partition that is their own."""

    topic: str
    messages: list[Message] = field(default_factory=list)
    size: int = 0
    _places: list[tuple[int, int]] = field(default_factory=list)

    def add(self, message: Any) -> None:
        """Add a message of Kafka's client."""
        self.messages.append(Message(message.key(), message.value()))
        self._places.append((message.partition(), message.offset()))
        self.size += len(message)

    def decode(
        self, decode: Decoder, on: Sequence[str], schema: pa.Schema | None, position: Mapping[str, int]
    ) -> StreamBatch:
        """Return the changes that the messages say; those that say none are rejected with their reasons."""
        lines: dict[bool, list[bytes]] = {False: [], True: []}
        numbers: dict[bool, list[int]] = {False: [], True: []}
        rejected: list[RejectedRow] = []
        for number, message in enumerate(self.messages):
            try:
                change = decode(message, on)
            except UnreadableMessageError as error:
                rejected.append(RejectedRow(_text(message.value), f"{self._describe(number)}: {error}"))
                continue
            if change is not None:
                lines[change.is_delete].append(change.line)
                numbers[change.is_delete].append(number)
        rows, unfit = read_json_rows(lines[False], numbers[False], schema)
        deletes, unfit_keys = read_json_rows(lines[True], numbers[True], schema)
        for number, row in (*unfit, *unfit_keys):
            rejected.append(RejectedRow(row.row, f"{self._describe(number)}: {row.reason}"))
        return StreamBatch(rows, dict(position), self._describe, deletes, rejected)

    def _describe(self, number: int) -> str:
        partition, offset = self._places[number]
        return f"{self.topic}, partition {partition}, offset {offset}"


def _text(value: bytes | None) -> str | None:
    return None if value is None else value[:MAX_ROW_TEXT].decode(errors="replace")


def read_json_rows(
    lines: Sequence[bytes], sequences: Sequence[int], table: pa.Schema | None
) -> tuple[list[pa.RecordBatch], list[tuple[int, RejectedRow]]]:
    """Return the rows with their sequence numbers, and those that do not fit by their sequence numbers.

    Each line is one JSON object without line breaks.
    """
    if not lines:
        return [], []
    try:
        return _read_lines(lines, sequences, table)
    except RefusedError as error:  # a name that no table can have: of which line is not said
        if len(lines) == 1:
            return [], [(sequences[0], RejectedRow(lines[0].decode(errors="replace"), str(error)))]
    middle = len(lines) // 2
    batches, rejected = read_json_rows(lines[:middle], sequences[:middle], table)
    later_batches, later_rejected = read_json_rows(lines[middle:], sequences[middle:], table)
    return [*batches, *later_batches], [*rejected, *later_rejected]


def _read_lines(
    lines: Sequence[bytes], sequences: Sequence[int], table: pa.Schema | None
) -> tuple[list[pa.RecordBatch], list[tuple[int, RejectedRow]]]:
    """Read lines of which all names are such as a table can have. Raises RefusedError."""
    block = b"\n".join(lines) + b"\n"
    profile = profile_json(block, complete=True)
    if not profile.fields:
        empty = "the object has no fields"
        return [], [
            (number, RejectedRow(line.decode(errors="replace"), empty))
            for number, line in zip(sequences, lines, strict=True)
        ]
    inspected = InspectedFile("the messages", pa.schema([]), (), profile)
    reader = json_reader(Format.JSON, [inspected], SchemaMode.UNION, {}, {})
    if table is not None:
        reader = adapt_to_table(reader, table, ColumnSelection())
    parser = make_json_parser(reader.schema, reader.inferred, reader.numbers_as_text)
    batches: list[pa.RecordBatch] = []
    rejected: list[tuple[int, RejectedRow]] = []
    position = 0
    for rows in parse_json_lines(block, parser, 1):
        if isinstance(rows, RejectedRow):
            rejected.append((sequences[position], rows))
            position += 1
            continue
        for batch in rows.combine_chunks().to_batches():
            numbers = pa.array(sequences[position : position + batch.num_rows], pa.int64())
            batches.append(with_sequence(batch, numbers))
            position += batch.num_rows
    return batches, rejected
