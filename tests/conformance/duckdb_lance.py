"""Run DuckDB with its extension for Lance, as they are published, against servers, and see what each statement does.

    python -m tests.conformance.duckdb_lance

The extension is made for one version of DuckDB, so they run in a process with packages of their own, which the first
run installs beside this environment's (some 320 MB). Where there is no extension for the platform, nothing is run.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from tests.conformance.duckdb_steps import STEPS, WITHOUT_DATABASE, Step
from tests.conformance.observations import (
    Driver,
    ObservedCall,
    ServerObservations,
    lake,
    observe_call,
    open_server,
    run_alone,
)
from tests.conformance.packages import install, versions
from tests.services.recorder import Recorder

DRIVER = Path(__file__).parent / "drivers/duckdb_statements.py"
REQUIREMENTS = Path(__file__).with_suffix(".txt")
ABOUT = f"Seen with {', '.join(' '.join(package) for package in versions(REQUIREMENTS).items())}."


def prepare() -> Path:
    """Install DuckDB and its extension, where this pair is not there; return their folder. Raises NoWheelError."""
    return install(Path(sys.prefix) / "duckdb-lance", REQUIREMENTS)


@dataclass(frozen=True, slots=True)
class Attachment:
    """What a session attaches: a namespace, as the client names it, and further options of ATTACH."""

    namespace: str
    options: str = ""

    def statement(self, url: str) -> str:
        return f"ATTACH '{self.namespace}' AS lake (TYPE LANCE, ENDPOINT '{url}'{self.options})"


def with_database(database: str, prefix: str = "", options: str = "") -> Attachment:
    """Return the attachment of a namespace of the root, or of one below it, whose root it is for the client."""
    below = f";x-lancedb-database-prefix={prefix}" if prefix else ""
    return Attachment("$", f", HEADER 'x-lancedb-database={database}{below}'{options}")


class DuckDB:
    """Sessions of DuckDB in a process of its own. `attach` opens another one, in which `ask` goes on."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._session = 0

    def attach(self, url: str, attachment: Attachment) -> dict[str, Any]:
        self._session += 1
        return self.ask(attachment.statement(url))

    def ask(self, sql: str) -> dict[str, Any]:
        """Run a statement; return its `rows`, or its `error`."""
        return self._driver.ask({"sql": sql, "session": str(self._session)})

    def rows(self, sql: str) -> list[list[Any]]:
        response = self.ask(sql)
        assert "error" not in response, (sql, response["error"])
        rows: list[list[Any]] = response["rows"]
        return rows

    def error(self, sql: str) -> str:
        response = self.ask(sql)
        assert "error" in response, (sql, response["rows"])
        return str(response["error"])


@contextmanager
def duckdb(folder: Path) -> Iterator[DuckDB]:
    """Start a process of DuckDB. Raises NoWheelError."""
    command = [sys.executable, str(DRIVER), str(folder)]
    with Driver(command, {"PYTHONPATH": str(prepare())}, folder / "duckdb.log") as driver:
        yield DuckDB(driver)


def run(client: DuckDB, requests: Recorder, attachment: Attachment, folder: Path) -> tuple[ObservedCall, ...]:
    """Run every step in a namespace of one server, with the recorder before it."""
    (folder / "ids.csv").write_text("id\n100\n101\n")
    calls = []
    for step in (Step("attach", ""), *STEPS):
        sql = step.sql.replace("FOLDER", str(folder))
        response: Mapping[str, Any] = {"rows": []}
        if step.anew or not sql:
            response = client.attach(requests.url, attachment)
        if sql and "error" not in response:
            requests.drain()
            response = client.ask(sql)
        expected = step
        if attachment.namespace != "$" and step.what in WITHOUT_DATABASE:
            refusal, fault = WITHOUT_DATABASE[step.what]
            expected = replace(step, refusal=refusal, known=fault)
        calls.append(observe_call(requests, expected, step.sql or "ATTACH …", response))
    return tuple(calls)


def observe_database(client: DuckDB, folder: Path) -> ServerObservations:
    """Run every step in a database of an open server."""
    title = "`ATTACH '$'` with HEADER `x-lancedb-database=ns`"
    with open_server(folder / "database") as server:
        return _observe(client, folder, title, server.url, {}, ["ns"], with_database("ns"))


def observe_namespace(client: DuckDB, folder: Path) -> ServerObservations:
    """Run every step in a namespace of an open server that is attached by its name."""
    with open_server(folder / "namespace") as server:
        return _observe(client, folder, "`ATTACH 'ns'`", server.url, {}, ["ns"], Attachment("ns"))


def observe_lake(client: DuckDB, folder: Path) -> ServerObservations:
    """Run every step in a nested namespace with a key, on S3."""
    title = "the same for a nested namespace, with a key, on S3 with vended credentials"
    with lake(folder) as secured:
        key = secured.keys["administrator"]
        attachment = with_database("ns", "inner", f", API_KEY '{key}'")
        return _observe(client, folder, title, secured.url, {"x-api-key": key}, ["ns", "ns%24inner"], attachment)


def _observe(
    client: DuckDB,
    folder: Path,
    title: str,
    url: str,
    headers: Mapping[str, str],
    namespaces: Sequence[str],
    attachment: Attachment,
) -> ServerObservations:
    for namespace in namespaces:
        httpx.post(f"{url}/v1/namespace/{namespace}/create", json={}, headers=headers).raise_for_status()
    with Recorder(url) as requests:
        return ServerObservations(title, run(client, requests, attachment, folder))


@cache
def observe() -> list[ServerObservations]:
    """Run every step: in a database, in a namespace, and with a key on S3. Raises NoWheelError."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with duckdb(folder) as client:
            return [part(client, folder) for part in (observe_database, observe_namespace, observe_lake)]


if __name__ == "__main__":
    run_alone(__doc__, {"DuckDB": observe})
