"""Branches compared with main and promoted to it, through the stock lancedb client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import lancedb
import pyarrow as pa
import pytest

from tests.services.server import ServerProcess

Fresh = Callable[[str], str]
ROWS = pa.table({"id": pa.array(range(4), pa.int64()), "x": pa.array([0.5, 1.5, 2.5, 3.5])})
DIFF = {
    "fromBranch",
    "parentVersion",
    "mainVersion",
    "branchVersion",
    "baseMoved",
    "rowCountMain",
    "rowCountBranch",
    "rowSummary",
    "addedColumns",
    "removedColumns",
    "changedColumns",
    "addedIndexes",
    "removedIndexes",
    "errors",
}


@pytest.fixture
def table(remote: Any, fresh: Fresh) -> Any:
    return remote.create_table(fresh("t"), ROWS)


def test_diff_has_every_field_that_the_client_reads(table: Any) -> None:
    table.branches.create("dev").add_columns({"d": "x * 2"})
    diff = table.branches.diff("dev")
    assert set(diff) == DIFF and diff["fromBranch"] == "dev" and diff["errors"] == []
    assert diff["addedColumns"] == [{"name": "d", "dataType": "double", "nullable": True}]
    assert diff["rowSummary"] == {
        "unchanged": 4,
        "newOnBase": 0,
        "newOnBranch": 0,
        "staleRecompute": 0,
        "inputsChanged": 0,
        "deltaAvailable": True,
    }


def test_cherry_pick_previews_promotes_and_says_why_it_fails(table: Any) -> None:
    dev = table.branches.create("dev")
    dev.add_columns({"d": "x * 2"})
    preview = table.branches.cherry_pick("dev", dry_run=True)
    assert (preview["status"], preview["preview"]) == ("ready", {"promotedColumns": ["d"]})
    assert "d" not in table.schema.names
    picked = table.branches.cherry_pick("dev")
    assert (picked["status"], picked["mainVersionAfter"]) == ("cherryPicked", 2)
    table.branches.delete("dev")
    assert table.search().select(["d"]).to_arrow()["d"].to_pylist() == [1.0, 3.0, 5.0, 7.0]
    table.branches.create("late").add_columns({"e": "x"})
    table.add(ROWS)
    failed = table.branches.cherry_pick("late")
    codes = [error["code"] for error in failed["diff"]["errors"]]
    assert (failed["status"], codes) == ("failed", ["baseMoved", "rowCountMismatch"])
    assert failed["preview"] == {"promotedColumns": []} and "mainVersionAfter" not in failed
    with pytest.raises(ValueError, match="not found"):
        table.branches.diff("nope")


def test_branches_of_the_asynchronous_client_are_the_same(server: ServerProcess, table: Any) -> None:
    async def run() -> Any:
        database = await lancedb.connect_async("db://tests", api_key="none", host_override=server.url)
        opened = await database.open_table(table.name)
        dev = await opened.branches.create("dev")
        await dev.add_columns({"d": "x"})
        diff = await opened.branches.diff("dev")
        picked = await opened.branches.cherry_pick("dev")
        await opened.flush_lsm()
        return diff, picked, await opened.get_lsm_stats()

    diff, picked, stats = asyncio.run(run())
    assert (set(diff), picked["status"], stats) == (DIFF, "cherryPicked", None)


def test_managed_table_gets_the_promoted_columns_as_one_recorded_version(
    local_writes: Any, remote: Any, raw: Any, fresh: Fresh
) -> None:
    name = fresh("t")
    local_writes.create_table(name, ROWS)
    table = remote.open_table(name)
    before = table.version
    table.branches.create("dev").add_columns({"d": "x * 2"})
    assert table.branches.cherry_pick("dev")["mainVersionAfter"] == before + 1
    listed = raw.post(f"/v1/table/{name}/version/list").json()["versions"]
    assert [entry["version"] for entry in listed] == [before, before + 1]
    assert local_writes.open_table(name).to_arrow()["d"].to_pylist() == [1.0, 3.0, 5.0, 7.0]
