"""A server with a few tables, and commands that work on it, in this process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from tests.services.server import ServerProcess
from tiltyard.calls.http_caller import HttpCaller
from tiltyard.cli import main

FILMS = pa.table(
    {
        "id": [1, 2, 3, 4],
        "title": ["Roman Holiday", "Up", "Moby Dick", "Vertigo"],
        "year": [1953, 2009, 1956, 1958],
        "text": ["a princess in rome", "an old man and a house", "an old ship and a whale", "a tower"],
        "vector": pa.array([[0.9, 0.1], [0.1, 0.9], [0.5, 0.5], [0.7, 0.2]], pa.list_(pa.float32(), 2)),
    }
)

Run = Callable[..., Result]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep profiles and the states of imports in a folder of the test; take nothing from the environment."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("SERVER", "ROOT", "DB", "KEY", "PROFILE", "CONFIG", "URI", "URL"):
        monkeypatch.delenv(f"TILTYARD_{name}", raising=False)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with `films` (two versions, a full-text index), `library.books`, and an empty namespace."""
    server = ServerProcess(tmp_path_factory.mktemp("cli"))
    catalog = HttpCaller(server.url)
    catalog.call("CreateNamespace", id=["library"])
    catalog.call("CreateNamespace", id=["empty"])
    catalog.write("CreateTable", FILMS.slice(0, 3).to_reader(), "1", id=["films"])
    catalog.write("CreateTable", FILMS.select(["id", "title"]).to_reader(), "2", id=["library", "books"])
    catalog.write("InsertIntoTable", FILMS.slice(3).to_reader(), "3", id=["films"])
    catalog.call("CreateTableIndex", id=["films"], column="text", index_type="FTS")
    wait_for(lambda: [each["status"] for each in catalog.call("ListTableIndices", id=["films"])["indexes"]] == ["done"])
    catalog.close()
    yield server
    assert server.stop() == 0


@pytest.fixture
def run(server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on the server."""
    monkeypatch.setenv("TILTYARD_SERVER", server.url)
    return run_command


def run_command(*arguments: str, stdin: str | None = None) -> Result:
    """Run a command in this process; what it fails with besides an exit status is raised."""
    result = CliRunner().invoke(main, arguments, input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def printed(result: Result) -> str:
    """Return what a command has printed that succeeded."""
    assert result.exit_code == 0, result.output
    return result.stdout


def records(result: Result) -> list[dict[str, Any]]:
    """Return the records that a command has printed as JSON lines."""
    return [json.loads(line) for line in printed(result).splitlines()]


def refused(result: Result, status: int) -> str:
    """Return the one sentence of a command that failed with a status."""
    assert result.exit_code == status, (result.exit_code, result.output)
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("tiltyard: "), result.stderr
    return lines[0].removeprefix("tiltyard: ")


def wait_for(is_so: Callable[[], bool], seconds: float = 60) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)
