"""Upkeep below a mount: of the tables whose commits go through this catalog, and of no others."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import lance
import pyarrow as pa
import pytest

from tests.mounts.backends import Backend, new_name
from tests.mounts.served.conftest import MOUNT, mount_settings
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream

pytestmark = [pytest.mark.extended, pytest.mark.parametrize("backend", ["dir-manifest"], indirect=True)]
SECONDS = 60


@pytest.fixture(params=[True, False])
def managed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def wire(backend: Backend, managed: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wire]:
    """Requests to a server with upkeep that mounts the backend."""
    settings = {**mount_settings(backend, tmp_path_factory.getbasetemp()), "managed_versioning": managed}
    environ = {"TILTYARD_MOUNTS": json.dumps({MOUNT: settings}), "TILTYARD_UPKEEP": "true"}
    server = ServerProcess(tmp_path_factory.mktemp("served"), environ=environ)
    with Wire(server.url) as wire:
        yield wire
    server.stop()


def test_upkeep_below_mount_is_of_managed_tables(wire: Wire, managed: bool) -> None:
    path = [MOUNT, new_name("t")]
    rows = pa.table({"id": pa.array(range(100), pa.int64())})
    wire.good(wire.table(path, "create", stream(rows)))
    for _ in range(20):
        wire.good(wire.table(path, "insert", stream(rows)))
    location = wire.good(wire.table(path, "describe"))["location"]
    deadline = time.monotonic() + (SECONDS if managed else 8)
    while time.monotonic() < deadline and len(lance.dataset(location).get_fragments()) > 2:
        time.sleep(0.2)
    fragments = len(lance.dataset(location).get_fragments())
    assert fragments <= 2 if managed else fragments == 21
    assert wire.table(path, "count_rows").text == "2100"
