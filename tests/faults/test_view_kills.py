"""A refresh that is killed at any step is done by the next server: no row is lost, and none is there twice."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.faults.conftest import Installation, wait_until
from tests.services.server import ServerProcess
from tests.services.wire import Wire, stream
from tiltyard.runtime.failpoints import Point

Talk = Callable[[ServerProcess], Wire]
QUERY = "SELECT id, x * 2 AS twice FROM source WHERE id % 3 <> 0"


def rows(ids: range, x: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "x": pa.array([x] * len(ids), pa.int64())})


def refresh(wire: Wire) -> str:
    return str(wire.call("materialized_view", ["view"], "refresh").json()["job_id"])


def job(wire: Wire, job_id: str) -> dict[str, str]:
    """Return the figures of a job that has succeeded; {} before that."""
    record = wire.good(wire.call("transaction", [job_id], "describe"))
    assert record["status"] not in ("Failed", "Canceled"), record
    return dict(record["properties"]) if record["status"] == "Succeeded" else {}


@pytest.mark.parametrize(
    ("disk_or_lake", "point"),
    [
        ("disk", Point.BEFORE_RECORD),
        ("disk", Point.AFTER_FINALIZE),
        *(
            pytest.param("lake", point, marks=pytest.mark.extended)
            for point in (Point.BEFORE_RECORD, Point.AFTER_RECORD, Point.AFTER_FINALIZE)
        ),
    ],
    indirect=["disk_or_lake"],
)
def test_refresh_killed_at_a_step_of_its_commit_is_done_once(
    disk_or_lake: Installation, talk: Talk, tmp_path_factory: pytest.TempPathFactory, point: Point
) -> None:
    installation, armed = disk_or_lake, tmp_path_factory.mktemp("armed") / "armed"
    dying = installation.start(TILTYARD_FAULT=f"{point}@{armed}")
    wire = talk(dying)
    wire.good(wire.table(["source"], "create", stream(rows(range(3000), 1))))
    fields = {"kind": "select", "source_query": QUERY, "output_schema": ""}
    assert wire.call("materialized_view", ["view"], "create", fields).json() == {"version": 1}
    first = refresh(wire)
    wait_until(lambda: job(wire, first), "the view is filled", 60)
    assert job(wire, first)["mode"] == "full"
    wire.good(wire.table(["source"], "update", {"predicate": "id >= 100 AND id < 130", "updates": [["x", "7"]]}))
    wire.good(wire.table(["source"], "delete", {"predicate": "id < 30"}))
    wire.good(wire.table(["source"], "insert", stream(rows(range(3000, 3030), 2))))
    armed.touch()
    second = refresh(wire)
    wait_until(lambda: dying.process.poll() is not None, "the commit of the refresh kills the server", 60)
    assert not armed.exists()
    installation.expire_leases()
    wire = talk(installation.start())
    wait_until(lambda: job(wire, second), "the next server has done it", 60)
    figures = job(wire, second)
    assert (figures["mode"], figures["rows"], figures["removed"]) == ("incremental", "40", "40")
    view = installation.dataset("view")
    expected = [(number, 14 if number in range(100, 130) else 4 if number >= 3000 else 2)
                for number in range(30, 3030) if number % 3]  # fmt: skip
    found = view.to_table().to_pylist()
    assert sorted((row["id"], row["twice"]) for row in found) == expected
    assert int(view.version) == int(figures["version"]) == 3
