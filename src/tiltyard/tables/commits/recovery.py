"""What a request with a key did before its server went away: the answer it would have got, made from its commit.

What the catalog alone fulfils is kept there with its answer. On a managed table the commit's record names the request,
whatever kind of commit it is; elsewhere Lance's own transaction does, for appends and overwrites
(`docs/exactly-once.md` has the table).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import lance
import msgspec
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    NamespaceNotFoundError,
    ServiceUnavailableError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableNotFoundError,
    TableVersionNotFoundError,
)

from tiltyard.model.ids import MAIN_BRANCH
from tiltyard.model.modes import CreateMode, parse_mode
from tiltyard.model.spec import models
from tiltyard.model.table_history import read_transaction, read_transactions
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.files import FileTooLargeError
from tiltyard.tables.commits.batch_commit import told_again
from tiltyard.tables.commits.finalizing import finalize_pending
from tiltyard.tables.commits.idempotency_marks import marked_rows
from tiltyard.tables.opening import find_table
from tiltyard.tables.rows.create import create_response
from tiltyard.tables.rows.write_target import WriteTarget
from tiltyard.tables.schema.columns import fills_added, fills_altered, metadata_of, queue_fills
from tiltyard.tables.schema.computed_columns import own_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tiltyard.context import Context
    from tiltyard.store import RequestRecord, TableRecord

GONE = (
    InvalidTableStateError,
    NamespaceNotFoundError,
    TableBranchNotFoundError,
    TableNotFoundError,
    TableVersionNotFoundError,
)
RECENT = 1000
"""So many of a table's last commits are looked through for one that the catalog knows nothing of."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A version that a request made; `rows` is what it brought, as far as the transaction says.

    Of one that was cleaned up since there is no `dataset`, and nobody knows its counts.
    """

    target: WriteTarget
    version: int
    dataset: lance.LanceDataset | None
    transaction: lance.Transaction | None
    rows: int | None

    @property
    def written(self) -> int:
        """How many rows an update wrote anew."""
        operation = self.transaction.operation if self.transaction else None
        if not isinstance(operation, lance.LanceOperation.Update):
            return 0
        return sum(fragment.physical_rows for fragment in operation.new_fragments)

    @property
    def growth(self) -> int | None:
        """By how many rows the table grew; None where it or the version before is gone."""
        if self.dataset is None:
            return None
        branch = None if self.target.branch in (None, MAIN_BRANCH) else self.target.branch
        try:
            with lance_errors(self.dataset):
                before = self.dataset.checkout_version((branch, self.version - 1))
                return int(self.dataset.count_rows() - before.count_rows())
        except TableVersionNotFoundError:
            return None


def recovered(ctx: Context, operation: str, request: Any, record: RequestRecord) -> Any | None:
    """The response of an interrupted request that has committed; None if it has not, or it is the same to run again.

    Raises ServiceUnavailableError and what else keeps a table from being looked at.
    """
    if record.body is not None:
        noted = msgspec.json.decode(record.body, type=getattr(models, f"{operation}Response"))
        return told_again(ctx, request, noted) if operation == "BatchCommitTables" else noted
    answer = _ANSWERS.get(operation)
    if answer is None:
        return None
    commit = _recorded(ctx, record) if record.version is not None else _marked(ctx, request, record)
    return None if commit is None else answer(ctx, request, commit)


def _recorded(ctx: Context, record: RequestRecord) -> Commit | None:
    """The commit that the catalog has noted, unless it was taken back or the table is gone."""
    assert record.table_id is not None
    assert record.version is not None
    try:
        table = ctx.store.table_by_id(record.table_id)
        finalize_pending(ctx, table.id)
        noted = ctx.store.describe_request(record.id)
        if noted is None or noted.version is None:
            return None  # taken back just now: a commit round the server has its number
        _check_in_place(ctx, table, record)
        target = WriteTarget(ctx, table, record.branch or None)
        latest = target.exclusive_dataset()
        ctx.storage.manifests.check_size(table.location, target.branch, record.version)
    except FileTooLargeError:
        raise  # nobody can tell whether it has committed
    except (*GONE, InvalidInputError):
        return None
    try:
        with lance_errors(latest):
            at = latest.checkout_version((target.branch, record.version))
            transaction = read_transaction(latest, record.version)
    except TableVersionNotFoundError:
        return Commit(target, record.version, None, None, None) if latest.version > record.version else None
    except (*GONE, InvalidInputError):
        return None
    return Commit(target, record.version, at, transaction, marked_rows(transaction, record.id))


def _check_in_place(ctx: Context, table: TableRecord, record: RequestRecord) -> None:
    """Raise ServiceUnavailableError for a commit whose manifest is not there yet: the table does not show it."""
    latest = ctx.store.latest_version(table.id, record.branch or "")
    if latest is None or latest.version != record.version or latest.finalized:
        return  # what others have committed since was made from it
    if ctx.storage.stat(table.location, latest.manifest_path) is None:
        raise ServiceUnavailableError(
            f"Version {latest.version} of {table.name} is committed by this request, and its manifest is not in its "
            "place yet: try again later."
        )


def _marked(ctx: Context, request: Any, record: RequestRecord) -> Commit | None:
    """The commit whose transaction names the request."""
    try:
        target = WriteTarget(ctx, find_table(ctx, request.id), getattr(request, "branch", None))
        latest = target.exclusive_dataset()
    except GONE:
        return None
    ctx.storage.manifests.check_history(target.location, target.branch)
    with lance_errors(latest):
        for version, transaction in read_transactions(latest, int(latest.version) - RECENT):
            if (rows := marked_rows(transaction, record.id)) is not None:
                return Commit(target, version, latest, transaction, rows)
    return None


def _inserted(ctx: Context, request: models.InsertIntoTableRequest, commit: Commit) -> models.InsertIntoTableResponse:
    return models.InsertIntoTableResponse(version=commit.version, num_inserted_rows=commit.rows)


def _merged(
    ctx: Context, request: models.MergeInsertIntoTableRequest, commit: Commit
) -> models.MergeInsertIntoTableResponse:
    """Of a merge that both inserts and deletes, only the difference is known by now."""
    if commit.rows is not None:  # into a table without data: an append
        inserted = written = commit.rows
        deleted = 0
    elif (growth := commit.growth) is None:
        return models.MergeInsertIntoTableResponse(version=commit.version, num_attempts=1)
    else:
        inserted, deleted, written = max(growth, 0), max(-growth, 0), commit.written
    return models.MergeInsertIntoTableResponse(
        version=commit.version,
        num_inserted_rows=inserted,
        num_updated_rows=max(written - inserted, 0),
        num_deleted_rows=deleted,
        num_attempts=1,
        num_rows=max(written, inserted),
    )


def _updated(ctx: Context, request: models.UpdateTableRequest, commit: Commit) -> models.UpdateTableResponse:
    """The properties come after the commit, so they may be missing."""
    table = commit.target.record
    if request.properties:
        table = ctx.store.set_table_properties(table.id, table.properties | request.properties)
    return models.UpdateTableResponse(updated_rows=commit.written, version=commit.version, properties=table.properties)


def _deleted(ctx: Context, request: models.DeleteFromTableRequest, commit: Commit) -> models.DeleteFromTableResponse:
    growth = commit.growth
    deleted = None if growth is None else max(-growth, 0)
    return models.DeleteFromTableResponse(version=commit.version, num_deleted_rows=deleted)


def _created(ctx: Context, request: models.CreateTableRequest, commit: Commit) -> models.CreateTableResponse:
    """What comes after the commit may be missing: that the table has data, and its properties."""
    table = commit.target.record
    if table.declared:
        table = ctx.store.mark_written(table.id)
    if (
        request.properties is not None
        or parse_mode(CreateMode, request.mode, CreateMode.CREATE) is CreateMode.OVERWRITE
    ):
        table = ctx.store.set_table_properties(table.id, own_properties(request.properties, table.properties))
    return create_response(ctx, table, commit.version)


def _restored(ctx: Context, request: models.RestoreTableRequest, commit: Commit) -> models.RestoreTableResponse:
    return models.RestoreTableResponse()


def _metadata_replaced(
    ctx: Context, request: models.UpdateTableSchemaMetadataRequest, commit: Commit
) -> models.UpdateTableSchemaMetadataResponse:
    return models.UpdateTableSchemaMetadataResponse(metadata=dict(request.metadata or {}))


def _field_metadata_updated(
    ctx: Context, request: models.UpdateFieldMetadataRequest, commit: Commit
) -> models.UpdateFieldMetadataResponse:
    fields = metadata_of(commit.dataset, request) if commit.dataset else {}
    return models.UpdateFieldMetadataResponse(version=commit.version, fields=fields)


def _columns_added(
    ctx: Context, request: models.AlterTableAddColumnsRequest, commit: Commit
) -> models.AlterTableAddColumnsResponse:
    _fill(ctx, request.id, fills_added(request), commit)
    return models.AlterTableAddColumnsResponse(version=commit.version)


def _columns_altered(
    ctx: Context, request: models.AlterTableAlterColumnsRequest, commit: Commit
) -> models.AlterTableAlterColumnsResponse:
    _fill(ctx, request.id, fills_altered(request), commit)
    return models.AlterTableAlterColumnsResponse(version=commit.version)


def _fill(ctx: Context, names: Sequence[str] | None, columns: Sequence[str], commit: Commit) -> None:
    """The backfills come after the commit, so they may be missing; of two of one column, the second finds it filled.

    A table or a column that is gone by now needs none.
    """
    for column in columns:
        with suppress(*GONE, TableColumnNotFoundError):
            if find_table(ctx, names).id == commit.target.record.id:
                queue_fills(ctx, names, [column])


def _columns_dropped(ctx: Context, request: Any, commit: Commit) -> models.AlterTableDropColumnsResponse:
    return models.AlterTableDropColumnsResponse(version=commit.version)


_ANSWERS: Mapping[str, Callable[[Context, Any, Commit], Any]] = {
    "InsertIntoTable": _inserted,
    "MergeInsertIntoTable": _merged,
    "UpdateTable": _updated,
    "DeleteFromTable": _deleted,
    "CreateTable": _created,
    "RestoreTable": _restored,
    "UpdateTableSchemaMetadata": _metadata_replaced,
    "UpdateFieldMetadata": _field_metadata_updated,
    "AlterTableAddColumns": _columns_added,
    "AlterTableAlterColumns": _columns_altered,
    "AlterTableDropColumns": _columns_dropped,
}
"""Operations that must not run twice; of all others a second run changes nothing, or is refused."""
