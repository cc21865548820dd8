"""Commits whose response was lost: their files stay, and a repeat of the request gets its response."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    ConcurrentModificationError,
    InternalError,
    InvalidInputError,
    ServiceUnavailableError,
)
from msgspec import structs
from tests.tables.bodies import Streamed, small
from tests.tables.served import Server, ask

from tiltyard.catalog.namespaces import create_namespace, drop_namespace
from tiltyard.catalog.tables import deregister_table, drop_table, rename_table
from tiltyard.catalog.transactions import describe_transaction
from tiltyard.catalog.undrop import undrop_namespace, undrop_table
from tiltyard.model.operations import bound_operations
from tiltyard.model.spec import models
from tiltyard.runtime import failpoints
from tiltyard.runtime.failpoints import FaultError
from tiltyard.store import NewRequest, RequestLeaseLostError
from tiltyard.tables.commits.batch_commit import batch_commit_tables
from tiltyard.tables.commits.finalizing import finalize_pending
from tiltyard.tables.commits.recovery import recover_response
from tiltyard.tables.rows import merge, update_delete  # noqa: F401  # their operations are recovered by name
from tiltyard.tables.rows.create import create_table
from tiltyard.tables.rows.insert import insert_into_table
from tiltyard.tables.schema.columns import update_field_metadata, update_table_schema_metadata
from tiltyard.tables.upkeep.repair import repair
from tiltyard.tables.versions.versions import restore_table

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import RequestRecord, TableRecord, VersionRecord

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def table(server: Server) -> Server:
    create_table(server.ctx, ask(models.CreateTableRequest, id="t"), small(ROWS))
    return server


def keyed(server: Server) -> tuple[Context, RequestRecord]:
    """Begin an idempotent request; return a context whose commits fulfil it, and its record."""
    record, is_claimed = server.ctx.store.begin_request(NewRequest("key", "POST", None, "me", 60_000, 60_000))
    assert is_claimed
    return structs.replace(server.ctx, claims=(record.claim,)), record


def recovered(ctx: Context, name: str, request: Any, record: RequestRecord) -> Any:
    """Return the response of an interrupted request of the operation of this name."""
    operation, handler = bound_operations()[name]
    assert handler is not None
    return recover_response(ctx, operation, handler, request, record)


def insert(ctx: Context, body: Any, **fields: Any) -> models.InsertIntoTableResponse:
    return insert_into_table(ctx, ask(models.InsertIntoTableRequest, id="t", **fields), body)


def unfinished(table: Server, monkeypatch: pytest.MonkeyPatch) -> tuple[Context, TableRecord, VersionRecord]:
    """Run an idempotent insert whose version is recorded, and not finalized."""
    ctx, _ = keyed(table)
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_faults", failpoints.parse("after_record=unavailable"))
        with pytest.raises(ServiceUnavailableError, match="not known"):
            insert(ctx, small(ROWS))
    record = ctx.store.describe_table(("t",))
    [pending] = ctx.store.pending_versions(record.id)
    assert noted(ctx).version == pending.version == 2
    return ctx, record, pending


def noted(ctx: Context) -> RequestRecord:
    record = ctx.store.describe_request("key")
    assert record is not None
    return record


def test_insert_recorded_and_not_finished_is_not_run_again_while_it_cannot_be(
    table: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx, _, _ = unfinished(table, monkeypatch)
    request = ask(models.InsertIntoTableRequest, id="t")
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_faults", failpoints.parse("after_record=unavailable"))
        with pytest.raises(ServiceUnavailableError, match="not in its place yet"):
            recovered(ctx, "InsertIntoTable", request, noted(ctx))
    response = recovered(ctx, "InsertIntoTable", request, noted(ctx))
    assert response == models.InsertIntoTableResponse(version=2, num_inserted_rows=3)


@pytest.mark.parametrize("found_by", ["its repeat", "the sweep", "a repair"])
def test_insert_whose_number_a_commit_round_the_server_took_is_run_again(
    table: Server, monkeypatch: pytest.MonkeyPatch, found_by: str
) -> None:
    ctx, record, pending = unfinished(table, monkeypatch)
    lance.write_dataset(ROWS, record.location, mode="append")
    assert (Path(record.location) / pending.manifest_path).exists()
    if found_by == "the sweep":
        finalize_pending(ctx, record.id)
    elif found_by == "a repair":
        repair(ctx, record, dry_run=False)
    else:
        assert recovered(ctx, "InsertIntoTable", ask(models.InsertIntoTableRequest, id="t"), noted(ctx)) is None
    assert noted(ctx).version is None
    assert recovered(ctx, "InsertIntoTable", ask(models.InsertIntoTableRequest, id="t"), noted(ctx)) is None
    assert insert(ctx, small(ROWS)).version == 3
    assert table.open("t").count_rows() == 9


@pytest.mark.parametrize("mode, rows", [("append", 6), ("overwrite", 3)])
@pytest.mark.parametrize("body", [small, Streamed])
def test_insert_recorded_and_not_finished_keeps_its_files_and_is_recognised(
    table: Server, monkeypatch: pytest.MonkeyPatch, body: Any, mode: str, rows: int
) -> None:
    ctx, _ = keyed(table)
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_faults", failpoints.parse("after_record=unavailable"))
        with pytest.raises(ServiceUnavailableError, match="not known"):
            insert(ctx, body(ROWS), mode=mode)
    record = ctx.store.describe_request("key")
    assert record is not None
    response = recovered(ctx, "InsertIntoTable", ask(models.InsertIntoTableRequest, id="t", mode=mode), record)
    assert response == models.InsertIntoTableResponse(version=2, num_inserted_rows=3)
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


def test_schema_metadata_that_was_replaced_is_recognised_whatever_came_after(table: Server) -> None:
    ctx, _ = keyed(table)
    request = ask(models.UpdateTableSchemaMetadataRequest, id="t", metadata={"by": "me"})
    response = update_table_schema_metadata(ctx, request)
    update_table_schema_metadata(
        table.ctx, ask(models.UpdateTableSchemaMetadataRequest, id="t", metadata={"by": "you"})
    )
    record = ctx.store.describe_request("key")
    assert record is not None
    assert recovered(ctx, "UpdateTableSchemaMetadata", request, record) == response
    assert response == models.UpdateTableSchemaMetadataResponse(metadata={"by": "me"})


def test_field_metadata_that_was_updated_is_recognised_whatever_came_after(table: Server) -> None:
    def request(by: str) -> models.UpdateFieldMetadataRequest:
        return ask(models.UpdateFieldMetadataRequest, id="t", updates=[{"path": "id", "metadata": {"by": by}}])

    ctx, _ = keyed(table)
    response = update_field_metadata(ctx, request("me"))
    update_field_metadata(table.ctx, request("you"))
    assert recovered(ctx, "UpdateFieldMetadata", request("me"), noted(ctx)) == response
    assert response == models.UpdateFieldMetadataResponse(version=2, fields={"id": {"by": "me"}})


def test_insert_whose_version_was_cleaned_up_since_is_recognised_without_its_count(table: Server) -> None:
    ctx, _ = keyed(table)
    insert(ctx, small(ROWS))
    insert(table.ctx, small(ROWS))
    table.open("t").cleanup_old_versions(older_than=timedelta(0))
    record = ctx.store.describe_request("key")
    assert record is not None
    request = ask(models.InsertIntoTableRequest, id="t")
    assert recovered(ctx, "InsertIntoTable", request, record) == models.InsertIntoTableResponse(version=2)
    deleted = recovered(ctx, "DeleteFromTable", ask(models.DeleteFromTableRequest, id="t", predicate="id = 1"), record)
    assert deleted == models.DeleteFromTableResponse(version=2)
    merging = ask(models.MergeInsertIntoTableRequest, id="t", on=["id"])
    assert recovered(ctx, "MergeInsertIntoTable", merging, record).num_inserted_rows is None


@pytest.mark.parametrize(
    "name, call, fields",
    [
        ("DropTable", drop_table, {"id": ["t"]}),
        ("DeregisterTable", deregister_table, {"id": ["t"]}),
        ("UndropTable", undrop_table, {"id": ["gone"]}),
        ("UndropNamespace", undrop_namespace, {"id": ["past"]}),
        ("RenameTable", rename_table, {"id": ["t"], "new_table_name": "u"}),
        ("CreateNamespace", create_namespace, {"id": ["a"], "mode": "Overwrite", "properties": {"é": "\x00"}}),
        ("DropNamespace", drop_namespace, {"id": ["a"]}),
        ("DropNamespace", drop_namespace, {"id": ["a"], "behavior": "Cascade"}),
        (
            "BatchCommitTables",
            batch_commit_tables,
            {"operations": [{"declare_table": {"id": ["v"]}}, {"deregister_table": {"id": ["t"]}}]},
        ),
    ],
)
def test_what_the_catalog_alone_fulfils_is_answered_again_and_not_done_again(
    table: Server, name: str, call: Any, fields: dict[str, Any]
) -> None:
    create_namespace(table.ctx, ask(models.CreateNamespaceRequest, id="a"))
    create_namespace(table.ctx, ask(models.CreateNamespaceRequest, id="past"))
    drop_namespace(table.ctx, ask(models.DropNamespaceRequest, id="past", behavior="Cascade"))
    create_table(table.ctx, ask(models.CreateTableRequest, id="gone"), small(ROWS))
    drop_table(table.ctx, ask(models.DropTableRequest, id="gone"))
    ctx, first = keyed(table)
    request = ask(getattr(models, f"{name}Request"), **fields)
    response = call(ctx, request)
    ctx.store.release_request(first.claim)  # the server is gone before it answers
    record, is_claimed = ctx.store.begin_request(NewRequest("key", "POST", None, "other", 60_000, 60_000))
    assert is_claimed and record.attempts == 2
    assert recovered(ctx, name, request, record) == response


@pytest.mark.parametrize("overtaken", [False, True])
def test_batch_that_was_recorded_and_not_finished_is_answered_with_its_versions(
    table: Server, monkeypatch: pytest.MonkeyPatch, overtaken: bool
) -> None:
    ctx, _ = keyed(table)
    table.declare("n", managed=True)
    location = Path(table.ctx.store.describe_table(("n",)).location)
    lance.write_dataset(ROWS, location / "draft")
    (location / "draft" / "data").rename(location / "data")
    (location / "_versions").mkdir()
    [written] = (location / "draft" / "_versions").glob("*.manifest")
    staged = location / "_versions" / f"{written.name}-staged"
    written.rename(staged)
    version = {"id": ["n"], "version": 1, "manifest_path": str(staged), "naming_scheme": "V2"}
    request = ask(models.BatchCommitTablesRequest, operations=[{"create_table_version": version}])
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_faults", failpoints.parse("after_record=unavailable"))
        with pytest.raises(ServiceUnavailableError):
            batch_commit_tables(ctx, request)
        with pytest.raises(ServiceUnavailableError):  # it is not to be heard of before it can be seen
            recovered(ctx, "BatchCommitTables", request, noted(ctx))
    if overtaken:
        lance.write_dataset(ROWS.slice(1), location)
        for _ in range(2):
            with pytest.raises(InternalError, match="except for version 1 of n"):
                recovered(ctx, "BatchCommitTables", request, noted(ctx))
        return
    response = recovered(ctx, "BatchCommitTables", request, noted(ctx))
    [result] = response.results
    assert (location / "_versions" / written.name).exists()
    assert result.create_table_version.version.manifest_path == str(location / "_versions" / written.name).lstrip("/")
    assert describe_transaction(ctx, ask(models.DescribeTransactionRequest, id=response.transaction_id)).status


def test_drop_whose_repeat_was_begun_drops_nothing(table: Server) -> None:
    ctx, first = keyed(table)
    ctx.store.release_request(first.claim)
    ctx.store.begin_request(NewRequest("key", "POST", None, "other", 60_000, 60_000))
    with pytest.raises(ConcurrentModificationError):
        drop_table(ctx, ask(models.DropTableRequest, id="t"))
    assert table.open("t").count_rows() == 3


def test_answer_noted_a_day_ago_is_not_the_answer_to_a_new_request(table: Server) -> None:
    new = NewRequest("key", "POST", None, "me", 0, 0)
    record, _ = table.ctx.store.begin_request(new)
    table.ctx.store.record_response([record.claim], "{}")
    repeated, is_claimed = table.ctx.store.begin_request(new)
    assert is_claimed and repeated.attempts == 1 and repeated.body is None


def test_insert_struck_before_its_record_is_not_recognised(table: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx, record = keyed(table)
    with monkeypatch.context() as patch:
        patch.setattr(failpoints, "_faults", failpoints.parse("before_record=raise"))
        with pytest.raises(FaultError):
            insert(ctx, small(ROWS))
    request = ctx.store.describe_request(record.id)
    assert request is not None
    assert recovered(ctx, "InsertIntoTable", ask(models.InsertIntoTableRequest, id="t"), request) is None


def test_insert_whose_claim_was_taken_over_commits_nothing(table: Server) -> None:
    ctx, record = keyed(table)
    ctx.store.release_request(record.claim)
    claimed, is_claimed = ctx.store.begin_request(NewRequest("key", "POST", None, "other", 60_000, 60_000))
    assert is_claimed and claimed.attempts == 2
    with pytest.raises(RequestLeaseLostError, match="nothing was changed"):  # at once: a retry could not commit either
        insert(ctx, small(ROWS))
    assert table.open("t").version == 1


def test_recovered_of_a_dropped_table_is_nothing(table: Server) -> None:
    ctx, record = keyed(table)
    insert(ctx, small(ROWS))
    table.ctx.store.remove_table(("t",), delete_folder=True)
    request = ctx.store.describe_request(record.id)
    assert request is not None and request.version == 2
    assert recovered(ctx, "InsertIntoTable", ask(models.InsertIntoTableRequest, id="t"), request) is None


def test_insert_whose_table_cannot_be_opened_for_its_size_is_not_run_again(table: Server) -> None:
    ctx, _ = keyed(table)
    assert insert(ctx, small(ROWS)).version == 2
    folder = Path(ctx.store.describe_table(("t",)).location) / "_versions"
    table.services.commit_log.flush()
    large = folder / f"{2**64 - 1 - 3}.manifest"
    with large.open("wb") as file:
        file.truncate(ctx.settings.max_manifest_bytes + 1)
    with pytest.raises(InvalidInputError, match="max_manifest_bytes"):
        recovered(ctx, "InsertIntoTable", ask(models.InsertIntoTableRequest, id="t"), noted(ctx))
    large.unlink()
    response = recovered(ctx, "InsertIntoTable", ask(models.InsertIntoTableRequest, id="t"), noted(ctx))
    assert response == models.InsertIntoTableResponse(version=2, num_inserted_rows=3)
