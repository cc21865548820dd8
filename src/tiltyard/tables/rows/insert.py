"""Insert rows: append them in one commit with concurrent appends, or overwrite the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lance_namespace.errors import ConcurrentModificationError, TableAlreadyExistsError

from tiltyard.access.needs import on_table
from tiltyard.model.modes import InsertMode, parse_mode
from tiltyard.model.operations import PendingResponse, operation
from tiltyard.model.principals import Privilege
from tiltyard.model.quotas import ROWS_AND_FILES
from tiltyard.model.schemas.column_names import check_new_columns
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.writing import (
    commit_overwrite,
    count_rows,
    discard,
    discard_after_error,
    fragments_of,
    has_schema,
    write_first_version,
    write_overwrite,
    write_rows,
)
from tiltyard.tables.classification.followed_columns import follow_columns
from tiltyard.tables.contracts.incoming_rows import AppendContract, IncomingContract, parking, taken, with_found
from tiltyard.tables.rows.append_queue import append_fragments, append_rows
from tiltyard.tables.rows.arrow_input import IncomingRows
from tiltyard.tables.rows.conflict_retry import ConflictRetry
from tiltyard.tables.rows.first_version import (
    add_first_columns,
    create_first_version,
    publish_first_version,
    standardize_map_names,
)
from tiltyard.tables.rows.multipart import insert_part
from tiltyard.tables.rows.schema_adapter import SchemaAdapter
from tiltyard.tables.rows.write_target import WriteTarget

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

    from tiltyard.context import Context
    from tiltyard.model.operations import ArrowBody
    from tiltyard.tables.commits.recovery import RecoveredCommit


def start_append(ctx: Context, request: models.InsertIntoTableRequest, data: ArrowBody) -> PendingResponse | None:
    """Queue a small append, to be committed with concurrent ones, so that no thread waits for it.

    None for every request that is not an append of a small body. Raises as `insert_into_table` does.
    """
    if data.size is None or request.upload_id or _mode(request) is not InsertMode.APPEND:
        return None
    target = WriteTarget.named_by(ctx, request)
    incoming = IncomingRows.with_columns(data)
    rows = incoming.table()
    contract = None if target.record.contract is None else AppendContract()
    return PendingResponse(
        append_rows(target, rows, contract), lambda version: _response(WrittenRows.of_append(version, rows, contract))
    )


def _response(written: WrittenRows) -> models.InsertIntoTableResponse:
    return models.InsertIntoTableResponse(
        version=written.version, num_inserted_rows=written.rows, num_rejected_rows=written.rejected
    )


def recover_insert(
    ctx: Context, request: models.InsertIntoTableRequest, commit: RecoveredCommit
) -> models.InsertIntoTableResponse:
    """Return the response of an interrupted insert from its commit."""
    return models.InsertIntoTableResponse(version=commit.version, num_inserted_rows=commit.rows)


@operation(
    needs=on_table(Privilege.WRITE),
    begin=start_append,
    stores=ROWS_AND_FILES,
    doubles=True,
    retried_with_new_ids=True,
    recovered_by=recover_insert,
)
def insert_into_table(
    ctx: Context, request: models.InsertIntoTableRequest, data: ArrowBody
) -> models.InsertIntoTableResponse:
    """Append rows to a table, or overwrite its rows and schema; a declared table gets its first version.

    With `upload_id` the rows are a part of a multipart write, and visible once that is completed.
    Raises NamespaceNotFoundError, TableNotFoundError, TableBranchNotFoundError, TableSchemaValidationError,
    InvalidInputError, ConcurrentModificationError, TransactionNotFoundError (no such multipart write).
    """
    if pending := start_append(ctx, request, data):
        response: models.InsertIntoTableResponse = pending.result()
        return response
    target = WriteTarget.named_by(ctx, request)
    incoming = IncomingRows.with_columns(data)
    with target.cleanup_on_error():
        if request.upload_id:
            part = insert_part(target, request.upload_id, request.upload_part_id, _mode(request), incoming)
            return models.InsertIntoTableResponse(num_inserted_rows=part[0], num_rejected_rows=part[1])
        return _response((append if _mode(request) is InsertMode.APPEND else overwrite)(target, incoming))


def _mode(request: models.InsertIntoTableRequest) -> InsertMode:
    return parse_mode(InsertMode, request.mode, InsertMode.APPEND)


class WrittenRows(NamedTuple):
    """The version that has written rows, and their number; how many its contract rejected, None without a contract."""

    version: int
    rows: int
    rejected: int | None = None

    @classmethod
    def of_append(cls, version: int, rows: pa.Table, contract: AppendContract | None) -> WrittenRows:
        """Return the result of an append of rows in memory."""
        if contract is None:
            return cls(version, rows.num_rows)
        return cls(version, rows.num_rows - contract.rejected, contract.rejected)


def append(target: WriteTarget, incoming: IncomingRows) -> WrittenRows:
    """Append rows to a table."""
    if incoming.is_small:
        rows = incoming.table()
        in_memory = None if target.record.contract is None else AppendContract()
        return WrittenRows.of_append(append_rows(target, rows, in_memory).result(), rows, in_memory)
    dataset = target.dataset_if_written()
    if dataset is None:
        if created := _stream_first_version(target, incoming):
            return created
        dataset = target.dataset()
    if not dataset.schema.names:
        dataset = add_first_columns(target, incoming.schema)
    dataset = standardize_map_names(target, dataset)
    adapter = SchemaAdapter(incoming.schema, dataset.schema)
    contract = IncomingContract.of(target, adapter.schema, dataset.schema)
    with parking(contract):
        with incoming.errors(dataset):
            fragments = write_rows(
                target.ctx.storage, incoming.reader(adapter, contract=contract), dataset, target.base
            )
        target = with_found(target, contract)
        rejected = None if contract is None else contract.found.rejected
        if not fragments:
            return WrittenRows(target.mark_written(dataset.version, is_new=False), 0, rejected)
        version = append_fragments(target, dataset, fragments, dataset.version, contract)
    return WrittenRows(version, count_rows(fragments), rejected)


def _stream_first_version(target: WriteTarget, incoming: IncomingRows) -> WrittenRows | None:
    """Write a streaming body as the first version of a declared table; None if there was a version already."""
    storage, location = target.ctx.storage, target.location
    check_new_columns(incoming.schema)
    try:
        with incoming.errors():
            first = write_first_version(storage, location, incoming.reader(), {})
    except TableAlreadyExistsError:
        return None
    fragments = fragments_of(first)
    if publish_first_version(target, first):
        return WrittenRows(1, count_rows(fragments))
    dataset = target.dataset()
    if has_schema(dataset, incoming.schema) and fragments:
        return WrittenRows(append_fragments(target, dataset, fragments, dataset.version), count_rows(fragments))
    discard(storage, location, fragments)
    raise ConcurrentModificationError(
        "A concurrent request wrote the first rows of this table, with other columns: describe it, then insert again."
    )


def overwrite(target: WriteTarget, incoming: IncomingRows) -> WrittenRows:
    """Replace a table's rows and schema by a new version."""
    check_new_columns(incoming.schema)
    rows = incoming.table() if incoming.is_small else None
    dataset = target.dataset_if_written()
    if dataset is None:
        if rows is None:
            created = _stream_first_version(target, incoming)
        else:
            with incoming.errors():
                created = WrittenRows(1, rows.num_rows) if create_first_version(target, rows) else None
        if created:
            return created
        dataset = target.dataset()
    contract = IncomingContract.of(target, incoming.schema, dataset.schema)
    with parking(contract):
        with incoming.errors(dataset):
            source = incoming.reader(contract=contract) if rows is None else taken(contract, rows)
            replacement = write_overwrite(target.ctx.storage, source, dataset, target.base)
        target = with_found(target, contract)
        try:
            committed = _commit_replacement(target, dataset, replacement)
        except BaseException as error:
            discard_after_error(target.ctx.storage, target.base, fragments_of(replacement), error)
            raise
        version = target.finish_commit(committed)
    if target.branch.is_main:
        follow_columns(target.ctx, target.record, committed, is_overwritten=True)
    rejected = None if contract is None else contract.found.rejected
    return WrittenRows(version, count_rows(fragments_of(replacement)), rejected)


def _commit_replacement(
    target: WriteTarget, dataset: lance.LanceDataset, replacement: lance.Transaction
) -> lance.LanceDataset:
    """Commit written rows in place of all others; retry after conflicts with concurrent commits."""
    retry = ConflictRetry(target.ctx.settings.conflict_timeout)
    while True:
        try:
            with lance_errors(dataset):
                latest = target.dataset_to_commit()
            with lance_errors(latest):
                rows = count_rows(fragments_of(replacement))
                return commit_overwrite(latest, replacement, target.transaction_properties(rows))
        except ConcurrentModificationError as error:
            retry.wait_or_raise(error)
