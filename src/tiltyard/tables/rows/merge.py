"""Merge rows into a table by key columns (upsert): update matched rows, insert new ones, delete unmatched ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.access.needs import on_table
from tiltyard.model.operations import operation
from tiltyard.model.principals import Privilege
from tiltyard.model.quotas import ROWS_AND_FILES
from tiltyard.model.schemas.nested_types import map_renamings
from tiltyard.model.spec import models
from tiltyard.storage.errors import column_not_found, refusal
from tiltyard.storage.locks import LockKind
from tiltyard.tables.contracts.incoming_rows import IncomingContract, parking, with_found
from tiltyard.tables.keys.errors import DuplicateKeyError
from tiltyard.tables.lance_sql.expressions import check_expression
from tiltyard.tables.opening import open_to_commit
from tiltyard.tables.rows.arrow_input import IncomingRows
from tiltyard.tables.rows.conflict_retry import ConflictRetry
from tiltyard.tables.rows.first_version import standardize_map_names
from tiltyard.tables.rows.insert import append
from tiltyard.tables.rows.row_changes import CommittedChange, change_rows
from tiltyard.tables.rows.rte import check_upsert
from tiltyard.tables.rows.schema_adapter import SchemaAdapter
from tiltyard.tables.rows.write_target import WriteTarget

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.model.operations import ArrowBody
    from tiltyard.tables.commits.recovery import RecoveredCommit

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]*)\s*")
_MAX_TIMEOUT_SECONDS = 24 * 3600.0
_MAX_DURATION_LENGTH = 100
"""Characters of a timeout: matching the pattern takes quadratic time."""


@dataclass(frozen=True, slots=True)
class MergeSpec:
    """The merge that a request specifies; `seconds` is its timeout."""

    on: tuple[str, ...]
    update: bool
    update_filter: str | None
    insert: bool
    delete: bool
    delete_filter: str | None
    use_index: bool
    seconds: float


def recover_merge(
    ctx: Context, request: models.MergeInsertIntoTableRequest, commit: RecoveredCommit
) -> models.MergeInsertIntoTableResponse:
    """Return the response of an interrupted merge from its commit.

    Of a merge that both inserts and deletes, only the difference is known by now.
    """
    if commit.rows is not None:  # into a table without data: an append
        inserted = written = commit.rows
        deleted = 0
    elif (growth := commit.row_growth) is None:
        return models.MergeInsertIntoTableResponse(version=commit.version, num_attempts=1)
    else:
        inserted, deleted, written = max(growth, 0), max(-growth, 0), commit.rewritten_rows
    return models.MergeInsertIntoTableResponse(
        version=commit.version,
        num_inserted_rows=inserted,
        num_updated_rows=max(written - inserted, 0),
        num_deleted_rows=deleted,
        num_attempts=1,
        num_rows=max(written, inserted),
    )


@operation(
    needs=on_table(Privilege.READ | Privilege.WRITE),
    stores=ROWS_AND_FILES,
    retried_with_new_ids=True,
    recovered_by=recover_merge,
)
def merge_insert_into_table(
    ctx: Context, request: models.MergeInsertIntoTableRequest, data: ArrowBody
) -> models.MergeInsertIntoTableResponse:
    """Merge rows into a table by the columns `on`.

    Merges of one table wait for each other, so that a key is inserted once. Raises NamespaceNotFoundError,
    TableNotFoundError, TableBranchNotFoundError, TableColumnNotFoundError, TableSchemaValidationError,
    InvalidInputError (nothing to do, a bad filter or timeout, a key twice), ConcurrentModificationError,
    ServiceUnavailableError (the request timed out, and nothing is written).
    """
    spec = _parse(request, ctx.settings.conflict_timeout)
    target = WriteTarget.named_by(ctx, request)
    incoming = IncomingRows.with_columns(data)
    _check_key_columns(spec.on, incoming.schema.names, "These rows have")
    if request.use_rte or request.use_lsm:
        check_upsert(ctx, request, target.dataset().schema)
    with target.cleanup_on_error(), ctx.storage.locks.hold(LockKind.CHANGES, target.key, spec.seconds):
        ctx.check_deadline()
        if target.record.declared and target.dataset_if_written() is None:
            return _merge_into_declared(target, incoming, spec)
        return _merge_with_retry(target, incoming, spec)


def _parse(request: models.MergeInsertIntoTableRequest, default_seconds: float) -> MergeSpec:
    """Parse and check a request. Raises InvalidInputError."""
    names: Any = request.on
    on = (names,) if isinstance(names, str) else tuple(names or ())
    if not on or not all(on):
        raise InvalidInputError("Name the key columns with `on`.")
    if len(set(on)) < len(on):
        raise InvalidInputError("A column is named twice in `on`: once is enough.")
    update_filter = _filter(request.when_matched_update_all_filt, "when_matched_update_all_filt")
    delete_filter = _filter(request.when_not_matched_by_source_delete_filt, "when_not_matched_by_source_delete_filt")
    spec = MergeSpec(
        on=on,
        update=bool(request.when_matched_update_all),
        update_filter=update_filter,
        insert=bool(request.when_not_matched_insert_all),
        delete=bool(request.when_not_matched_by_source_delete),
        delete_filter=delete_filter,
        use_index=request.use_index is not False,
        seconds=_parse_duration(request.timeout) if request.timeout else default_seconds,
    )
    if update_filter and not spec.update:
        raise InvalidInputError("when_matched_update_all_filt needs when_matched_update_all=true.")
    if delete_filter and not spec.delete:
        raise InvalidInputError("when_not_matched_by_source_delete_filt needs when_not_matched_by_source_delete=true.")
    if not (spec.update or spec.insert or spec.delete):
        raise InvalidInputError("This merge changes nothing: set when_matched_update_all or one of the others.")
    return spec


def _filter(text: str | None, label: str) -> str | None:
    return check_expression(text, label) if text else None


def _parse_duration(text: str) -> float:
    """Return the seconds of a duration such as 30s, 5m or 500ms; a number without unit is seconds.

    Raises InvalidInputError.
    """
    total, end = 0.0, 0
    if len(text) > _MAX_DURATION_LENGTH:
        raise InvalidInputError("The timeout is not a duration of up to a day: write 30s, 5m or 500ms.")
    for part in _DURATION.finditer(text.lower()):
        if part.start() != end or part[2] not in _UNITS:
            break
        total, end = total + float(part[1]) * _UNITS[part[2]], part.end()
    if not text or end != len(text) or not 0 < total <= _MAX_TIMEOUT_SECONDS:
        raise InvalidInputError(f"The timeout '{text}' is not a duration of up to a day: write 30s, 5m or 500ms.")
    return total


def _check_key_columns(on: Sequence[str], columns: Sequence[str], subject: str) -> None:
    """Raise TableColumnNotFoundError for a key column that is not in `columns`; `subject` begins the hint."""
    for name in on:
        if name not in columns:
            error = column_not_found(name, columns)
            raise type(error)(str(error).replace("This table has", subject))


def _merge_into_declared(
    target: WriteTarget, incoming: IncomingRows, spec: MergeSpec
) -> models.MergeInsertIntoTableResponse:
    """Insert all rows into a declared table.

    Raises InvalidTableStateError for a merge without inserts: the table has no data yet.
    """
    if not spec.insert:
        target.dataset()  # raises InvalidTableStateError
    written = append(target, incoming)
    return models.MergeInsertIntoTableResponse(
        version=written.version,
        num_inserted_rows=written.rows,
        num_updated_rows=0,
        num_deleted_rows=0,
        num_attempts=1,
        num_rows=written.rows,
        num_rejected_rows=written.rejected,
    )


def _merge_with_retry(
    target: WriteTarget, incoming: IncomingRows, spec: MergeSpec
) -> models.MergeInsertIntoTableResponse:
    """Execute the merge; retry after conflicts until its timeout, unless the body streams and cannot be read again."""
    contract = _contract(target, incoming, spec)
    with parking(contract):
        rows = incoming.table() if incoming.is_small else None
        if rows is not None and contract is not None:
            schema: pa.Schema = target.dataset().schema
            rows = contract.take(_adapter(spec, incoming.schema, schema).adapt_table(rows))
            target = with_found(target, contract)
        return _merge_checked(target, incoming, rows, spec, contract)


def _contract(target: WriteTarget, incoming: IncomingRows, spec: MergeSpec) -> IncomingContract | None:
    """Return what rejects rows of a merge by its table's contract, before they are merged; None where none are.

    A merge that deletes rows which the source has not would delete those of rejected rows, so it rejects none: it is
    refused as a whole where the contract fails. So is one whose rows stream in and are not in memory.
    """
    if target.record.contract is None or spec.delete or not incoming.is_small:
        return None
    schema: pa.Schema = target.dataset().schema
    contract = IncomingContract.of(target, _adapter(spec, incoming.schema, schema).schema, schema, only_rejects=True)
    return contract if contract is not None and contract.checks else None


def _merge_checked(
    target: WriteTarget,
    incoming: IncomingRows,
    rows: pa.Table | None,
    spec: MergeSpec,
    contract: IncomingContract | None,
) -> models.MergeInsertIntoTableResponse:
    rejected = None if contract is None else contract.found.rejected
    retry = ConflictRetry(spec.seconds)
    if rows is not None and (change := _merge_uncommitted(target, incoming, rows, spec)):
        return _response(change.version, change.result, retry.attempts, rejected)
    while True:
        dataset = open_to_commit(target.ctx, target.record, target.branch)
        if standardize_map_names(target, dataset) is not dataset:
            dataset = open_to_commit(target.ctx, target.record, target.branch)
        adapter = _adapter(spec, incoming.schema if rows is None else rows.schema, dataset.schema)
        with incoming.errors(dataset):
            source = incoming.reader(adapter, target.ctx.check_deadline) if rows is None else adapter.adapt_table(rows)
            base = dataset.version
            try:
                target.ctx.check_deadline()
                stats = _builder(dataset, spec, retry.remaining_seconds, target.retries).execute(source)
                break
            except Exception as error:
                if rows is None:
                    raise
                retry.wait_or_raise(error, is_overtaken=_is_overtaken(target, dataset))
    version = target.mark_written(dataset.version, is_new=dataset.version != base)
    return _response(version, stats, retry.attempts, rejected)


def _merge_uncommitted(
    target: WriteTarget, incoming: IncomingRows, rows: pa.Table, spec: MergeSpec
) -> CommittedChange[dict[str, int]] | None:
    """Execute the merge without Lance's commit, and commit it in fewer round trips; None if Lance has to."""

    def write(dataset: lance.LanceDataset) -> tuple[lance.Transaction, dict[str, int]] | None:
        if map_renamings(dataset):
            return None
        adapter = _adapter(spec, rows.schema, dataset.schema)
        with incoming.errors(dataset):
            source = adapter.adapt_table(rows)
            target.ctx.check_deadline()
            transaction, stats = _builder(dataset, spec, spec.seconds, 0).execute_uncommitted(source)
        return transaction, stats

    return change_rows(target, write, spec.seconds)


