"""Settings: defaults, overridden by a TOML file, that by `TILTYARD_*` environment variables, those by flags."""

from __future__ import annotations

import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Union, get_origin, get_type_hints

import msgspec

from tiltyard.model.settings.bounds import bounds_problem
from tiltyard.model.settings.decision_services import DecisionService, decision_services_problem
from tiltyard.model.settings.event_sinks import AUDIT_SINK, EventSink, audit_sink, event_sinks_problem
from tiltyard.model.settings.mounts import mounts_problem
from tiltyard.model.settings.oidc_providers import OidcProvider, providers_problem
from tiltyard.model.settings.openlineage import openlineage_problem
from tiltyard.model.settings.setting_names import names_problem
from tiltyard.model.settings.spark_properties import spark_limits_problem
from tiltyard.model.settings.storages import NamedStorage, is_reference, storages_problem

_SERVER = re.compile(r"https?://[^/?#@\s]+")
_COLLECTOR = re.compile(r"https?://[^/?#@\s]+(/[^?#\s]*)?")

DAY_MS = 24 * 60 * 60 * 1000


class ConfigError(Exception):
    """A setting that cannot be used; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings. `storage_options` (a TOML table, or a JSON object) holds Lance's own keys."""

    root: str = field(default="./tiltyard-data", metadata={"help": "Folder or URI below which tables are stored."})
    db: str = field(
        default="", metadata={"help": "Catalog database, sqlite:///FILE or postgresql://… [default: inside the root]."}
    )
    db_connections: int = field(
        default=16, metadata={"help": "Connections to PostgreSQL that one process opens at most."}
    )
    host: str = field(default="127.0.0.1", metadata={"help": "Address to listen on."})
    port: int = field(default=2333, metadata={"help": "Port to listen on; 0 picks a free one."})
    workers: int = field(default=1, metadata={"help": "Server processes that share the port."})
    worker_timeout: float = field(
        default=60.0, metadata={"help": "Seconds without a heartbeat after which a server process is replaced."}
    )
    jobs: int = field(
        default=1,
        metadata={"help": "Threads per server process that run queued work; 0 leaves it to `tiltyard worker`."},
    )
    allowed_roots: tuple[str, ...] = field(
        default=(), metadata={"help": "Further folders or URIs below which tables may be registered or created."}
    )
    storage_options: Mapping[str, str] = field(
        default_factory=dict, metadata={"help": "Options of the object store, in Lance's keys."}
    )
    storage: Mapping[str, NamedStorage] = field(
        default_factory=dict,
        metadata={"help": "Named storages: their location, the server's credentials, and what clients get."},
    )
    mounts: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict,
        metadata={"help": "Catalogs of others that are mounted as namespaces: their kind and how to reach them."},
    )
    mount_secrets: str = field(
        default="",
        metadata={"help": "Folder of the files that mounts made by MountCatalog may name as secrets [default: none]."},
    )
    max_json_bytes: int = field(default=16 << 20, metadata={"help": "Largest JSON body, in bytes."})
    max_upload_bytes: int = field(default=0, metadata={"help": "Largest Arrow body, in bytes; 0 is no limit."})
    max_manifest_bytes: int = field(
        default=64 << 20,
        metadata={"help": "Largest manifest or transaction of a client that the server reads, in bytes."},
    )
    index_cache_bytes: int = field(default=1 << 30, metadata={"help": "Memory for cached index pages of all tables."})
    metadata_cache_bytes: int = field(default=256 << 20, metadata={"help": "Memory for cached metadata of all tables."})
    page_cache_bytes: int = field(
        default=256 << 20, metadata={"help": "Memory for cached rows of small tables that are searched often; 0: none."}
    )
    vector_cache_bytes: int | Literal["auto"] = field(
        default="auto",
        metadata={
            "help": "Memory of all server processes together for indexes of vectors that are searched often: bytes, "
            "0 for none, or auto (a quarter of the memory that there is)."
        },
    )
    disk_cache_bytes: int = field(
        default=0, metadata={"help": "Disk for copies and blocks of tables on object stores that are read; 0: none."}
    )
    disk_cache_folder: str = field(default="", metadata={"help": "Folder of these copies and blocks, on a disk."})
    conflict_timeout: float = field(
        default=30.0,
        metadata={"help": "Seconds for which a conflicting write is retried before its caller gets the conflict."},
    )
    managed_versioning: bool = field(
        default=True,
        metadata={"help": "Whether new tables are managed; the property tiltyard.managed_versioning overrides it."},
    )
    repeat_memory: int = field(
        default=86400,
        metadata={"help": "Seconds for which the response to a write with an idempotency key is stored; 0: off."},
    )
    repeat_lease: float = field(
        default=10.0,
        metadata={"help": "Seconds after which a retry may take over a write whose server died."},
    )
    databases: str = field(
        default="fallback",
        metadata={"help": "What db://NAME of lancedb means: fallback, strict or ignored (docs/clients.md)."},
    )
    retention_days: float = field(
        default=7.0, metadata={"help": "Days for which dropped objects can be brought back; 0 deletes at once."}
    )
    gc_safety_days: float = field(
        default=7.0, metadata={"help": "Age in days below which no file is garbage; longer than any write takes."}
    )
    auth: bool = field(default=False, metadata={"help": "Authenticate callers by API keys and tokens."})
    insecure: bool = field(
        default=False, metadata={"help": "Serve without authentication on an address that others can reach too."}
    )
    decisions: Mapping[str, DecisionService] = field(
        default_factory=dict,
        metadata={"help": "Services that are asked about what rights allow, by name: Open Policy Agent, OpenFGA."},
    )
    providers: Mapping[str, OidcProvider] = field(
        default_factory=dict, metadata={"help": "OpenID providers whose tokens are trusted, by name."}
    )
    token_life: int = field(default=900, metadata={"help": "Seconds for which tokens of this server are valid."})
    tls_certificate: str = field(default="", metadata={"help": "File with the certificate chain (PEM): serve HTTPS."})
    tls_key: str = field(default="", metadata={"help": "File with the certificate's private key (PEM)."})
    trusted_proxies: tuple[str, ...] = field(
        default=(), metadata={"help": "Addresses or networks of proxies whose forwarded headers are trusted."}
    )
    spark: str = field(
        default="off", metadata={"help": "Where jobs of the pipeline run: off, local, a Spark master, or sc://…"}
    )
    spark_jobs: int = field(default=1, metadata={"help": "Jobs of the pipeline that run at once, besides streams."})
    stream_jobs: int = field(default=4, metadata={"help": "Streams that were submitted and run at once."})
    spark_conf: Mapping[str, str] = field(default_factory=dict, metadata={"help": "Spark properties for all jobs."})
    spark_memory: str = field(
        default="1g", metadata={"help": "Heap of each driver's JVM, which also runs the tasks in local mode."}
    )
    spark_limits: Mapping[str, str] = field(
        default_factory=dict,
        metadata={"help": "Highest value of each Spark property that callers may set, by its name."},
    )
    spark_environment: tuple[str, ...] = field(
        default=(), metadata={"help": "Names of further environment variables that drivers and their JVMs inherit."}
    )
    spark_uri: str = field(
        default="",
        metadata={"help": "The server that jobs use [default: none; they open the catalog's database themselves]."},
    )
    spark_client: Mapping[str, str] = field(
        default_factory=dict, metadata={"help": "Properties of the jobs' client, such as header.Authorization."}
    )
    spark_events: str = field(
        default="", metadata={"help": "Folder or URI for Spark's event logs [default: below a local root; else none]."}
    )
    spark_index_rows: int = field(
        default=0, metadata={"help": "Number of rows from which on a Spark job builds a table's indexes; 0: never."}
    )
    index_stall_timeout: float = field(
        default=300.0,
        metadata={"help": "Seconds without processor time after which an index build is ended and retried; 0: never."},
    )
    upkeep: bool = field(
        default=True,
        metadata={"help": "Whether tables are maintained after commits: indexes, small fragments, old versions."},
    )
    upkeep_bytes: int = field(
        default=1 << 30, metadata={"help": "Memory, in bytes, beyond which a process that maintains a table is ended."}
    )
    keep_versions_days: float = field(
        default=30.0, metadata={"help": "Days for which upkeep leaves a version that is no longer the latest."}
    )
    view_refresh_rows: int = field(
        default=10_000_000,
        metadata={"help": "Rows that a server's own worker reads for one refresh of a materialized view, at most."},
    )
    column_refresh_rows: int = field(
        default=1_000_000,
        metadata={"help": "Rows of a table whose columns of SQL a server's own worker refreshes, at most."},
    )
    udfs: bool = field(
        default=False, metadata={"help": "Whether clients may declare columns that are computed by their own code."}
    )
    secret_keys: tuple[str, ...] = field(
        default=(),
        metadata={"help": "Keys that encrypt secrets of functions, as env:NAME or file:PATH; the first encrypts."},
    )
    udf_images: tuple[str, ...] = field(default=(), metadata={"help": "Container images that such columns may name."})
    audit: str = field(
        default="auto",
        metadata={"help": "Requests that are recorded: off, changes, all; auto is changes with auth, else off."},
    )
    audit_days: float = field(default=90.0, metadata={"help": "Days for which audit records are kept."})
    audit_lines: str = field(
        default="", metadata={"help": "A file that also gets the audit records, as lines of JSON; or stderr."}
    )
    audit_webhook: str = field(default="", metadata={"help": "A URL that also gets the audit records, as CloudEvents."})
    audit_webhook_headers: Mapping[str, str] = field(
        default_factory=dict, metadata={"help": "Headers of each request to the webhook."}
    )
    events: bool = field(
        default=False,
        metadata={"help": "Whether changes of the catalog are kept as events; with event_sinks they always are."},
    )
    event_sinks: Mapping[str, EventSink] = field(
        default_factory=dict, metadata={"help": "Webhooks and files that get the events, by name."}
    )
    event_days: float = field(default=7.0, metadata={"help": "Days for which events are kept, for sinks too."})
    max_events: int = field(default=1_000_000, metadata={"help": "Events that are kept at most: the last ones."})
    rate_limit: float = field(default=0.0, metadata={"help": "Requests per second of one principal; 0 is no limit."})
    rate_limits: Mapping[str, float] = field(
        default_factory=dict,
        metadata={"help": "Rate limits of single principals, which replace rate_limit: requests per second by name."},
    )
    rate_limit_total: float = field(
        default=0.0, metadata={"help": "Requests per second of all principals together; 0 is no limit."}
    )
    rate_burst: float = field(
        default=2.0, metadata={"help": "Seconds' worth of requests that may come at once after a pause."}
    )
    max_queries: int = field(default=64, metadata={"help": "Queries of one principal at once; 0 is no limit."})
    max_queries_total: int = field(default=256, metadata={"help": "Queries of all principals at once; 0 is no limit."})
    principal_weights: Mapping[str, float] = field(
        default_factory=dict,
        metadata={"help": "Shares of threads, by the name of a principal; 1 for all others."},
    )
    query_memory_bytes: int = field(
        default=4 << 30, metadata={"help": "Bytes that all running queries of one process may hold together."}
    )
    query_timeout: float = field(
        default=300.0, metadata={"help": "Seconds that a query may take, including its response; 0 is no limit."}
    )
    max_result_bytes: int = field(
        default=0, metadata={"help": "Largest response to a query, in bytes of Arrow; 0 is no limit."}
    )
    sql_port: str = field(
        default="auto",
        metadata={"help": "Port of SQL over Arrow Flight: auto (port + 1, where that is free), off, or one."},
    )
    sql_prestart: bool = field(
        default=False, metadata={"help": "Start a process for SQL with the server, before the first query."}
    )
    sql_queries: int = field(default=8, metadata={"help": "SQL queries that one server process runs at once."})
    sql_memory_bytes: int = field(
        default=256 << 20, metadata={"help": "Memory of one SQL query for its joins, aggregates and sorts, in bytes."}
    )
    sql_process_bytes: int = field(
        default=1 << 30, metadata={"help": "Memory, in bytes, beyond which the process of an SQL query is ended."}
    )
    sql_total_bytes: int = field(
        default=0,
        metadata={"help": "Memory of the processes of all SQL queries together [default: 4 times sql_process_bytes]."},
    )
    sql_spill_bytes: int = field(default=4 << 30, metadata={"help": "Disk that one SQL query may spill to, in bytes."})
    sql_spill_folder: str = field(
        default="", metadata={"help": "Folder that SQL queries spill to [default: the system's for temporary files]."}
    )
    sql_kept_bytes: int = field(
        default=256 << 20,
        metadata={"help": "Bytes of rows that ended SQL queries of one process keep for their readers."},
    )
    sql_max_rows: int = field(default=0, metadata={"help": "Maximal rows of an SQL query's result; 0 is no limit."})
    sql_max_length: int = field(default=100_000, metadata={"help": "Maximal characters of an SQL query."})
    embeddings: Mapping[str, str] = field(
        default_factory=dict,
        metadata={"help": "Functions (module:function) that turn texts into vectors for the console, by name."},
    )
    console: bool = field(default=True, metadata={"help": "Serve the web console, at /console."})
    server_url: str = field(
        default="",
        metadata={"help": "URL at which other servers of the catalog reach this one: they share out tables."},
    )
    spread_search_rows: int = field(
        default=10_000_000,
        metadata={"help": "Rows of a table from which servers that share out tables share its searches; 0 is never."},
    )
    max_connections: int = field(
        default=0,
        metadata={"help": "Connections of one server process; 0 is half of its file descriptors (ulimit -n)."},
    )
    head_timeout: float = field(
        default=10.0, metadata={"help": "Seconds within which a request's line and headers have to arrive."}
    )
    keep_alive: int = field(
        default=75, metadata={"help": "Seconds for which a connection without a request stays open."}
    )
    send_timeout: float = field(
        default=60.0,
        metadata={"help": "Seconds after which a client that reads nothing of its response is disconnected."},
    )
    max_page_size: int = field(default=1000, metadata={"help": "Maximal entries in a page of a list."})
    max_json_depth: int = field(default=128, metadata={"help": "Maximal nesting of a JSON body."})
    max_operations: int = field(
        default=10_000, metadata={"help": "Maximal entries in one batch, and in any list or map of a request."}
    )
    max_vectors: int = field(default=1000, metadata={"help": "Maximal query vectors in one request."})
    transaction_days: float = field(
        default=30.0, metadata={"help": "Days for which an ended transaction can still be described."}
    )
    upload_days: float = field(
        default=7.0, metadata={"help": "Days after which a multipart write that was not completed is aborted."}
    )
    log_level: str = field(default="info", metadata={"help": "debug, info, warning or error."})
    log_format: str = field(default="text", metadata={"help": "text, or json: an object to a line."})
    trace_endpoint: str = field(
        default="", metadata={"help": "URL of an OpenTelemetry collector that gets traces (OTLP over HTTP)."}
    )
    trace_sample: float = field(default=1.0, metadata={"help": "Share of the traces that begin here and are sent."})
    openlineage: str = field(
        default="", metadata={"help": "URL or file that gets OpenLineage events of the jobs that workers run."}
    )
    openlineage_key: str = field(default="", metadata={"help": "Bearer token for that URL, as env:NAME or file:PATH."})
    openlineage_namespace: str = field(
        default="", metadata={"help": "Namespace of this catalog's jobs and tables in events [default: its address]."}
    )

    @property
    def retention_ms(self) -> int:
        """`retention_days` in milliseconds."""
        return int(self.retention_days * DAY_MS)

    @property
    def all_event_sinks(self) -> Mapping[str, EventSink]:
        """The sinks of `event_sinks`, and the audit's webhook."""
        if not self.audit_webhook:
            return self.event_sinks
        return {**self.event_sinks, AUDIT_SINK: audit_sink(self.audit_webhook, self.audit_webhook_headers)}

    @property
    def database_url(self) -> str:
        """The URL of the catalog's database: `db`, or a SQLite file in the root if that is a local folder.

        Raises ConfigError for a root on an object store without `db`.
        """
        if self.db:
            return self.db
        if "://" in self.root and not self.root.startswith("file://"):
            raise ConfigError(
                "A root on an object store needs a database: set --db (sqlite:///FILE or postgresql://…)."
            )
        return f"sqlite:///{Path(self.root.removeprefix('file://')).absolute() / 'catalog.db'}"


