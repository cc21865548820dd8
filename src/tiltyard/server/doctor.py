"""Look at the machine and the settings that a server is to run with, and say what would go wrong, with what to do.

Nothing is made or changed: a root that is there gets a file that is removed again, as at each start of a server.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import tempfile
import time
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError

from tiltyard.access.decisions.decisions import decision_problems
from tiltyard.config import ConfigError
from tiltyard.model.settings.secret_keys import read_secret_keys
from tiltyard.model.settings.storages import SecretError
from tiltyard.pipeline.java import SparkMissingError, check_spark
from tiltyard.runtime.process import describe, port_problem, reason_of
from tiltyard.runtime.system_memory import read_system_memory
from tiltyard.server.connection_balancing import descriptor_limit, raise_descriptor_limit
from tiltyard.server.flight_address import AUTO, OFF, flight_problem
from tiltyard.server.memory import VECTORS_SHARE
from tiltyard.server.startup_checks import crosses_unencrypted, exposure_problem, temporary_folder_problem, tls_problem
from tiltyard.sql.processes import DEFAULT_TOTAL
from tiltyard.storage.locations import is_local
from tiltyard.storage.roots import StorageError
from tiltyard.storage.storage import Storage
from tiltyard.store import StoreNewerError, StoreVersionError, database_exists, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tiltyard.config import Settings

MIN_FREE_BYTES = 1 << 30
"""Free bytes of a disk below which a write may soon be refused."""
MIN_DESCRIPTORS = 4096
"""Descriptors of a process below which a few hundred clients are refused: half of them are for connections."""
MAX_CLOCK_SECONDS = 5.0
"""Difference of clocks from which on tokens and credentials that last minutes are refused too early or too late."""
TESTED_LANCEDB = ((0, 40), (0, 41))
"""The first and the last version of lancedb that the tests drive (docs/compatibility.md)."""

PROCESS_BYTES = 400 << 20
"""What a process has besides what settings bound."""

EXTRAS = {
    "pyspark": ("spark", "jobs of the pipeline"),
    "mcp": ("mcp", "assistants"),
    "confluent-kafka": ("kafka", "streams and sinks of Kafka"),
    "opentelemetry-sdk": ("otel", "traces"),
    "openlineage-python": ("openlineage", "events of OpenLineage"),
}
"""By package, the extra of Tiltyard that has it, and what it is for."""


class Verdict(StrEnum):
    """How something is: `warning` for what works and may surprise, `wrong` for what keeps a server from working."""

    OK = "ok"
    WARNING = "warning"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found of a subject, and what to do about it."""

    verdict: Verdict
    subject: str
    text: str
    advice: str = ""


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield what is found, as it is found: a database or a store that does not answer takes its time."""
    checks: tuple[Callable[[Settings], Iterator[Finding]], ...] = (
        _python, _packages, _spark, _ports, _descriptors, _memory, _disks, _database, _storage, _decisions,
        _combinations,
    )  # fmt: skip
    for check in checks:
        yield from check(settings)


def _python(_: Settings) -> Iterator[Finding]:
    text = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield Finding(Verdict.OK, "Python", text)


def _packages(_: Settings) -> Iterator[Finding]:
    yield Finding(Verdict.OK, "Packages", ", ".join(f"{name} {version(name)}" for name in ("tiltyard", "pylance")))
    for package, (extra, purpose) in EXTRAS.items():
        found = _installed(package)
        text = f"{package} {found}" if found else f"{package} is not installed: pip install 'tiltyard[{extra}]'"
        yield Finding(Verdict.OK, f"For {purpose}", text)
    if client := _installed("lancedb"):
        numbers = tuple(int(part) for part in client.split(".")[:2] if part.isdigit())
        first, last = TESTED_LANCEDB
        if first <= numbers <= last:
            yield Finding(Verdict.OK, "Client lancedb", client)
        else:
            text = f"{client} is none of the versions that are tested: {_dotted(first)} to {_dotted(last)}"
            yield Finding(Verdict.WARNING, "Client lancedb", text, "Install one of them if a call fails.")


def _spark(settings: Settings) -> Iterator[Finding]:
    is_needed = settings.spark != "off"
    try:
        check_spark(settings.spark if is_needed else "local")
    except SparkMissingError as error:
        if is_needed:
            yield Finding(
                Verdict.WRONG, "Spark", f"spark is '{settings.spark}'. {error}", "Install it, or set spark=off."
            )
        else:
            yield Finding(Verdict.OK, "Spark", f"off, as set; for jobs of the pipeline: {error}")
        return
    yield Finding(Verdict.OK, "Spark", f"PySpark and Java are there; spark is '{settings.spark}'")


def _ports(settings: Settings) -> Iterator[Finding]:
    host, port = settings.host, settings.port
    try:
        address = str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        problem = port_problem(address, port)
    except OSError as error:  # of its name
        problem = reason_of(error)
    if problem:
        advice = "Stop what listens there, which may be a server of yours, or choose another --port or --host."
        yield Finding(Verdict.WRONG, "Port", f"{host}:{port} cannot be listened on: {problem}", advice)
        return
    yield Finding(Verdict.OK, "Port", f"{host}:{port} is free")
    if problem := temporary_folder_problem():
        yield Finding(Verdict.WRONG, "Temporary files", problem)
    if problem := exposure_problem(settings, address) or tls_problem(settings):
        yield Finding(Verdict.WRONG, "Access", problem)
    elif not settings.auth:
        text = f"every client that reaches {host} is an administrator"
        yield Finding(Verdict.WARNING if settings.insecure else Verdict.OK, "Access", text, "Set auth to ask for keys.")
    elif crosses_unencrypted(settings, address):
        advice = "Set tls_certificate and tls_key, or trusted_proxies for a proxy that terminates TLS."
        yield Finding(Verdict.WARNING, "Access", "keys and tokens cross the network unencrypted", advice)
    else:
        yield Finding(Verdict.OK, "Access", "callers authenticate")
    yield _sql_port(settings, address)


def _sql_port(settings: Settings, address: str) -> Finding:
    subject = "Port of SQL"
    if settings.sql_port == OFF:
        return Finding(Verdict.OK, subject, "off, as set")
    is_named = settings.sql_port != AUTO
    if not (is_named or settings.port):
        return Finding(Verdict.OK, subject, "the one after that of HTTP, which is picked as the server starts")
    port = int(settings.sql_port) if is_named else settings.port + 1
    if problem := flight_problem(address, port):
        return Finding(Verdict.WRONG if is_named else Verdict.WARNING, subject, f"SQL would not be served: {problem}")
    return Finding(Verdict.OK, subject, f"{settings.host}:{port} is free")


def _descriptors(settings: Settings) -> Iterator[Finding]:
    raise_descriptor_limit()
    limit = descriptor_limit()
    text, advice = f"a process may open {limit:,}", "Raise the hard limit: `ulimit -Hn`, LimitNOFILE of systemd."
    if settings.max_connections > limit // 2:
        text = f"{text}, half of them for connections; max_connections is {settings.max_connections:,}"
        yield Finding(Verdict.WARNING, "Descriptors", text, advice)
    elif limit < MIN_DESCRIPTORS:
        yield Finding(Verdict.WARNING, "Descriptors", text, advice)
    else:
        yield Finding(Verdict.OK, "Descriptors", text)


def _memory(settings: Settings) -> Iterator[Finding]:
    memory = read_system_memory()
    if memory is None:
        yield Finding(Verdict.OK, "Memory", "this system does not tell how much there is")
        return
    bounds = memory_bounds(settings, memory.total)
    text = f"{memory.total / 1e9:,.1f} GB, of which the settings allow a server to take {bounds / 1e9:,.1f} GB at most"
    if bounds <= memory.total:
        yield Finding(Verdict.OK, "Memory", text)
    else:
        advice = "Lower query_memory_bytes, sql_total_bytes or index_cache_bytes, or the number of workers."
        yield Finding(Verdict.WARNING, "Memory", text, advice)


def memory_bounds(settings: Settings, total: int) -> int:
    """Return what the processes of a server take together if each bound of the settings is reached, in bytes.

    `total` is what there is: an automatic bound is a share of it.
    """
    of_each = (
        settings.query_memory_bytes,
        settings.index_cache_bytes,
        settings.metadata_cache_bytes,
        settings.page_cache_bytes,
        settings.sql_total_bytes or DEFAULT_TOTAL * settings.sql_process_bytes,
        settings.sql_kept_bytes,
        PROCESS_BYTES,
    )
    vectors = settings.vector_cache_bytes
    return sum(of_each) * settings.workers + (int(VECTORS_SHARE * total) if vectors == "auto" else vectors)


def _disks(settings: Settings) -> Iterator[Finding]:
    if is_local(settings.root):
        yield _disk("Disk of the root", Path(settings.root.removeprefix("file://")), MIN_FREE_BYTES, "Make room there.")
    if settings.disk_cache_folder:
        room = settings.disk_cache_bytes + MIN_FREE_BYTES
        yield _disk("Disk of copies", Path(settings.disk_cache_folder), room, "Lower disk_cache_bytes, or make room.")
    if settings.sql_port != OFF:
        folder = Path(settings.sql_spill_folder or tempfile.gettempdir())
        advice = "Set sql_spill_folder to a folder with room, or lower sql_spill_bytes."
        if _is_in_memory(folder):
            text = f"{folder} is a file system in memory: what SQL spills there takes the memory that it lacks"
            yield Finding(
                Verdict.WARNING, "Disk that SQL spills to", text, "Set sql_spill_folder to a folder on a disk."
            )
        else:
            yield _disk("Disk that SQL spills to", folder, settings.sql_spill_bytes, advice)


def _disk(subject: str, folder: Path, room: int, advice: str) -> Finding:
    """Return how much is free where a folder is, or will be made."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    if not os.access(there, os.W_OK):
        return Finding(Verdict.WRONG, subject, f"{there} may not be written to", "Grant it, or name another folder.")
    free = shutil.disk_usage(there).free
    text = f"{free / 1e9:,.1f} GB are free at {folder}"
    return Finding(Verdict.OK, subject, text) if free >= room else Finding(Verdict.WARNING, subject, text, advice)


