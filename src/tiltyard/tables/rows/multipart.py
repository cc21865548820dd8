"""Multipart writes: write each part as it arrives, commit all parts as one version.

lancedb's remote client uploads large tables this way. The catalog records the parts that have arrived, so that any
server can complete the write, and a part that is sent twice counts once.
"""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata
from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    TableAlreadyExistsError,
    TransactionNotFoundError,
)
from msgspec import structs

from tiltyard.access.needs import on_table
from tiltyard.change_feed.table_history import read_transactions
from tiltyard.contracts.checked_rows import CheckedRows
from tiltyard.model.columns.lineage import ColumnInput, ColumnOrigin, Derivation
from tiltyard.model.lineage import CommitLineage, JobLineage, LineageSource
from tiltyard.model.modes import InsertMode, parse_mode
from tiltyard.model.operations import operation
from tiltyard.model.principals import Privilege
from tiltyard.model.quotas import ROWS_AND_FILES
from tiltyard.model.schemas.column_names import check_new_columns
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors, may_have_committed
from tiltyard.storage.writing import (
    ColumnsChangedError,
    commit_append,
    commit_first_version,
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
from tiltyard.tables.contracts.incoming_rows import IncomingContract
from tiltyard.tables.rows.conflict_retry import ConflictRetry
from tiltyard.tables.rows.first_version import standardize_map_names
from tiltyard.tables.rows.schema_adapter import SchemaAdapter
from tiltyard.tables.rows.write_target import WriteTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context
    from tiltyard.store import UploadPart, UploadRecord
    from tiltyard.tables.rows.arrow_input import IncomingRows

UPLOAD = "tiltyard.upload"
_SEARCHED_VERSIONS = 100
_MAX_ABANDONED = 100
"""Uploads that one sweep aborts."""
MAX_SOURCE_COLUMNS = 10_000
"""Columns of which a client may say what they are made from."""
FIRST = "First"
"""The kind of parts that were written for a table without data; the other kinds are the modes of inserts."""


@operation(needs=on_table(Privilege.WRITE), stores=ROWS_AND_FILES)
def create_multipart_write(
    ctx: Context, request: models.CreateMultipartWriteRequest
) -> models.CreateMultipartWriteResponse:
    """Start a multipart write. Raises NamespaceNotFoundError, TableNotFoundError, TableBranchNotFoundError."""
    target = WriteTarget.named_by(ctx, request)
    target.dataset_if_written()
    upload = ctx.store.create_upload(target.record.id, target.branch.name, "")
    return models.CreateMultipartWriteResponse(upload_id=upload.id)


def insert_part(
    target: WriteTarget, upload_id: str, part_id: str | None, mode: InsertMode, incoming: IncomingRows
) -> tuple[int, int | None]:
    """Write one part of a multipart write, which becomes visible with the others.

    Returns its number of rows, and how many the table's contract has rejected, None without one.

    Raises TransactionNotFoundError, TableSchemaValidationError, InvalidInputError.
    """
    _get_upload(target, upload_id)
    dataset = target.dataset_if_written()
    kind: str = FIRST if dataset is None else mode.value
    base = target.base
    if dataset is None or mode is InsertMode.OVERWRITE:
        check_new_columns(incoming.schema)
    contract: IncomingContract | None = None
    with incoming.errors(dataset):
        if dataset is None:
            options: dict[str, Any] = {}
            fragments = fragments_of(
                write_first_version(target.ctx.storage, target.location, incoming.reader(), options)
            )
        elif mode is InsertMode.OVERWRITE:
            contract = IncomingContract.of(target, incoming.schema, dataset.schema)
            source = incoming.reader(contract=contract)
            fragments = fragments_of(write_overwrite(target.ctx.storage, source, dataset, base))
        else:
            dataset = standardize_map_names(target, dataset)
            adapter = SchemaAdapter(incoming.schema, dataset.schema)
            contract = IncomingContract.of(target, adapter.schema, dataset.schema)
            fragments = write_rows(target.ctx.storage, incoming.reader(adapter, contract=contract), dataset, base)
    part = {
        "kind": kind,
        "base": base,
        "schema": base64.b64encode(incoming.schema.serialize()).decode(),
        "version": dataset.version if dataset else 0,
        "fragments": [fragment.to_json() for fragment in fragments],
        "rejected": 0 if contract is None else contract.found.rejected,
    }
    if contract is not None:
        contract.park()
    try:
        stored, is_new = target.ctx.store.add_upload_part(
            upload_id, part_id or uuid4().hex, part, count_rows(fragments)
        )
    except BaseException as error:
        discard_after_error(target.ctx.storage, base, fragments, error)
        if contract is not None and not may_have_committed(error):
            contract.unpark()
        raise
    if not is_new:
        discard(target.ctx.storage, base, fragments)
        if contract is not None:
            contract.unpark()
    return stored.num_rows, None if contract is None else int(stored.fragments.get("rejected", 0))


@operation(needs=on_table(Privilege.WRITE), stores=ROWS_AND_FILES)
def complete_multipart_write(
    ctx: Context, request: models.CompleteMultipartWriteRequest
) -> models.CompleteMultipartWriteResponse:
    """Commit all parts as one version. Idempotent: a repeat returns the same version.

    The commit says that its rows were made from the path or URI `source`, and its columns from `source_columns` of
    that; RecordTableLineage indexes it.
    Raises TransactionNotFoundError, ConcurrentModificationError, InvalidInputError (parts of different kinds).
    """
    target = WriteTarget.named_by(ctx, request)
    lineage = _lineage_of(request)
    try:
        _get_upload(target, request.upload_id)
        parts = ctx.store.upload_parts(request.upload_id)
        _check_consistent(parts)
        ctx.store.delete_upload(request.upload_id)  # from here on no other request can complete it
    except TransactionNotFoundError:
        if version := _completed_version(target, request.upload_id):
            return models.CompleteMultipartWriteResponse(version=version)
        raise
    try:
        with target.cleanup_on_error():
            version = _commit(target, request.upload_id, parts, lineage)
    except BaseException as error:
        if not may_have_committed(error):
            _discard_parts(ctx, parts)
        raise
    return models.CompleteMultipartWriteResponse(
        version=version,
        num_inserted_rows=sum(part.num_rows for part in parts),
        num_rejected_rows=None if target.record.contract is None else _count_rejected(parts),
    )


@operation(needs=on_table(Privilege.WRITE))
def abort_multipart_write(
    ctx: Context, request: models.AbortMultipartWriteRequest
) -> models.AbortMultipartWriteResponse:
    """Abort a multipart write and delete its files. Raises TransactionNotFoundError."""
    target = WriteTarget.named_by(ctx, request)
    _get_upload(target, request.upload_id)
    _abort(ctx, request.upload_id)
    return models.AbortMultipartWriteResponse()


def abandon_stale_uploads(ctx: Context, older_than_ms: int) -> int:
    """Abort multipart writes that started long ago and were neither completed nor aborted; return their number."""
    stale = ctx.store.stale_uploads(ctx.clock() - older_than_ms, _MAX_ABANDONED)
    for upload in stale:
        try:
            _abort(ctx, upload.id)
        except TransactionNotFoundError:
            continue  # its client, or another server, has ended it meanwhile
    return len(stale)


def _abort(ctx: Context, upload_id: str) -> None:
    parts = ctx.store.upload_parts(upload_id)
    ctx.store.delete_upload(upload_id)
    _discard_parts(ctx, parts)


def _get_upload(target: WriteTarget, upload_id: str) -> UploadRecord:
    upload = target.ctx.store.describe_upload(upload_id)
    if upload.table_id != target.record.id or upload.branch != target.branch.name:
        raise TransactionNotFoundError("This multipart write is not one of this table and branch.")
    return upload


def _check_consistent(parts: Sequence[UploadPart]) -> None:
    if not parts:
        raise InvalidInputError("No part has arrived: insert with this upload_id first, or abort.")
    first = parts[0].fragments
    if any(part.fragments["kind"] != first["kind"] for part in parts):
        raise InvalidInputError("Some parts append and others overwrite: abort, and send them alike.")
    if first["kind"] != InsertMode.APPEND and any(part.fragments["schema"] != first["schema"] for part in parts):
        raise InvalidInputError("The parts have different schemas: abort, and send them alike.")


def _lineage_of(request: models.CompleteMultipartWriteRequest) -> CommitLineage | None:
    """Return what a client says that the rows are made from; None where it says nothing. Raises InvalidInputError."""
    if not request.source:
        if request.source_columns is not None:
            raise InvalidInputError("source_columns are those of a source: name it, or leave them out.")
        return None
    job = JobLineage("import", (LineageSource.of_uri(request.source),), why_unknown="its client did not say")
    if request.source_columns is None:
        return job.of_run(request.upload_id)
    if len(request.source_columns) > MAX_SOURCE_COLUMNS:
        raise InvalidInputError(f"source_columns are {len(request.source_columns)}: at most {MAX_SOURCE_COLUMNS}.")
    origins: dict[str, list[ColumnInput]] = {}
    for each in request.source_columns:
        how = parse_mode(Derivation, each.how, Derivation.DIRECT, "how")
        origins.setdefault(each.column, []).append(ColumnInput(0, each.source_column, how, each.code or ""))
    columns = tuple(ColumnOrigin(column, tuple(inputs)) for column, inputs in origins.items())
    return job.with_columns(columns).of_run(request.upload_id)


def _commit(target: WriteTarget, upload_id: str, parts: Sequence[UploadPart], lineage: CommitLineage | None) -> int:
    """Commit all parts as one version, whose transaction names the upload and the lineage: a repeat finds it."""
    fragments = [FragmentMetadata.from_json(json.dumps(raw)) for part in parts for raw in part.fragments["fragments"]]
    if (contract := target.record.contract) is not None:  # rows of parts are checked again: it may be another one
        found = CheckedRows(contract, rejected=_count_rejected(parts))
        target = replace(target, ctx=structs.replace(target.ctx, checked_rows=found))
    properties = {UPLOAD: upload_id}
    if lineage is not None:
        properties |= lineage.to_properties()
    kind = parts[0].fragments["kind"]
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(parts[0].fragments["schema"])))
    replacement = lance.Transaction(
        0, lance.LanceOperation.Overwrite(schema, fragments), transaction_properties=properties
    )
    if kind == FIRST:
        try:
            commit_first_version(target.ctx.storage, target.location, replacement, target.commit_route)
            return target.mark_written(1)
        except TableAlreadyExistsError:
            if not has_schema(target.dataset(), schema):
                raise ConcurrentModificationError(
                    "A concurrent request wrote the first rows of this table, with other columns: upload again."
                ) from None
    read_version = min(part.fragments["version"] for part in parts)
    retry = ConflictRetry(target.ctx.settings.conflict_timeout)
    while True:
        dataset = target.dataset_to_commit() if kind == InsertMode.OVERWRITE else target.dataset()
        try:
            with lance_errors(dataset):
                if kind == InsertMode.OVERWRITE:
                    return target.finish_commit(commit_overwrite(dataset, replacement, properties))
                base_version = read_version or dataset.version
                committed = commit_append(
                    dataset, fragments, base_version, retry.remaining_seconds, properties, target.commit_route
                )
                return target.finish_commit(committed, is_direct=True)
        except ColumnsChangedError:
            raise
        except ConcurrentModificationError as error:
            retry.wait_or_raise(error)


def _count_rejected(parts: Sequence[UploadPart]) -> int:
    return sum(part.fragments.get("rejected", 0) for part in parts)


def _completed_version(target: WriteTarget, upload_id: str) -> int | None:
    """Return the version that a multipart write made, if it is among the latest ones; else None."""
    if target.dataset_if_written() is None:
        return None
    dataset = target.exclusive_dataset()
    target.ctx.storage.manifests.check_history(target.location, target.branch)
    with lance_errors(dataset):
        for version, transaction in read_transactions(dataset, int(dataset.version) - _SEARCHED_VERSIONS):
            if (transaction.transaction_properties or {}).get(UPLOAD) == upload_id:
                return version
    return None


def _discard_parts(ctx: Context, parts: Sequence[UploadPart]) -> None:
    for part in parts:
        fragments = [FragmentMetadata.from_json(json.dumps(raw)) for raw in part.fragments["fragments"]]
        discard(ctx.storage, part.fragments["base"], fragments)
