"""A server that is killed while it makes, drops or restores a snapshot: there is a whole one afterwards, or none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import httpx
import lance
import pytest
from lance_namespace.errors import TableTagNotFoundError

import tiltyard
from tests.faults.conftest import Installation, wait_until
from tests.faults.test_key_kills import rows
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream
from tiltyard.publishing import commit
from tiltyard.runtime.failpoints import Point

TABLES = ["t", "u"]
TAG_POINTS = tuple(map(Point, ("before_tags", "between_tags", "after_tags")))
COMMIT_POINTS = (Point.BEFORE_RECORD, Point.AFTER_RECORD)


class KilledServer:
    """A server with the tables `t` and `u` that is killed at the points that are armed."""

    def __init__(self, installation: Installation, folder: Path, talk: Callable[[ServerProcess], Wire]) -> None:
        self.installation = installation
        self._folder = folder
        points = ",".join(f"{point}=kill@{folder / point}" for point in (*TAG_POINTS, *COMMIT_POINTS))
        self.process = installation.start(TILTYARD_FAULT=points)
        self._wire = talk(self.process)
        for name in TABLES:
            self._wire.good(self._wire.table([name], "create", stream(rows(1))))
        self.lake = tiltyard.connect(self.process.url)

    def kill_in(self, point: Point, action: str, request: Mapping[str, object]) -> None:
        """Have the server killed at a point of a call on snapshots, and start it again."""
        (self._folder / point).touch()
        with pytest.raises(httpx.TransportError):  # not by the lake, which would call again
            self._wire.http.post(f"/tiltyard/v1/snapshot/{action}", json=request)
        assert not (self._folder / point).exists()
        self.process.wait()
        self.process.start()

    def restart_in(self, point: Point, call: Callable[[], object]) -> None:
        """Have the server killed at a point of a call that goes on when the server is there again."""
        (self._folder / point).touch()
        calling = threading.Thread(target=call)
        calling.start()
        self.process.wait()
        self.process.start()
        calling.join(120)
        assert not calling.is_alive()

    def tags(self) -> dict[str, set[str]]:
        """Return the tags of each table, from storage by their files: Lance fails at one that was just deleted."""
        folders = {name: Path(self.installation.dataset(name).uri, "_refs", "tags") for name in TABLES}
        return {name: {path.stem for path in folder.glob("*.json")} for name, folder in folders.items()}


@pytest.fixture
def server(
    installation: Installation, tmp_path_factory: pytest.TempPathFactory, talk: Callable[[ServerProcess], Wire]
) -> KilledServer:
    return KilledServer(installation, tmp_path_factory.mktemp("faults"), talk)


def test_server_killed_in_a_snapshot_leaves_a_whole_one_or_none(
    server: KilledServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = server.lake
    for point in TAG_POINTS:
        server.kill_in(point, "create", {"name": f"made.{point}", "tables": [[name] for name in TABLES]})
        lake.snapshot(f"dropped.{point}", TABLES)
        server.kill_in(point, "drop", {"name": f"dropped.{point}"})
        assert lake.snapshots() == []
        for name in (f"made.{point}", f"dropped.{point}"):
            with pytest.raises(TableTagNotFoundError):
                lake.at(name)
    left = server.tags()
    assert left["t"] | left["u"] == {
        *(f"made.{point}" for point in TAG_POINTS[1:]),
        *(f"dropped.{point}" for point in TAG_POINTS[:2]),
    }
    again = lake.snapshot("made.between_tags", TABLES)
    server.installation.sql("UPDATE snapshots SET created_at = 0")
    wait_until(
        lambda: server.tags() == {name: {again.name} for name in TABLES}, "the tags of incomplete snapshots are deleted"
    )
    wait_until(
        lambda: server.installation.sql("SELECT name FROM snapshots") == [(again.name,)], "their records are deleted"
    )

    monkeypatch.setattr(commit, "PAUSES", (0.2,) * 500)  # until the server is there again
    for number, point in enumerate(COMMIT_POINTS):
        for name in TABLES:
            lance.write_dataset(rows(2), namespace_client=lake.catalog.client(), table_id=[name], mode="append")
        server.restart_in(point, again.restore)
        latest = {name: server.installation.dataset(name) for name in TABLES}
        assert {name: dataset.version for name, dataset in latest.items()} == dict.fromkeys(TABLES, 3 + 2 * number)
        assert all(dataset.to_table()["id"].to_pylist() == [1] for dataset in latest.values())
