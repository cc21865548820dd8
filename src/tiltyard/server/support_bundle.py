"""Write a support bundle: a zip archive from which a maintainer can see how a server is set up and what goes wrong.

It has no secrets, and neither rows nor SQL of clients: of settings that are texts it says whether they are set. Names
of objects, principals and machines are replaced, and what messages quote is left out, unless that is asked for.
"""

from __future__ import annotations

import re
import ssl
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, fields
from datetime import UTC, datetime
from heapq import nlargest
from importlib.metadata import distributions
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import urllib3
from lance_namespace.errors import LanceNamespaceError

from tiltyard import __version__
from tiltyard.catalog.jobs.control import job_kinds
from tiltyard.config import ConfigError, Settings
from tiltyard.model.modes import Outcome, TransactionStatus
from tiltyard.model.settings.bounds import CHOICES
from tiltyard.runtime.process import describe
from tiltyard.server.doctor import examine
from tiltyard.server.startup_checks import local_address
from tiltyard.store import AuditFilter, JobFilter, StoreVersionError, database_exists, open_store

if TYPE_CHECKING:
    from tiltyard.store import AuditRecord, Store, TransactionRecord

MAX_ERRORS = 200
"""Failed requests and failed jobs that a bundle has, each, the newest first."""
MAX_SLOW_REQUESTS = 100
"""Slowest requests that a bundle has."""
MAX_AUDIT_RECORDS = 50_000
"""Recorded requests, the newest first, among which the slowest are looked for."""
MAX_METRICS_BYTES = 8 << 20
"""What is read of /metrics."""
METRICS_SECONDS = 10.0
"""How long a server may take to answer with its metrics."""

READ_ME = """\
A support bundle of Tiltyard {version}, made {at}.

findings.json   what `tiltyard doctor` says of the machine and of the settings (its port is taken while it runs)
versions.json   Python, the system and the installed packages
settings.json   settings that differ from their defaults: numbers and choices as they are, texts as "(set)"
catalog.json    the catalog's database: its migrations, and the number of rows of each table
errors.json     the newest jobs that failed, and the newest requests that failed or were refused
slow.json       the slowest of the newest recorded requests, the slowest first
metrics.txt     /metrics of the server

{names}

{missing}"""
NAMES_HIDDEN = """\
Names of objects, principals and addresses are numbered, the same name by the same number, and what error messages quote
is left out. `--names` makes a bundle that has them."""
NAMES_SHOWN = "Names of objects, principals and addresses are as they are, and so is what error messages quote."

_QUOTED = re.compile(r"""(?<!\w)['"`].*['"`]""")
"""From the first quotation mark of a line to the last: a name may have such marks itself."""
_PLACES = re.compile(r"[a-z][a-z0-9+.-]*://\S+|(?<![\w.])/[^\s,;]+")
_NAMING_LABEL = re.compile(r'\b(table|job|principal)="((?:[^"\\]|\\.)*)"')
"""A label of a metric whose value is a name."""
_OMITTED = "…"
MAX_MESSAGE_CHARACTERS = 500
"""What a bundle has of an error message without what it quotes: its first line, up to so many characters."""


class NameMask:
    """Replaces names by numbers, the same name by the same one; or keeps them all."""

    def __init__(self, *, shown: bool) -> None:
        """Keep names as they are if they are `shown`."""
        self.shown = shown
        self._numbers: dict[tuple[str, str], int] = {}

    def name(self, kind: str, name: str) -> str:
        """Return what stands for a name of a kind: `object 3`."""
        if self.shown or not name:
            return name
        return f"{kind} {self._numbers.setdefault((kind, name), len(self._numbers) + 1)}"

    def message(self, text: str | None) -> str | None:
        """Return a message without what it quotes, and without paths and addresses."""
        if self.shown or text is None:
            return text
        line = text.partition("\n")[0][:MAX_MESSAGE_CHARACTERS]
        return _PLACES.sub(_OMITTED, _QUOTED.sub(f"'{_OMITTED}'", line))

    def metrics(self, text: str) -> str:
        """Return metrics with numbers for the names in their labels."""
        return _NAMING_LABEL.sub(lambda match: f'{match[1]}="{self.name(match[1], match[2])}"', text)


def write_bundle(settings: Settings, file: Path, *, names: bool) -> dict[str, str]:
    """Write a bundle to a new file; return the parts that it lacks, each with the reason.

    With `names` it has the names of objects, principals and addresses. Raises OSError (FileExistsError for a file that
    is there).
    """
    mask, missing = NameMask(shown=names), dict[str, str]()
    with (
        file.open("xb") as target,
        _removed_on_error(file),
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive,
    ):

        def add(part: str, make: Callable[[], object]) -> None:
            try:
                made = make()
            except (
                LanceNamespaceError,
                StoreVersionError,
                ConfigError,
                urllib3.exceptions.HTTPError,
                OSError,
            ) as error:
                missing[part] = mask.message(describe(error)) or ""
                return
            content = made if isinstance(made, bytes) else msgspec.json.format(msgspec.json.encode(made), indent=1)
            archive.writestr(part, content)

        add("findings.json", lambda: _findings(settings, mask))
        add("versions.json", _versions)
        add("settings.json", lambda: changed_settings(settings))
        add("catalog.json", lambda: _read_catalog(settings, _catalog))
        add("errors.json", lambda: _read_catalog(settings, lambda store: _errors(store, mask)))
        add("slow.json", lambda: _read_catalog(settings, lambda store: _slow_requests(store, mask)))
        add("metrics.txt", lambda: mask.metrics(_metrics(settings)).encode())
        archive.writestr("README.txt", _read_me(mask, missing))
    return missing


