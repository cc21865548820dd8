"""Writes in several parts: each part is written as it comes, all of them are committed at once.

lancedb's remote client uploads large tables this way. What has arrived is recorded in the catalog, so that any server
can complete the write, and a part that is sent twice counts once.
"""

from __future__ import annotations

import base64
import json
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

from tiltyard.access import Privilege
from tiltyard.access.needs import on_table
from tiltyard.model.ids import MAIN_BRANCH
from tiltyard.model.modes import InsertMode
from tiltyard.model.operations import operation
from tiltyard.model.schemas.column_names import check_new_columns
from tiltyard.model.spec import models
from tiltyard.model.table_history import read_transactions
from tiltyard.storage.errors import lance_errors, may_have_committed
from tiltyard.storage.writing import (
    OvertakenError,
    commit_append,
    commit_overwrite,
    count_rows,
    discard,
    discard_failed,
    fragments_of,
    has_schema,
    publish_first,
    write_first,
    write_rows,
    write_table,
)
from tiltyard.tables.opening import find_table
from tiltyard.tables.rows.first_version import standardize_maps
from tiltyard.tables.rows.schema_adapter import SchemaAdapter
from tiltyard.tables.rows.write_target import ConflictRetry, WriteTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context
    from tiltyard.store import UploadPart, UploadRecord
    from tiltyard.tables.rows.arrow_input import IncomingRows

UPLOAD = "tiltyard.upload"
_RECENT = 100
FIRST = "First"  # how a part was written, besides the modes of inserts: for a table without data


@operation(needs=on_table(Privilege.WRITE))
def create_multipart_write(
    ctx: Context, request: models.CreateMultipartWriteRequest
) -> models.CreateMultipartWriteResponse:
    """Begin a write in several parts. Raises NamespaceNotFoundError, TableNotFoundError, TableBranchNotFoundError."""
    target = WriteTarget(ctx, find_table(ctx, request.id), request.branch)
    target.dataset_if_written()
    upload = ctx.store.create_upload(target.record.id, request.branch or MAIN_BRANCH, "")
    return models.CreateMultipartWriteResponse(upload_id=upload.id)


def insert_part(
    target: WriteTarget, upload_id: str, part_id: str | None, mode: InsertMode, incoming: IncomingRows
) -> int:
    """Write one part, to be committed with the others. Returns its number of rows.

    Raises TransactionNotFoundError, TableSchemaValidationError, InvalidInputError.
    """
    _find_upload(target, upload_id)
    dataset = target.dataset_if_written()
    kind: str = FIRST if dataset is None else mode.value
    base = target.location if dataset is None else dataset.uri
    if dataset is None or mode is InsertMode.OVERWRITE:
        check_new_columns(incoming.schema)
    with incoming.errors(dataset):
        if dataset is None:
            options: dict[str, Any] = {}
            fragments = fragments_of(write_first(target.ctx.storage, target.location, incoming.reader(), options))
        elif mode is InsertMode.OVERWRITE:
            fragments = fragments_of(write_table(target.ctx.storage, incoming.reader(), dataset))
        else:
            dataset = standardize_maps(target, dataset)
            adapter = SchemaAdapter(incoming.schema, dataset.schema)
            fragments = write_rows(target.ctx.storage, incoming.reader(adapter), dataset)
    entry = {
        "kind": kind,
        "base": base,
        "schema": base64.b64encode(incoming.schema.serialize()).decode(),
        "version": dataset.version if dataset else 0,
        "fragments": [fragment.to_json() for fragment in fragments],
    }
    try:
        stored, is_new = target.ctx.store.add_upload_part(
            upload_id, part_id or uuid4().hex, entry, count_rows(fragments)
        )
    except BaseException as error:
        discard_failed(target.ctx.storage, base, fragments, error)
        raise
    if not is_new:
        discard(target.ctx.storage, base, fragments)
    return stored.num_rows


@operation(needs=on_table(Privilege.WRITE))
def complete_multipart_write(
    ctx: Context, request: models.CompleteMultipartWriteRequest
) -> models.CompleteMultipartWriteResponse:
    """Commit all parts as one version. Completed again, it answers the same version.

    Raises TransactionNotFoundError, ConcurrentModificationError, InvalidInputError (parts of different kinds).
    """
    target = WriteTarget(ctx, find_table(ctx, request.id), request.branch)
    try:
        _find_upload(target, request.upload_id)
        parts = ctx.store.upload_parts(request.upload_id)
        _check_alike(parts)
        ctx.store.delete_upload(request.upload_id)  # from here on it is ours alone
    except TransactionNotFoundError:
        if version := _completed_before(target, request.upload_id):
            return models.CompleteMultipartWriteResponse(version=version)
        raise
    try:
        with target.cleanup_on_error():
            version = _commit(target, request.upload_id, parts)
    except BaseException as error:
        if not may_have_committed(error):
            _discard_parts(ctx, parts)
        raise
    return models.CompleteMultipartWriteResponse(version=version, num_inserted_rows=sum(p.num_rows for p in parts))


