"""A server on each database, and the number of histories to try."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.services.postgres import postgres_server
from tests.services.server import ServerProcess


@pytest.fixture(scope="package", params=["sqlite", pytest.param("postgres", marks=pytest.mark.extended)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Start a server on each database; the tests fail if it logs an error."""
    root = tmp_path_factory.mktemp("property")
    if request.param == "sqlite":
        yield from _running(ServerProcess(root))
        return
    with postgres_server() as postgres:
        yield from _running(ServerProcess(root, "--db", postgres.new_database()))


def _running(server: ServerProcess) -> Iterator[ServerProcess]:
    yield server
    assert server.stop() == 0
    assert not [line for line in server.log if " ERROR " in line or "Traceback" in line], "".join(server.log)


@pytest.fixture(scope="session")
def bounds() -> settings:
    """The number of histories to try: `PROPERTY_EXAMPLES=1000 make test PYTEST_ARGS=tests/property` tries more."""
    return settings(
        max_examples=int(os.environ.get("PROPERTY_EXAMPLES", "12")),
        derandomize="PROPERTY_EXAMPLES" not in os.environ,
        stateful_step_count=30,
        deadline=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
