"""A catalog in this process, a folder of files, and a way to run a stream over them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.services.server import ServerProcess
from tiltyard.pipeline.catalog_client import CatalogConnection, Table, connection, table
from tiltyard.pipeline.runs import LocalRun
from tiltyard.pipeline.streams.job import stream

Put = Callable[..., None]
RunStream = Callable[..., Mapping[str, Any]]
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def streams_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Start a server on SQLite and a local folder."""
    server = ServerProcess(tmp_path_factory.mktemp("streamed"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> CatalogConnection:
    """Return a catalog in this process."""
    return connection(str(tmp_path_factory.mktemp("catalog")))


@pytest.fixture
def films(catalog: CatalogConnection) -> Table:
    """Return a table that does not exist yet."""
    return table(catalog, f"films_{next(_numbers)}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an empty folder for files."""
    path = tmp_path / "in"
    path.mkdir()
    return path


@pytest.fixture
def put(folder: Path) -> Put:
    """Return a function that writes rows to a file of JSON lines in that folder, all at once."""

    def write(name: str, *rows: Mapping[str, Any]) -> None:
        hidden = folder / f".{name}"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(folder / name)

    return write


@pytest.fixture
def run_stream(films: Table, folder: Path) -> RunStream:
    """Return a function that takes all that is in the folder to the table."""

    def run(**options: Any) -> Mapping[str, Any]:
        arguments = {"available_now": True, "batch_seconds": 0.01, **options}
        return stream(LocalRun(), films.connection, None, str(folder), str(films), **arguments)

    return run
