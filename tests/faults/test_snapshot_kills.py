"""A server that is killed while it restores a snapshot: the restore goes on, in all tables once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import lance
import pytest

import tiltyard
from tests.faults.conftest import Installation
from tests.faults.test_key_kills import rows
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream
from tiltyard.publishing import commit
from tiltyard.runtime.failpoints import Point

TABLES = ["t", "u"]
COMMIT_POINTS = (Point.BEFORE_RECORD, Point.AFTER_RECORD)


class KilledServer:
    """A server with the tables `t` and `u` that is killed at the points that are armed."""

    def __init__(self, installation: Installation, folder: Path, talk: Callable[[ServerProcess], Wire]) -> None:
        self.installation = installation
        self._folder = folder
        points = ",".join(f"{point}=kill@{folder / point}" for point in COMMIT_POINTS)
        self.process = installation.start(TILTYARD_FAULT=points)
        self._wire = talk(self.process)
        for name in TABLES:
            self._wire.good(self._wire.table([name], "create", stream(rows(1))))
        self.lake = tiltyard.connect(self.process.url)

    def restart_in(self, point: Point, call: Callable[[], object]) -> None:
        """Have the server killed at a point of a call that goes on when the server is there again."""
        (self._folder / point).touch()
        calling = threading.Thread(target=call)
        calling.start()
        self.process.wait()
        self.process.start()
        calling.join(120)
        assert not calling.is_alive()


@pytest.fixture
def server(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory, talk: Callable[[ServerProcess], Wire]
) -> KilledServer:
    return KilledServer(installation, tmp_path_factory.mktemp("faults"), talk)


def test_server_killed_while_it_restores_a_snapshot_restores_all_tables_once(
    server: KilledServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = server.lake
    kept = lake.snapshot("kept", TABLES)
    monkeypatch.setattr(commit, "PAUSES", (0.2,) * 500)  # until the server is there again
    for number, point in enumerate(COMMIT_POINTS):
        for name in TABLES:
            lance.write_dataset(rows(2), namespace_client=lake.catalog.client(), table_id=[name], mode="append")
        server.restart_in(point, kept.restore)
        latest = {name: server.installation.dataset(name) for name in TABLES}
        assert {name: dataset.version for name, dataset in latest.items()} == dict.fromkeys(TABLES, 3 + 2 * number)
        assert all(dataset.to_table()["id"].to_pylist() == [1] for dataset in latest.values())