def _is_in_memory(folder: Path) -> bool:
    """Return whether a folder is on a tmpfs, as Linux tells it; the innermost mount that has the folder counts."""
    mounts = Path("/proc/self/mounts")
    if not mounts.exists():
        return False
    kinds = {Path(fields[1]): fields[2] for fields in map(str.split, mounts.read_text().splitlines())}
    path = folder.absolute()
    return next((kinds[place] for place in (path, *path.parents) if place in kinds), "") == "tmpfs"


def _database(settings: Settings) -> Iterator[Finding]:
    try:
        url = settings.database_url
        if not database_exists(url):
            yield Finding(Verdict.OK, "Database", "there is no catalog yet: the first start makes it")
            return
        with open_store(url, migrate=False) as store:
            difference = store.clock() / 1000 - time.time()
    except StoreNewerError as error:
        yield Finding(
            Verdict.WRONG, "Database", describe(error), "Install the version of Tiltyard that has migrated it."
        )
        return
    except StoreVersionError as error:
        advice = "A server upgrades it as it starts, and so does `tiltyard db upgrade`; make a backup before."
        yield Finding(Verdict.WARNING, "Database", describe(error), advice)
        return
    except (ConfigError, LanceNamespaceError, ValueError) as error:
        yield Finding(Verdict.WRONG, "Database", describe(error))
        return
    kind = url.partition(":")[0]
    yield Finding(Verdict.OK, "Database", f"{kind} answers, and its schema is current")
    text = f"the database's differs by {abs(difference):.1f} s from this machine's"
    if abs(difference) > MAX_CLOCK_SECONDS:
        yield Finding(Verdict.WARNING, "Clocks", text, "Set both by NTP: tokens and credentials last minutes.")
    else:
        yield Finding(Verdict.OK, "Clocks", text)


