"""Upkeep that is killed at any step is done by the next server: no row is lost, and none is there twice."""

from __future__ import annotations

import time
from collections.abc import Callable

import lance
import pyarrow as pa
import pytest

from tests.faults.conftest import Installation, wait_until
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream
from tiltyard.runtime.failpoints import Point

Talk = Callable[[ServerProcess], Wire]
ON = {"TILTYARD_UPKEEP": "true"}


def rows(count: int, start: int = 0) -> pa.Table:
    return pa.table({"id": pa.array(range(start, start + count), pa.int64())})


def fill(wire: Wire) -> None:
    """A table whose index lacks 2,000 rows, in twenty fragments."""
    wire.good(wire.table(["t"], "create", stream(rows(3000))))
    wire.good(wire.table(["t"], "create_index", {"column": "id", "index_type": "BTREE"}))
    wait_until(lambda: wire.table(["t"], "index/id_idx/stats").json().get("status") == "done", "it is built", 30)
    for number in range(20):
        wire.good(wire.table(["t"], "insert", stream(rows(100, 3000 + number * 100))))


def is_maintained(installation: Installation) -> bool:
    [(location,)] = installation.sql("SELECT location FROM tables")
    dataset = lance.dataset(location)
    indexes = dataset.describe_indices()
    return bool(indexes) and indexes[0].num_rows_indexed == 5000 and len(dataset.get_fragments()) <= 2


def check_rows(wire: Wire, installation: Installation) -> None:
    assert wire.table(["t"], "count_rows").text == "5000"
    [(location,)] = installation.sql("SELECT location FROM tables")
    ids = lance.dataset(location).to_table()["id"].to_pylist()
    assert sorted(ids) == list(range(5000))


@pytest.mark.parametrize(
    "point",
    [
        Point.AFTER_RECORD,
        *(pytest.param(point, marks=pytest.mark.extended) for point in (Point.BEFORE_RECORD, Point.AFTER_FINALIZE)),
    ],
)
def test_upkeep_killed_at_a_step_of_its_commit_is_done_by_the_next_server(
    small_installation: Installation, talk: Talk, point: Point
) -> None:
    installation, armed = small_installation, small_installation.root.parent / "armed"
    server = installation.start(TILTYARD_FAULT=f"{point}@{armed}", TILTYARD_UPKEEP="false")
    fill(talk(server))
    server.stop()
    armed.touch()
    dying = installation.start(TILTYARD_FAULT=f"{point}@{armed}", **ON)
    wait_until(lambda: dying.process.poll() is not None, "upkeep's first commit kills the server", 60)
    assert not armed.exists()
    installation.expire_leases()
    installation.sql("UPDATE upkeep SET due_at = 0, rests_until = 0")
    wire = talk(installation.start(**ON))
    check_rows(wire, installation)
    wait_until(lambda: is_maintained(installation), "the next server has done it", 60)
    check_rows(wire, installation)


@pytest.mark.extended
def test_upkeep_of_two_servers_is_done_by_one(installation: Installation, talk: Talk) -> None:
    first, second = (talk(installation.start(**ON)) for _ in range(2))
    fill(first)
    wait_until(lambda: is_maintained(installation), "one of them has done it", 60)
    time.sleep(3)
    check_rows(second, installation)
    jobs = installation.sql("SELECT status FROM transactions WHERE kind = 'upkeep'")
    assert {status for (status,) in jobs} == {"Succeeded"}
    assert len(jobs) <= 2, "each run is of one server"