NAMES = frozenset(spec.name for spec in fields(Settings))
"""The names of all settings."""


def load_settings(
    flags: Mapping[str, Any], file: Path | None = None, environ: Mapping[str, str] = os.environ
) -> Settings:
    """Read the settings from all sources; a flag that is None is absent.

    `file` defaults to the environment variable TILTYARD_CONFIG. Raises ConfigError for an unknown key or an unusable
    value.
    """
    if file is None and environ.get("TILTYARD_CONFIG"):
        file = Path(environ["TILTYARD_CONFIG"])
    values: dict[str, Any] = {}
    if file is not None:
        values |= _read_file(file)
    for name in NAMES:
        if (text := environ.get(f"TILTYARD_{name.upper()}")) is not None:
            values[name] = text
    values |= {key: value for key, value in flags.items() if value is not None}
    if problem := names_problem(values, NAMES):
        raise ConfigError(problem)
    settings = Settings(**{name: _convert(name, value) for name, value in values.items()})
    _check_values(settings)
    _check_embeddings(settings)
    for problem in (
        storages_problem(settings.storage),
        event_sinks_problem(settings.event_sinks),
        decision_services_problem(settings.decisions),
        mounts_problem(settings.mounts),
        spark_limits_problem(settings.spark_limits),
    ):
        if problem:
            raise ConfigError(problem)
    _check_identity(settings)
    return settings


