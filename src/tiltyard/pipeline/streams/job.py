"""Stream job: append or upsert what arrives in a folder or a topic, batch by batch, until it is canceled.

    source → batch → rows that fit the table → Lance files → one commit, with the position behind the batch

The driver does all of it, without Spark. The table's history is the stream's checkpoint: a driver that starts reads the
position there, so a commit whose driver died a moment later is not repeated.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal, Unpack

from lance_namespace.errors import LanceNamespaceError

from tiltyard.contracts.checks import parse_check
from tiltyard.model.lineage import JobLineage, LineageSource
from tiltyard.model.refusals import RefusedError
from tiltyard.model.settings.kafka_topics import SCHEME, Topic
from tiltyard.pipeline import catalog_client
from tiltyard.pipeline.jobs import ColumnNames, is_outage, job
from tiltyard.pipeline.runs import Run, RunCanceledError
from tiltyard.pipeline.sources.csv_records import CsvDialect
from tiltyard.pipeline.sources.file_options import (
    CsvOptions,
    FileOptions,
    check_csv_only,
    given_options,
    pick_options,
)
from tiltyard.pipeline.sources.filesystem import absolute_path, base_folder, is_remote, local_path
from tiltyard.pipeline.streams.avro import AvroDecoder
from tiltyard.pipeline.streams.batches import BatchLimits, StreamSource
from tiltyard.pipeline.streams.folder import FolderSource
from tiltyard.pipeline.streams.kafka import KafkaSource, read_properties
from tiltyard.pipeline.streams.messages import Decoder, decode_debezium, decode_row
from tiltyard.pipeline.streams.schema_registry import REGISTRY_PROPERTIES, SchemaRegistry
from tiltyard.pipeline.streams.target import StreamOptions, StreamTable
from tiltyard.pipeline.table_location import CatalogConnection
from tiltyard.pipeline.task_errors import clean_message
from tiltyard.pipeline.writing.commit import CommitConflictError
from tiltyard.pipeline.writing.options import StreamRowOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("tiltyard.pipeline")

MAX_NAME = 500
MAX_BATCH_ROWS = 1_000_000
MAX_BATCH_SECONDS = 3_600.0
BATCH_BYTES = 64 << 20
SAVE_SECONDS, LOG_SECONDS, RECORD_SECONDS = 1.0, 30.0, 60.0
"""How often the run's checkpoint has the stream's figures, the log has them, and the table the whole position."""
OUTAGE_SECONDS, OUTAGE_PAUSE_SECONDS = 120.0, 0.5
"""For how long a stream waits for a catalog or brokers that do not answer, and how long before each try."""
_CHECKPOINT_KEY = "stream"


@job("stream", spark=False, creates=True)
def stream(
    run: Run,
    catalog: CatalogConnection,
    spark: SparkSession | None,
    source: Annotated[
        str, "A folder or a pattern of files (in/*.jsonl), local or on an object store, or kafka://HOST:PORT/TOPIC."
    ],
    table: Annotated[str, "The table to write; it is created with the first rows if it does not exist."],
    *,
    on: Annotated[list[str], "The key to upsert by; without one, rows are appended.", ColumnNames()] = [],  # noqa: B006  # the registry copies it
    format: Annotated[  # noqa: A002  # the option's name, as in Spark
        Literal["parquet", "arrow", "csv", "json", "debezium"] | None,
        "The files' format, if their names do not tell it. Of a topic: json (the default), or debezium for its change "
        "events in JSON, or in Avro with --schema-registry.",
    ] = None,
    drift: Annotated[
        Literal["evolve", "reject"],
        "What a column does that the table lacks: it is added, null in older rows (evolve), or rows with a value in it "
        "are rejected.",
    ] = "evolve",
    rejects: Annotated[
        str | None, "A folder for rows that do not fit; without one, such a row ends the stream."
    ] = None,
    batch_rows: Annotated[int, "A batch is committed once it has so many rows."] = 50_000,
    batch_seconds: Annotated[float, "How long a batch waits for rows, in seconds."] = 1.0,
    available_now: Annotated[bool, "End once all that was there is in the table."] = False,
    start: Annotated[
        Literal["earliest", "latest"], "Where a new stream of a topic begins: with all messages, or with new ones."
    ] = "earliest",
    kafka: Annotated[
        str | None, "A file of properties of Kafka's client, NAME=VALUE: how to sign in (sasl.password, …)."
    ] = None,
    schema_registry: Annotated[
        str | None,
        "The address of the schema registry of change events in Avro; its user and password are in the file of "
        "--kafka (schema.registry.basic.auth.user.info).",
    ] = None,
    name: Annotated[
        str | None, "What identifies the stream in the table's history [default: its source]. It goes on by its name."
    ] = None,
    **row_options: Unpack[StreamRowOptions],
) -> Mapping[str, object]:
    """Append or upsert what arrives in a folder or a topic, each row exactly once, until the job is canceled.

    It goes on where it was: also after its driver was killed, and as another job with the same source and table.

    \b
    Examples:
      tiltyard job stream --uri http://127.0.0.1:2333 landing/ films
      tiltyard job stream --uri http://127.0.0.1:2333 's3://lake/in/*.jsonl' films --on id --rejects ./bad
      tiltyard job stream --uri http://127.0.0.1:2333 kafka://broker:9092/shop.films films --format debezium --on id
    """
    limits = _limits(batch_rows, batch_seconds)
    path = absolute_path(source)
    storage = dict(catalog.storage)
    options = StreamOptions(
        _stream_name(name, path),
        tuple(on),
        drift == "evolve",
        absolute_path(rejects) if rejects else None,
        storage,
        JobLineage("stream", (LineageSource.of_uri(path),)),
        tuple(parse_check(text) for text in row_options.get("checks") or ()),
    )
    csv = pick_options(CsvOptions, row_options)

    def open_stream() -> tuple[StreamTable, StreamSource]:
        target = StreamTable(run, catalog_client.table(catalog, table), options)
        found = target.open()
        position = dict(found or {})
        if path.startswith(SCHEME):
            if given := given_options(csv):
                flag = given[0].replace("_", "-")
                raise RefusedError(f"--{flag} is for files, and source is a topic: leave it out.")
            from_newest = start == "latest"
            reader = _open_topic(path, format, options, kafka, schema_registry, position, from_newest=from_newest)
        else:
            reader = _open_folder(path, format, options, kafka or schema_registry, position, csv)
        if found is None:
            target.begin(reader.position)
        return target, reader

    return _Stream(run, open_stream, limits).follow(ends=available_now)


def _open_topic(
    uri: str,
    format_: str | None,
    options: StreamOptions,
    file: str | None,
    registry_url: str | None,
    position: dict[str, int],
    *,
    from_newest: bool,
) -> StreamSource:
    """Open a topic. Raises RefusedError, ServiceUnavailableError."""
    if format_ not in (None, "json", "debezium"):
        raise RefusedError(f"--format is {format_}, and messages are read as json or debezium.")
    if format_ == "debezium" and not options.on:
        raise RefusedError("Change events change rows by their key: name its columns (--on).")
    topic = Topic.parse(uri)
    properties = read_properties(file, topic)
    registry = SchemaRegistry.open(registry_url, properties)
    decode: Decoder = decode_debezium if format_ == "debezium" else decode_row
    if registry is not None:
        if format_ != "debezium":
            raise RefusedError("A schema registry is of change events in Avro: say --format debezium.")
        decode = AvroDecoder(registry, decode)
    own = {name: text for name, text in properties.items() if name not in REGISTRY_PROPERTIES}
    return KafkaSource(topic, decode, options.on, own, position, from_newest)


def _open_folder(
    path: str,
    format_: str | None,
    options: StreamOptions,
    of_topics: str | None,
    position: dict[str, int],
    csv: CsvOptions,
) -> StreamSource:
    """Open a folder; one on a disk has to be there, or a mistyped one would be waited for. Raises RefusedError."""
    if format_ == "debezium" or of_topics is not None:
        raise RefusedError(
            "--kafka, --schema-registry and the format debezium are for topics (kafka://HOST:PORT/TOPIC)."
        )
    CsvDialect.of(csv, path)  # here, or each file would be rejected for it
    if format_ is not None:
        check_csv_only(csv, "--format", format_)
    if not is_remote(path) and not local_path(base_folder(path)).exists():
        raise RefusedError(f"There is no folder {base_folder(path)}: create it, or look at the name.")
    files = pick_options(FileOptions, {**csv, "format": format_})
    return FolderSource(path, files, options.storage, position)


def _limits(rows: int, seconds: float) -> BatchLimits:
    """Return the limits of a batch. Raises RefusedError."""
    if not 1 <= rows <= MAX_BATCH_ROWS:
        raise RefusedError(f"--batch-rows is {rows}: it is at least 1, and at most {MAX_BATCH_ROWS}.")
    if not 0 < seconds <= MAX_BATCH_SECONDS:
        raise RefusedError(f"--batch-seconds is {seconds:g}: it is more than 0, and at most {MAX_BATCH_SECONDS:g}.")
    return BatchLimits(rows, BATCH_BYTES, seconds)


def _stream_name(name: str | None, source: str) -> str:
    """Return the stream's name. Raises RefusedError."""
    chosen = source if name is None else name
    if not 0 < len(chosen) <= MAX_NAME:
        raise RefusedError(f"--name has {len(chosen)} characters: it has at least one, and at most {MAX_NAME}.")
    return chosen


