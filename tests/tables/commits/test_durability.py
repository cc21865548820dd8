"""Durability: files of a commit are synced before it is recorded, so a loss of power takes nothing acknowledged."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.tables.bodies import Streamed, rows, small
from tests.tables.served import Server, ask

from tiltyard.catalog.tables import declare_table
from tiltyard.model.operations import ArrowBody
from tiltyard.model.spec.models import (
    AlterTableAddColumnsRequest,
    CreateTableBranchRequest,
    CreateTableIndexRequest,
    CreateTableRequest,
    DeclareTableRequest,
    DeleteFromTableRequest,
    InsertIntoTableRequest,
    MergeInsertIntoTableRequest,
    UpdateTableRequest,
)
from tiltyard.runtime.failpoints import Point
from tiltyard.tables.commits import recording
from tiltyard.tables.indexes.indexes import create_table_index
from tiltyard.tables.rows import create, update_delete
from tiltyard.tables.rows.insert import insert_into_table
from tiltyard.tables.rows.merge import merge_insert_into_table
from tiltyard.tables.schema import column_additions
from tiltyard.tables.versions.branches import create_table_branch

Body = Callable[[pa.Table], ArrowBody]


@pytest.fixture
def missing(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """Collect for each commit the files of tables that were not synced when it was recorded."""
    synced: dict[str, int] = {}
    unsynced: list[list[str]] = []
    sync = os.fsync

    def remember(descriptor: int) -> None:
        sync(descriptor)
        synced[str(Path(f"/proc/self/fd/{descriptor}").readlink())] = os.fstat(descriptor).st_mtime_ns

    def look(point: Point) -> None:
        assert point is Point.BEFORE_RECORD
        unsynced.append(not_synced())

    def not_synced() -> list[str]:
        below = [path for path in Path(server.ctx.storage.root).rglob("*") if path.parts[-2:-1] != ("_versions",)]
        there = [path for path in below if {"data", "_deletions", "_indices"} & set(path.parts)]
        return [str(path) for path in there if synced.get(str(path)) != path.stat().st_mtime_ns]

    monkeypatch.setattr(os, "fsync", remember)
    monkeypatch.setattr(recording, "reach", look)
    yield unsynced
    unsynced.append(not_synced())
    assert len(unsynced) > 1, "nothing was committed"
    assert [files for files in unsynced if files] == []


def made(server: Server) -> None:
    create.create_table(server.ctx, CreateTableRequest(id=["t"]), small(rows(6)))


@pytest.mark.parametrize("body", [small, Streamed])
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_insert_is_durable_before_it_is_recorded(
    server: Server, missing: list[list[str]], body: Body, mode: str
) -> None:
    made(server)
    insert_into_table(server.ctx, InsertIntoTableRequest(id=["t"], mode=mode), body(rows(3, 6)))


@pytest.mark.parametrize("body", [small, Streamed])
def test_insert_into_a_branch_is_durable_before_it_is_recorded(
    server: Server, missing: list[list[str]], body: Body
) -> None:
    made(server)
    create_table_branch(server.ctx, CreateTableBranchRequest(id=["t"], name="dev"))
    insert_into_table(server.ctx, InsertIntoTableRequest(id=["t"], branch="dev"), body(rows(3, 6)))


@pytest.mark.parametrize("body", [small, Streamed])
def test_first_rows_are_durable_before_they_are_recorded(server: Server, missing: list[list[str]], body: Body) -> None:
    declare_table(server.ctx, DeclareTableRequest(id=["t"]))
    insert_into_table(server.ctx, InsertIntoTableRequest(id=["t"]), body(rows(3)))


def test_changes_are_durable_before_they_are_recorded(server: Server, missing: list[list[str]]) -> None:
    made(server)
    merging = MergeInsertIntoTableRequest(
        id=["t"], on="id", when_matched_update_all=True, when_not_matched_insert_all=True
    )
    merge_insert_into_table(server.ctx, merging, small(rows(4, 4)))
    update_delete.update_table(
        server.ctx, ask(UpdateTableRequest, id="t", updates=[["name", "'x'"]], predicate="id < 2")
    )
    update_delete.delete_from_table(server.ctx, DeleteFromTableRequest(id=["t"], predicate="id = 3"))
    added = [{"name": "twice", "expression": "id * 2"}]
    column_additions.alter_table_add_columns(server.ctx, ask(AlterTableAddColumnsRequest, id="t", new_columns=added))
    create_table_index(server.ctx, CreateTableIndexRequest(id=["t"], column="id", index_type="BTREE"))
    assert server.run_jobs() == ["Succeeded"]
    assert server.open("t").count_rows("twice = id * 2") == 7
    assert len(missing) == 5
