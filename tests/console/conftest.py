"""A server without authentication, and its console as a browser without scripts sees it."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.services.console_data import make_tables
from tests.services.server import ServerProcess


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path_factory.mktemp("console"))
    make_tables(running.url)
    yield running
    running.stop()


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{server.url}/console", timeout=60) as client:
        yield client