@dataclass(slots=True)
class _Stream:
    """A stream that runs: it takes batches of its source to its table, and reports.

    It is opened anew after an outage of the catalog or of its source, and goes on where the table says.
    """

    run: Run
    open_stream: Callable[[], tuple[StreamTable, StreamSource]]
    limits: BatchLimits
    _totals: Counter[str] = field(init=False, default_factory=Counter)
    _outage: float | None = field(init=False, default=None)
    _saved: float = field(init=False, default_factory=time.monotonic)
    _recorded: float = field(init=False, default_factory=time.monotonic)
    _logged: float = field(init=False, default_factory=time.monotonic)

    def follow(self, *, ends: bool) -> Mapping[str, object]:
        """Apply batches until the run is canceled; with `ends`, until all that was there is applied.

        Raises what failed, an outage after OUTAGE_SECONDS.
        """
        self._totals.update(json.loads(self.run.checkpoints().get(_CHECKPOINT_KEY, "{}")))
        while True:
            try:
                return self._follow_once(ends=ends)
            except (LanceNamespaceError, OSError) as error:
                if not is_outage(error):
                    raise
                now = time.monotonic()
                self._outage = now if self._outage is None else self._outage
                if now - self._outage > OUTAGE_SECONDS:
                    raise
                log.warning("job %s goes on after an outage: %s", self.run.id, clean_message(error))
            self.run.check()
            time.sleep(OUTAGE_PAUSE_SECONDS)

    def _follow_once(self, *, ends: bool) -> Mapping[str, object]:
        target, source = self.open_stream()
        try:
            return self._apply_batches(target, source, ends=ends)
        except RunCanceledError:
            _stop_canceled(target, source)
            raise
        finally:
            source.close()

    def _apply_batches(self, target: StreamTable, source: StreamSource, *, ends: bool) -> Mapping[str, object]:
        has_read = False
        while True:
            self.run.check()
            batch = source.read(target.schema, self.limits, self.run.check)
            if batch is not None:
                applied = target.apply(batch)
                self._totals.update(rows=applied.rows, rejected=applied.rejected, batches=1)
                has_read = True
            self._outage = None
            figures = self._report(target, source)
            if ends and source.is_caught_up():
                if has_read:
                    target.compact()
                target.record_position(source.live_position(target.position), ends=True)
                return {**figures, **_version(target)}

    def _report(self, target: StreamTable, source: StreamSource) -> Mapping[str, object]:
        """Set the run's figures; save and log them, and record the position, from time to time."""
        totals = {name: self._totals[name] for name in ("rows", "rejected", "batches")}
        figures: dict[str, object] = {**totals, "lag": source.lag(), **_version(target)}
        self.run.progress(**figures)
        now = time.monotonic()
        if now - self._saved >= SAVE_SECONDS:
            self.run.save_checkpoint(_CHECKPOINT_KEY, json.dumps(totals))
            self._saved = now
        if now - self._recorded >= RECORD_SECONDS:
            target.record_position(source.live_position(target.position))
            self._recorded = now
        if now - self._logged >= LOG_SECONDS:
            text = ", ".join(f"{name} {value}" for name, value in figures.items())
            log.info("stream %s of job %s: %s", target.options.name, self.run.id, text)
            self._logged = now
        return figures


def _version(target: StreamTable) -> dict[str, int]:
    return {"version": target.version} if target.version else {}


def _stop_canceled(target: StreamTable, source: StreamSource) -> None:
    """Record the position, if that is possible: else the next start finds it in the table's history."""
    try:
        target.record_position(source.live_position(target.position), ends=True)
    except (LanceNamespaceError, CommitConflictError, OSError, RuntimeError, ValueError) as error:
        log.info("stream %s: its position stays in the table's history: %s", target.options.name, error)
