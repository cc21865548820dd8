"""A catalog behind a server, and what a backup of it is written to."""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from tests.services.forked_process import run_tiltyard
from tests.services.postgres import PostgresServer, postgres_server
from tests.services.s3 import S3Server, s3_server
from tests.services.server import ServerProcess
from tiltyard.cli import main


class Client:
    """Calls a server by its URL, with plain HTTP."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server

    def post(self, path: str, body: object = None, content: bytes | None = None) -> Any:
        """Send JSON, or a stream of Arrow; return the decoded response. Raises HTTPError."""
        data = content if content is not None else json.dumps(body or {}).encode()
        kind = "application/vnd.apache.arrow.stream" if content is not None else "application/json"
        request = urllib.request.Request(f"{self.server.url}{path}", data, {"Content-Type": kind}, method="POST")
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = response.read()
        return json.loads(answer) if answer[:1] in (b"{", b"[") or answer.isdigit() else answer

    def create(self, table: str, ids: list[int]) -> None:
        """Create a table with these ids."""
        self.post(f"/v1/table/{table}/create", content=rows(ids))

    def insert(self, table: str, ids: list[int]) -> None:
        """Append these ids."""
        self.post(f"/v1/table/{table}/insert", content=rows(ids))

    def ids(self, table: str, **fields: Any) -> list[int]:
        """Return all ids of a table, or of a version or branch of it, in order."""
        query = {"k": 1_000_000, "vector": {"single_vector": []}, "columns": {"column_names": ["id"]}} | fields
        answer = self.post(f"/v1/table/{table}/query", query)
        return sorted(pa.ipc.open_file(answer).read_all()["id"].to_pylist())


def rows(ids: list[int]) -> bytes:
    """Encode a table of ids as a stream of Arrow."""
    table = pa.table({"id": pa.array(ids, pa.int64()), "text": [f"row {number}" for number in ids]})
    output = io.BytesIO()
    with pa.ipc.new_stream(output, table.schema) as writer:
        writer.write_table(table)
    return output.getvalue()


def run(*arguments: object, environ: Mapping[str, str] | None = None, status: int = 0) -> str:
    """Run a command of tiltyard; return what it printed, and check its status.

    In this process, unless a fault is injected into it.
    """
    if environ is not None and "TILTYARD_FAULT" in environ:
        return _run_process([*map(str, arguments)], environ, status)
    done = CliRunner().invoke(main, [*map(str, arguments)], env=environ)
    assert done.exit_code == status, done.output + str(done.exc_info)
    return done.output


def _run_process(arguments: list[str], environ: Mapping[str, str], status: int) -> str:
    done = run_tiltyard(*arguments, timeout=240, **environ)
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """Start servers by their roots and flags; what is left of them is killed in the end."""
    servers: list[ServerProcess] = []

    def start_server(root: Path | str, *flags: str, environ: Mapping[str, str] | None = None) -> Client:
        servers.append(ServerProcess(root, *flags, environ=environ))
        return Client(servers[-1])

    yield start_server
    for server in servers:
        if server.process.poll() is None:
            server.kill()