def _check_values(settings: Settings) -> None:
    """Raise ConfigError for a value out of its bounds, or that is none of its choices."""
    if problem := bounds_problem({name: getattr(settings, name) for name in NAMES}):
        raise ConfigError(problem)
    if light := sorted(name for name, weight in settings.principal_weights.items() if not 0.01 <= weight <= 100):
        raise ConfigError(f"The weight of {light[0]!r} in principal_weights is a number from 0.01 to 100.")
    if settings.trace_endpoint and not _COLLECTOR.fullmatch(settings.trace_endpoint):
        raise ConfigError("The setting trace_endpoint is the URL of a collector, as http://collector:4318.")
    if settings.server_url and not _SERVER.fullmatch(settings.server_url):
        raise ConfigError("The setting server_url is a URL without a path, as http://10.0.0.3:2333.")
    if settings.openlineage and (problem := openlineage_problem(settings.openlineage)):
        raise ConfigError(problem)
    if settings.openlineage_key and not is_reference(settings.openlineage_key):
        raise ConfigError("The setting openlineage_key is a secret in plain text: write env:NAME or file:PATH.")
    port = settings.sql_port
    if port not in ("auto", "off") and not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ConfigError(f"The setting sql_port cannot be {port!r}: auto, off, or a port.")


def _check_embeddings(settings: Settings) -> None:
    """Raise ConfigError for an embedding function that cannot be one."""
    for name, target in settings.embeddings.items():
        module, _, function = target.partition(":")
        if not all(part.isidentifier() for part in (*module.split("."), function)):
            raise ConfigError(f"The embedding function {name} is module:function, not {target!r}.")


