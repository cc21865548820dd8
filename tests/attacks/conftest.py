"""A server as its users start it, watched while it is attacked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.attacks.watchdog import MemoryWatchdog, attacked_server, measured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.services.server import ServerProcess

BOUND_MIB = 500
"""What a server with default settings may take under any attack: it starts with about 200."""


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with default settings, for the attacks of one file; each of them is watched, and so is the whole."""
    with attacked_server(tmp_path_factory.mktemp("victim"), bound_mib=BOUND_MIB) as server:
        yield server


@pytest.fixture(autouse=True)
def watch_victim(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Iterator[None]:
    """Watch the shared server during a test, and note in the run's report what the servers of the test took at most."""
    measured.clear()
    if "victim" in request.fixturenames:
        server: ServerProcess = request.getfixturevalue("victim")
        assert server.process.poll() is None, "An earlier attack has ended the server."
        with MemoryWatchdog(server.process.pid, BOUND_MIB):
            yield
    else:
        yield
    if measured:
        highest = max(measured, key=lambda watchdog: watchdog.peak_mib)
        record_property("memory_mib", f"{highest.first_mib:.0f} → {highest.peak_mib:.0f}")
