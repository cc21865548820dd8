"""Columns of SQL by lancedb's remote clients: refreshed by the server's own worker, on main and on branches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import lancedb
import pyarrow as pa
import pytest
from lancedb.exceptions import JobFailedError
from lancedb.remote.errors import HttpError

from tests.services.server import ServerProcess

Fresh = Callable[[str], str]


@pytest.fixture
def table(remote: Any, fresh: Fresh) -> Any:
    table = remote.create_table(fresh("computed"), rows(1, 2, 3))
    table.add_columns(computed={"twice": "x * 2"})
    return table


def rows(*numbers: int | None) -> pa.Table:
    return pa.table({"x": pa.array(numbers, pa.int64())})


def values(table: Any, column: str = "twice") -> dict[int | None, Any]:
    found = table.search().limit(1000).to_arrow()
    return dict(zip(found["x"].to_pylist(), found[column].to_pylist(), strict=True))


def test_refresh_computes_what_is_missing_or_stale(remote: Any, table: Any) -> None:
    assert values(table) == {1: None, 2: None, 3: None}
    first = table.refresh_column_async("twice")
    result = first.wait()
    assert (result.rows_assigned, result.rows_failed, result.published_version) == (3, 0, table.version)
    assert remote.open_job(first.id).job_type == "refresh_column"
    again = table.refresh_column_async("twice").wait()
    assert (again.rows_assigned, again.published_version, again.source_version) == (0, None, table.version)
    table.add(rows(10, None))
    table.update(where="x = 3", values={"x": 30})
    table.delete("x = 1")
    table.optimize()
    assert table.refresh_column_async("twice").wait().rows_assigned == 3
    assert values(table) == {2: 4, 10: 20, None: None, 30: 60}


def test_where_and_concurrency_of_a_refresh(raw: Any, remote: Any, table: Any) -> None:
    def refresh(**body: Any) -> Any:
        return raw.post(f"/v1/table/{table.name}/backfill_column", {"column": "twice", **body})

    job = remote.open_job(refresh(where="x > 1", concurrency=1).json()["job_id"])
    job.wait()
    assert remote.open_job(job.id).result["rows_remaining"] == 1
    assert values(table) == {1: None, 2: 4, 3: 6}
    for concurrency in (0, -1, 1 << 40):
        refused = refresh(concurrency=concurrency)
        assert (refused.status_code, refused.json()["code"]) == (400, 13) and "concurrency" in refused.text


def test_expression_that_fails_on_a_row_fails_the_job_and_changes_nothing(table: Any) -> None:
    table.add_columns(computed={"inverse": "100 / (x - 2)"})
    version = table.version
    with pytest.raises(JobFailedError, match="Divide by zero"):
        table.refresh_column_async("inverse").wait()
    assert table.version == version and values(table, "inverse") == {1: None, 2: None, 3: None}
    table.delete("x = 2")  # what is deleted is not computed
    assert table.refresh_column_async("inverse").wait().rows_assigned == 2
    assert values(table, "inverse") == {1: -100, 3: 100}


def test_refresh_of_a_branch_changes_the_branch_alone(remote: Any, table: Any) -> None:
    branch = table.branches.create("dev")
    branch.add(rows(4))
    result = branch.refresh_column_async("twice").wait()
    assert result.rows_assigned == 4 and result.published_version == branch.version
    assert values(branch) == {1: 2, 2: 4, 3: 6, 4: 8}
    assert values(table) == {1: None, 2: None, 3: None}
    assert table.refresh_column_async("twice").wait().rows_assigned == 3
    branch.update(where="x = 1", values={"x": 7})
    assert branch.refresh_column_async("twice").wait().rows_assigned == 1
    assert values(branch) == {7: 14, 2: 4, 3: 6, 4: 8}
    with pytest.raises((HttpError, ValueError), match="none"):
        table.branches.checkout("none").refresh_column_async("twice")


def test_async_client_refreshes_main_and_branches(server: ServerProcess, table: Any) -> None:
    async def run() -> list[int]:
        db = await lancedb.connect_async("db://main", api_key="any", host_override=server.url)
        opened = await db.open_table(table.name)
        branch = await opened.branches.create("dev")
        jobs = [await handle.refresh_column_async("twice") for handle in (branch, opened)]
        return [(await job.wait()).rows_assigned for job in jobs]

    assert asyncio.run(run()) == [3, 3]