def _storage(settings: Settings) -> Iterator[Finding]:
    if is_local(settings.root) and not Path(settings.root.removeprefix("file://")).exists():
        yield Finding(Verdict.OK, "Storage", f"{settings.root} is not there yet: the first start makes it")
        return
    try:
        storage = Storage(settings)
        try:
            storage.prepare()
        finally:
            storage.close()
    except (StorageError, ConfigError, LanceNamespaceError, ValueError) as error:
        yield Finding(Verdict.WRONG, "Storage", describe(error))
        return
    yield Finding(Verdict.OK, "Storage", f"{', '.join(storage.roots.own_locations)} can be written to")


def _decisions(settings: Settings) -> Iterator[Finding]:
    """Yield whether the services that decide about requests answer, as their protocols say."""
    for name, problem in decision_problems(settings).items():
        subject = f"Decisions of {name}"
        if problem:
            advice = "What it is asked about is refused until it answers: see docs/decisions.md."
            yield Finding(Verdict.WRONG, subject, problem, advice)
        else:
            yield Finding(Verdict.OK, subject, "it answers")


def _combinations(settings: Settings) -> Iterator[Finding]:
    """Yield which settings contradict each other, or have an effect that may not be meant."""
    found = list(_contradictions(settings))
    yield from found or [Finding(Verdict.OK, "Settings", "none contradicts another")]


def _contradictions(settings: Settings) -> Iterator[Finding]:
    if settings.spark != "off" and settings.workers > 1:
        text = "spark is set, and of several server processes none runs jobs of the pipeline"
        yield Finding(Verdict.WARNING, "Settings", text, "Start `tiltyard worker` with --spark beside the server.")
    if settings.jobs == 0:
        text = "jobs is 0: the server builds no indexes, and refreshes no views"
        yield Finding(Verdict.WARNING, "Settings", text, "Start `tiltyard worker` beside it.")
    if settings.retention_days == 0:
        text = "retention_days is 0: what is dropped cannot be brought back"
        yield Finding(Verdict.WARNING, "Settings", text, "Set it to some days, unless that is meant.")
    if settings.udfs and not settings.auth:
        text = "udfs lets every client that reaches the server run code on it"
        yield Finding(Verdict.WARNING, "Settings", text, "Set auth.")
    if settings.disk_cache_folder and not settings.disk_cache_bytes:
        text = "disk_cache_folder has no effect while disk_cache_bytes is 0"
        yield Finding(Verdict.WARNING, "Settings", text, "Set disk_cache_bytes.")
    try:
        read_secret_keys(settings.secret_keys)
    except SecretError as error:
        yield Finding(Verdict.WRONG, "Settings", f"secret_keys: {error}")


def _installed(package: str) -> str:
    """Return the version of a package; nothing for one that is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
