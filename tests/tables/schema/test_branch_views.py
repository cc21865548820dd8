"""Materialized views over a branch: refreshed from what was added to the branch, and from nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, TableBranchNotFoundError
from tests.tables.bodies import small
from tests.tables.served import Server, ask

from tiltyard.model import jobs
from tiltyard.model.columns.lineage import ColumnInput, ColumnOrigin, Derivation
from tiltyard.model.spec import models
from tiltyard.tables.lance_sql.select_queries import parse_select
from tiltyard.tables.rows.insert import insert_into_table
from tiltyard.tables.rows.update_delete import delete_from_table
from tiltyard.tables.versions.branches import create_table_branch, delete_table_branch
from tiltyard.tables.views.materialized_views import create_materialized_view, refresh_materialized_view
from tiltyard.worker import Worker

QUERY = "SELECT x, x * 2 AS twice FROM table_branch('t', 'dev') WHERE x > 0"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server with the table `t`, its branch `dev`, and a view `v` of the branch."""
    server = Server(tmp_path)
    server.create("t", rows(1, 2))
    branch(server)
    create(server)
    yield server
    server.services.close()


def rows(*numbers: int) -> pa.Table:
    return pa.table({"x": pa.array(numbers, pa.int64())})


def branch(server: Server) -> None:
    create_table_branch(server.ctx, ask(models.CreateTableBranchRequest, id="t", name="dev"))


def create(server: Server, name: str = "v", query: str = QUERY) -> None:
    fields = {"id": [name], "kind": "select", "source_query": query, "output_schema": ""}
    create_materialized_view(server.ctx, msgspec.convert(fields, models.CreateMaterializedViewRequest))


def insert(server: Server, *numbers: int, to: str | None = "dev") -> None:
    insert_into_table(server.ctx, ask(models.InsertIntoTableRequest, id="t", branch=to), small(rows(*numbers)))


def refresh(server: Server, **fields: Any) -> tuple[str, str]:
    """Refresh the view; return its mode and the rows that were written."""
    job_id = refresh_materialized_view(server.ctx, ask(models.RefreshMaterializedViewRequest, id="v", **fields)).job_id
    assert Worker(server.services, 0).run_one()
    record = server.services.store.describe_transaction(job_id)
    assert record.status == "Succeeded", record.error
    return record.properties["mode"], record.properties["rows"]


def values(server: Server) -> list[int]:
    found = server.open("v").to_table()
    assert found["twice"].to_pylist() == [2 * number for number in found["x"].to_pylist()]
    return sorted(found["x"].to_pylist())


def test_refresh_reads_what_was_added_to_the_branch(server: Server) -> None:
    insert(server, 3, -3)
    assert refresh(server) == ("full", "3") and values(server) == [1, 2, 3]
    (made,) = server.services.store.lineage_of(server.ctx.store.describe_table(("v",)).id, "", None, 10)
    assert (made.kind, made.source_ids, made.sources[0].branch, made.replaces) == (
        "refresh", (server.ctx.store.describe_table(("t",)).id,), "dev", True
    )  # fmt: skip
    assert made.columns == (
        ColumnOrigin("x", (ColumnInput(0, "x", Derivation.DIRECT),)),
        ColumnOrigin("twice", (ColumnInput(0, "x", Derivation.TRANSFORMED),)),
    )
    insert(server, 100, to=None)  # main's rows are no matter of the branch
    assert refresh(server) == ("unchanged", "0")
    insert(server, 4)
    assert refresh(server) == ("incremental", "1") and values(server) == [1, 2, 3, 4]
    delete_from_table(server.ctx, ask(models.DeleteFromTableRequest, id="t", branch="dev", predicate="x = 2"))
    assert refresh(server) == ("incremental", "0") and values(server) == [1, 3, 4]


def test_branch_that_was_created_again_is_another_one(server: Server) -> None:
    insert(server, 3)
    refresh(server)
    delete_table_branch(server.ctx, ask(models.DeleteTableBranchRequest, id="t", name="dev"))
    with pytest.raises(TableBranchNotFoundError):
        create(server, "w")
    branch(server)
    insert(server, 9)  # as many versions as the first one had
    assert refresh(server) == ("full", "3") and values(server) == [1, 2, 9]


def test_refresh_that_is_struck_before_its_commit_adds_its_rows_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tiltyard.tables.views import select_views

    insert(server, 3)
    monkeypatch.setattr(jobs, "RETRY_MS", 0)
    commit, strikes = select_views.commit_next, iter([True])

    def struck(*arguments: Any) -> Any:
        if next(strikes, False):
            raise select_views.ConcurrentModificationError("another commit came first")
        return commit(*arguments)

    monkeypatch.setattr(select_views, "commit_next", struck)
    assert refresh(server) == ("full", "3") and values(server) == [1, 2, 3]
    assert refresh(server) == ("unchanged", "0")


@pytest.mark.parametrize(
    "source",
    ["table_branch('t')", "table_branch('t', 'dev', 3)", "table_branch(t, dev)"],
)
def test_branches_that_cannot_be_are_refused(source: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_select(f"SELECT x FROM {source}")
