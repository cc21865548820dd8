"""Commits whose outcome nobody heard of: their files stay, and the request that they fulfil is recognised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from lance_namespace.errors import ServiceUnavailableError
from msgspec import structs
from tests.tables.bodies import Streamed, small
from tests.tables.served import Server, ask

from tiltyard import faults
from tiltyard.faults import FaultError
from tiltyard.spec import models
from tiltyard.store import NewRequest
from tiltyard.tables.create import create_table
from tiltyard.tables.insert import insert_into_table
from tiltyard.tables.recovery import recovered
from tiltyard.tables.versions import restore_table

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import RequestRecord

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def table(server: Server) -> Server:
    create_table(server.ctx, ask(models.CreateTableRequest, id="t"), small(ROWS))
    return server


def keyed(server: Server) -> tuple[Context, RequestRecord]:
    """A context whose commits fulfil a request with a key."""
    record, ours = server.ctx.store.begin_request(NewRequest("key", "POST", None, "me", 60_000, 60_000))
    assert ours
    return structs.replace(server.ctx, claims=(record.claim,)), record


def insert(ctx: Context, body: Any, **fields: Any) -> models.InsertIntoTableResponse:
    return insert_into_table(ctx, ask(models.InsertIntoTableRequest, id="t", **fields), body)


@pytest.mark.parametrize("mode, rows", [("append", 6), ("overwrite", 3)])
@pytest.mark.parametrize("body", [small, Streamed])
def test_insert_recorded_and_not_finished_keeps_its_files_and_is_recognised(
    table: Server, monkeypatch: pytest.MonkeyPatch, body: Any, mode: str, rows: int
) -> None:
    ctx, _ = keyed(table)
    with monkeypatch.context() as patch:
        patch.setattr(faults, "_faults", faults.parse("after_record=unavailable"))
        with pytest.raises(ServiceUnavailableError, match="not known"):
            insert(ctx, body(ROWS), mode=mode)
    record = ctx.store.describe_request("key")
    assert record is not None
    answer = recovered(ctx, "InsertIntoTable", ask(models.InsertIntoTableRequest, id="t", mode=mode), record)
    assert answer == models.InsertIntoTableResponse(version=2, num_inserted_rows=3)
    assert table.open("t").to_table().num_rows == rows


def test_restore_that_has_committed_is_recognised_whatever_came_after(table: Server) -> None:
    insert(table.ctx, small(ROWS))
    ctx, _ = keyed(table)
    request = ask(models.RestoreTableRequest, id="t", version=1)
    restore_table(ctx, request)
    insert(table.ctx, small(ROWS))
    record = ctx.store.describe_request("key")
    assert record is not None
    assert recovered(ctx, "RestoreTable", request, record) == models.RestoreTableResponse()
    assert table.open("t").count_rows() == 6


def test_insert_struck_before_its_record_is_not_recognised(table: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx, record = keyed(table)
    with monkeypatch.context() as patch:
        patch.setattr(faults, "_faults", faults.parse("before_record=raise"))
        with pytest.raises(FaultError):
            insert(ctx, small(ROWS))
    found = ctx.store.describe_request(record.id)
    assert found is not None
    assert recovered(ctx, "InsertIntoTable", ask(models.InsertIntoTableRequest, id="t"), found) is None


def test_insert_whose_claim_was_taken_over_commits_nothing(table: Server) -> None:
    ctx, record = keyed(table)
    ctx.store.release_request(record.claim)
    taken, ours = ctx.store.begin_request(NewRequest("key", "POST", None, "other", 60_000, 60_000))
    assert ours and taken.attempts == 2
    with pytest.raises(ServiceUnavailableError, match="not known"):  # to whom the claim belongs now, it is
        insert(ctx, small(ROWS))
    assert table.open("t").version == 1


def test_recovered_of_a_dropped_table_is_nothing(table: Server) -> None:
    ctx, record = keyed(table)
    insert(ctx, small(ROWS))
    table.ctx.store.remove_table(("t",), doom=True)
    found = ctx.store.describe_request(record.id)
    assert found is not None and found.version == 2
    assert recovered(ctx, "InsertIntoTable", ask(models.InsertIntoTableRequest, id="t"), found) is None