def _check_identity(settings: Settings) -> None:
    """Raise ConfigError for settings of authentication and TLS that contradict each other."""
    if problem := providers_problem(settings.providers):
        raise ConfigError(problem)
    if settings.providers and not settings.auth:
        raise ConfigError("Providers are set, but callers are not authenticated: set auth, or leave the providers out.")
    if bool(settings.tls_certificate) != bool(settings.tls_key):
        raise ConfigError("HTTPS needs both tls_certificate and tls_key.")
    for address in settings.trusted_proxies:
        try:
            ipaddress.ip_network(address)
        except ValueError as error:
            raise ConfigError(f"trusted_proxies are addresses or networks: {error}.") from error


def _read_file(file: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"Cannot read the settings file {file}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The settings file {file} is not TOML: {error}.") from error
    values = {key.replace("-", "_"): value for key, value in values.items()}
    if problem := names_problem(values, NAMES, f" in the settings file {file}"):
        raise ConfigError(problem)
    return values


_TYPES = get_type_hints(Settings)


def _convert(name: str, value: Any) -> Any:
    """Convert a value to its setting's type; text comes from environment variables. Raises ConfigError."""
    kind = _TYPES[name]
    is_structure = get_origin(kind) not in (None, Union)
    try:
        if isinstance(value, str) and is_structure:
            return msgspec.json.decode(value, type=kind)
        return msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        shown = "like this" if is_structure else repr(value)  # options and headers hold secrets
        raise ConfigError(f"The setting {name} cannot be {shown}: {error}.") from error