def _response(
    version: int, stats: Mapping[str, int], attempts: int, rejected: int | None
) -> models.MergeInsertIntoTableResponse:
    inserted, updated = stats["num_inserted_rows"], stats["num_updated_rows"]
    return models.MergeInsertIntoTableResponse(
        version=version,
        num_inserted_rows=inserted,
        num_updated_rows=updated,
        num_deleted_rows=stats["num_deleted_rows"],
        num_attempts=attempts,
        num_rows=inserted + updated,
        num_rejected_rows=rejected,
    )


def _is_overtaken(target: WriteTarget, dataset: lance.LanceDataset) -> bool:
    """Return whether a merge was refused for its table's key, and another commit came after the version that it read.

    Lance adds a merge's new rows to what was appended meanwhile. If that has a key of theirs, the merge finds it when
    it runs again, and updates the row or leaves it.
    """
    if not isinstance(refusal(dataset), DuplicateKeyError):
        return False
    latest = target.ctx.store.latest_version(target.record.id, target.branch.key)
    return latest is not None and latest.version > dataset.version


def _adapter(spec: MergeSpec, source: pa.Schema, schema: pa.Schema) -> SchemaAdapter:
    """Return the adapter to the table's schema, or to a part of it: Lance then merges only the columns of the source.

    Raises TableColumnNotFoundError, TableSchemaValidationError.
    """
    _check_key_columns(spec.on, schema.names, "This table has")
    partial_schema = pa.schema([field for field in schema if field.name in source.names], metadata=schema.metadata)
    required = [field.name for field in schema if not field.nullable and field.name not in source.names]
    return SchemaAdapter(source, schema if spec.insert and required else partial_schema)


def _builder(dataset: lance.LanceDataset, spec: MergeSpec, seconds: float, retries: int) -> Any:
    builder = dataset.merge_insert(list(spec.on))
    if spec.update:
        builder = builder.when_matched_update_all(spec.update_filter)
    if spec.insert:
        builder = builder.when_not_matched_insert_all()
    if spec.delete:
        builder = builder.when_not_matched_by_source_delete(spec.delete_filter)
    return (
        builder.use_index(spec.use_index)
        .conflict_retries(retries)
        .retry_timeout(timedelta(seconds=max(seconds, 0.001)))
    )
