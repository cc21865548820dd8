"""Compactions on an object store that are killed before their commit: no row is lost, and no file is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import lance
import lance.namespace
import pyarrow as pa
import pytest

from tests.faults.conftest import Installation, wait_until
from tests.services.server import ServerProcess
from tests.services.wire import Wire
from tiltyard.runtime.failpoints import Point

pytestmark = pytest.mark.extended

Talk = Callable[[ServerProcess], Wire]
ROWS, ROWS_OF_FRAGMENT = 22_000, 1_100
"""So many that they are compacted by a process of their own, in twenty small fragments."""
COMPACTED = 10
"""Fragments afterwards: two of them make one of the next tier."""
CHILD = b"tiltyard.tables.upkeep.maintainer"


def fill(server: ServerProcess, installation: Installation) -> None:
    rows = pa.table({"id": pa.array(range(ROWS), pa.int64())})
    client = lance.namespace.RestNamespace(uri=server.url)
    lance.write_dataset(
        rows,
        namespace_client=client,
        table_id=["t"],
        mode="create",
        max_rows_per_file=ROWS_OF_FRAGMENT,
    )
    assert len(installation.dataset("t").get_fragments()) == ROWS // ROWS_OF_FRAGMENT


def check_rows(installation: Installation) -> None:
    assert sorted(installation.dataset("t").to_table()["id"].to_pylist()) == list(range(ROWS))


def is_compacted(installation: Installation) -> bool:
    return len(installation.dataset("t").get_fragments()) == COMPACTED


def make_due(installation: Installation) -> None:
    installation.sql("UPDATE upkeep SET due_at = 0, rests_until = 0")


def children_of(server: ServerProcess) -> list[int]:
    """Return the processes that work on tables for a server."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_child = CHILD in (folder / "cmdline").read_bytes()
            if is_child and f"PPid:\t{server.process.pid}\n" in (folder / "status").read_text():
                found.append(int(folder.name))
        except OSError:  # it has ended
            continue
    return found


def check_garbage(wire: Wire, installation: Installation, expected: int) -> None:
    """The garbage collection removes so many data files, and every version can be read afterwards."""
    response = wire.good(wire.http.post("/tiltyard/v1/table/t/gc", json={"dry_run": True}))
    orphans = [file["path"] for file in response["files"] if file["kind"] == "data"]
    assert len(orphans) == expected, response
    collection = wire.good(wire.http.post("/tiltyard/v1/table/t/gc", json={}))["transaction_id"]
    described = lambda: wire.good(wire.call("transaction", [collection], "describe"))["status"]  # noqa: E731
    wait_until(lambda: described() not in {"Queued", "Running"}, "garbage is collected")
    assert described() == "Succeeded"
    again = wire.good(wire.http.post("/tiltyard/v1/table/t/gc", json={"dry_run": True}))
    assert again["files"] == []
    for version in installation.dataset("t").versions():
        assert lance.dataset(
            installation.dataset("t").uri, version=version["version"], storage_options=installation.options
        ).to_table().num_rows in {0, ROWS}


@pytest.mark.parametrize("victim", ["server", "child"])
def test_compaction_killed_before_its_commit_is_done_by_the_next_run(
    lake: Installation, talk: Talk, tmp_path: Path, victim: str
) -> None:
    hold = tmp_path / "hold"
    reached = hold.with_name("hold.reached")
    environ = {"TILTYARD_FAULT": f"{Point.BEFORE_RECORD}=hold@{hold}", "TILTYARD_GC_SAFETY_DAYS": "0"}
    server = lake.start(**environ, TILTYARD_UPKEEP="true")
    wire = talk(server)
    fill(server, lake)
    version = lake.dataset("t").version
    hold.touch()
    make_due(lake)
    wait_until(reached.exists, "a compaction has written its files, and begins to commit")
    [child] = children_of(server)
    if victim == "server":
        server.kill()
        wait_until(lambda: not Path(f"/proc/{child}").exists(), "the child ends with its server")
        hold.unlink()
        check_rows(lake)
        assert lake.dataset("t").version == version
        lake.expire_leases()
        server.start()
    else:
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: "State:\tZ" in Path(f"/proc/{child}/status").read_text(), "the child is dead")
        check_rows(lake)
        hold.unlink()  # what it asked to commit reserves numbers for its fragments, and no more
    make_due(lake)
    wait_until(lambda: is_compacted(lake), "the next run has done it")
    check_rows(lake)
    wait_until(lambda: not unfinished(lake), "the run has ended")
    assert "The server failed" not in str(lake.sql("SELECT error FROM transactions WHERE kind = 'upkeep'"))
    check_garbage(wire, lake, COMPACTED)


def unfinished(installation: Installation) -> int:
    [(count,)] = installation.sql(
        "SELECT count(*) FROM transactions WHERE kind = 'upkeep' AND status IN ('Queued', 'Running')"
    )
    return int(count)