@contextmanager
def _removed_on_error(file: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def changed_settings(settings: Settings) -> dict[str, object]:
    """Return the settings that differ from their defaults: numbers and choices as they are, of others what they are.

    A text may be a secret, or have one in it, whatever setting it is of: of those, and of tables of them, it returns
    `(set)` and the number of entries.
    """
    defaults = Settings()
    changed = {
        spec.name: getattr(settings, spec.name)
        for spec in fields(Settings)
        if getattr(settings, spec.name) != getattr(defaults, spec.name)
    }
    return {name: _shown_value(name, value) for name, value in changed.items()}


def _shown_value(name: str, value: object) -> object:
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        if value.lower() in (*CHOICES.get(name, ()), "auto", "off"):
            return value
        scheme, separator, _ = value.partition("://")
        return f"(set, {scheme}://)" if separator and name in ("root", "db") else "(set)"
    assert isinstance(value, Mapping | tuple)
    return f"(set, {len(value)} entries)"


def _read_me(mask: NameMask, missing: Mapping[str, str]) -> str:
    lacks = "".join(f"{part} is missing: {reason}\n" for part, reason in missing.items())
    at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    names = NAMES_SHOWN if mask.shown else NAMES_HIDDEN
    return READ_ME.format(version=__version__, at=at, names=names, missing=lacks)


def _findings(settings: Settings, mask: NameMask) -> list[dict[str, object]]:
    def shown(text: str) -> str | None:
        return mask.message(text if mask.shown else text.replace(settings.host, "HOST"))

    findings = map(asdict, examine(settings))
    return [finding | {part: shown(finding[part]) for part in ("text", "advice")} for finding in findings]


def _versions() -> dict[str, str]:
    return dict(sorted((each.metadata["Name"], each.version) for each in distributions()))


def _read_catalog(settings: Settings, read: Callable[[Store], object]) -> object:
    """Read from the catalog's database, which is neither made nor migrated."""
    url = settings.database_url
    if not database_exists(url):
        raise FileNotFoundError("there is no catalog yet")
    with open_store(url, migrate=False) as store:
        return read(store)


def _catalog(store: Store) -> dict[str, object]:
    version, rows = store.count_rows()
    return {"migration": version, "rows": rows}


def _errors(store: Store, mask: NameMask) -> dict[str, object]:
    failed = JobFilter(tuple(job_kinds()), TransactionStatus.FAILED, with_lost=True)
    requests = (
        record
        for outcome in (Outcome.FAILED, Outcome.REFUSED, Outcome.CUT)
        for record in store.list_audit(AuditFilter(outcome=outcome.value), None, MAX_ERRORS)
    )
    return {
        "jobs": [_job(record, mask) for record in store.list_jobs(failed, None, MAX_ERRORS)],
        "requests": [_request(record, mask) for record in nlargest(MAX_ERRORS, requests, lambda record: record.at)],
    }


def _slow_requests(store: Store, mask: NameMask) -> list[dict[str, object]]:
    records = islice(store.iterate_audit(AuditFilter()), MAX_AUDIT_RECORDS)
    slowest = nlargest(MAX_SLOW_REQUESTS, records, lambda record: record.duration_micros)
    return [_request(record, mask) for record in slowest]


def _job(record: TransactionRecord, mask: NameMask) -> dict[str, object]:
    return {
        "at": _time(record.updated_at),
        "kind": record.kind,
        "table": record.table_id,
        "attempts": record.attempts,
        "by": mask.name("principal", record.requested_by or ""),
        "error": mask.message(record.error),
    }


def _request(record: AuditRecord, mask: NameMask) -> dict[str, object]:
    return {
        "at": _time(record.at),
        "operation": record.operation,
        "object": mask.name("object", record.object),
        "principal": mask.name("principal", record.principal),
        "address": mask.name("address", record.address),
        "outcome": record.outcome,
        "status": record.status,
        "code": record.code,
        "milliseconds": record.duration_micros / 1000,
        "request_id": record.request_id,
    }


def _time(millis: int) -> str:
    return datetime.fromtimestamp(millis / 1000, UTC).isoformat(timespec="milliseconds")


def _metrics(settings: Settings) -> str:
    """Read /metrics of the server that the settings describe, from this machine. Raises HTTPError, OSError."""
    host = local_address(settings.host)
    options: dict[str, Any] = {"timeout": METRICS_SECONDS, "retries": False}
    pool: urllib3.HTTPConnectionPool
    if settings.tls_certificate:
        options |= {"ssl_context": _pinned(settings.tls_certificate), "assert_hostname": False}
        pool = urllib3.HTTPSConnectionPool(host, settings.port, **options)
    else:
        pool = urllib3.HTTPConnectionPool(host, settings.port, **options)
    with closing(pool), closing(pool.request("GET", "/metrics", preload_content=False)) as response:
        if response.status != 200:
            raise OSError(f"the server answers /metrics with status {response.status}")
        return bytes(response.read(MAX_METRICS_BYTES)).decode(errors="replace")


def _pinned(certificate: str) -> ssl.SSLContext:
    """Return a context that trusts the server's own certificate, under whatever name, and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(certificate)
    return context