@operation(needs=on_table(Privilege.WRITE))
def abort_multipart_write(
    ctx: Context, request: models.AbortMultipartWriteRequest
) -> models.AbortMultipartWriteResponse:
    """Give up a write in parts and delete its files. Raises TransactionNotFoundError."""
    target = WriteTarget(ctx, find_table(ctx, request.id), request.branch)
    _find_upload(target, request.upload_id)
    _abandon(ctx, request.upload_id)
    return models.AbortMultipartWriteResponse()


def abandon_stale_uploads(ctx: Context, older_than_ms: int, limit: int = 100) -> int:
    """Give up writes in parts that began long ago and were neither completed nor aborted; how many."""
    stale = ctx.store.stale_uploads(ctx.clock() - older_than_ms, limit)
    for upload in stale:
        try:
            _abandon(ctx, upload.id)
        except TransactionNotFoundError:
            continue  # its client, or another server, ended it first
    return len(stale)


def _abandon(ctx: Context, upload_id: str) -> None:
    parts = ctx.store.upload_parts(upload_id)
    ctx.store.delete_upload(upload_id)
    _discard_parts(ctx, parts)


def _find_upload(target: WriteTarget, upload_id: str) -> UploadRecord:
    upload = target.ctx.store.describe_upload(upload_id)
    if upload.table_id != target.record.id or upload.branch != (target.branch or MAIN_BRANCH):
        raise TransactionNotFoundError("This multipart write is not one of this table and branch.")
    return upload


def _check_alike(parts: Sequence[UploadPart]) -> None:
    if not parts:
        raise InvalidInputError("No part has arrived: insert with this upload_id first, or abort.")
    first = parts[0].fragments
    if any(part.fragments["kind"] != first["kind"] for part in parts):
        raise InvalidInputError("Some parts append and others overwrite: abort, and send them alike.")
    if first["kind"] != InsertMode.APPEND and any(part.fragments["schema"] != first["schema"] for part in parts):
        raise InvalidInputError("The parts have different schemas: abort, and send them alike.")


def _commit(target: WriteTarget, upload_id: str, parts: Sequence[UploadPart]) -> int:
    """One commit of all parts; the version's transaction names the upload, in case its client asks again."""
    fragments = [FragmentMetadata.from_json(json.dumps(raw)) for part in parts for raw in part.fragments["fragments"]]
    properties = {UPLOAD: upload_id}
    kind = parts[0].fragments["kind"]
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(parts[0].fragments["schema"])))
    replacing = lance.Transaction(
        0, lance.LanceOperation.Overwrite(schema, fragments), transaction_properties=properties
    )
    if kind == FIRST:
        try:
            publish_first(target.ctx.storage, target.location, replacing, target.road)
            return target.mark_written(1)
        except TableAlreadyExistsError:
            if not has_schema(target.dataset(), schema):
                raise ConcurrentModificationError(
                    "Another request gave this table its first rows, with other columns: upload again."
                ) from None
    read_version = min(part.fragments["version"] for part in parts)
    retry = ConflictRetry(target.ctx.settings.conflict_timeout)
    while True:
        dataset = target.dataset_to_commit() if kind == InsertMode.OVERWRITE else target.dataset()
        try:
            with lance_errors(dataset):
                if kind == InsertMode.OVERWRITE:
                    return target.finish_commit(commit_overwrite(dataset, replacing, properties))
                seen = read_version or dataset.version
                committed = commit_append(dataset, fragments, seen, retry.left, properties, target.road)
                return target.finish_commit(committed, plain=True)
        except OvertakenError:
            raise
        except ConcurrentModificationError as error:
            retry.wait_or_raise(error)


def _completed_before(target: WriteTarget, upload_id: str) -> int | None:
    """The version that a write in parts made, if it is among the recent ones."""
    if target.dataset_if_written() is None:
        return None
    dataset = target.exclusive_dataset()
    target.ctx.storage.manifests.check_history(target.location, target.branch)
    with lance_errors(dataset):
        for version, transaction in read_transactions(dataset, int(dataset.version) - _RECENT):
            if (transaction.transaction_properties or {}).get(UPLOAD) == upload_id:
                return version
    return None


def _discard_parts(ctx: Context, parts: Sequence[UploadPart]) -> None:
    for part in parts:
        fragments = [FragmentMetadata.from_json(json.dumps(raw)) for raw in part.fragments["fragments"]]
        discard(ctx.storage, part.fragments["base"], fragments)
