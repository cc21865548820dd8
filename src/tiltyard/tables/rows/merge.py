"""Merging rows into a table by key columns: update what is there, insert what is not, delete what is left over."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError

from tiltyard.access import Privilege
from tiltyard.access.needs import on_table
from tiltyard.model.operations import operation
from tiltyard.model.spec import models
from tiltyard.storage.errors import no_column
from tiltyard.tables.opening import find_table, open_to_commit
from tiltyard.tables.rows.arrow_input import IncomingRows
from tiltyard.tables.rows.first_version import standardize_maps
from tiltyard.tables.rows.insert import append
from tiltyard.tables.rows.schema_adapter import SchemaAdapter
from tiltyard.tables.rows.write_target import ConflictRetry, WriteTarget
from tiltyard.tables.sql.expressions import checked_expression

if TYPE_CHECKING:
    from collections.abc import Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.model.arrow_bodies import ArrowBody

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zµ]*)\s*")
_LONGEST_SECONDS = 24 * 3600.0
_LONGEST_DURATION = 100
"""Characters: the pattern takes the square of that."""


@dataclass(frozen=True, slots=True)
class Merge:
    """What a merge does, as the request says."""

    on: tuple[str, ...]
    update: bool
    update_filter: str | None
    insert: bool
    delete: bool
    delete_filter: str | None
    use_index: bool
    seconds: float


@operation(needs=on_table(Privilege.READ | Privilege.WRITE))
def merge_insert_into_table(
    ctx: Context, request: models.MergeInsertIntoTableRequest, data: ArrowBody
) -> models.MergeInsertIntoTableResponse:
    """Merge rows into a table by the columns `on`.

    Merges of one table wait for each other, so that a key is inserted once. Raises NamespaceNotFoundError,
    TableNotFoundError, TableBranchNotFoundError, TableColumnNotFoundError, TableSchemaValidationError,
    InvalidInputError (nothing to do, a bad filter or timeout, a key twice), ConcurrentModificationError,
    ServiceUnavailableError (its time is over, and nothing is written).
    """
    merge = _parse(request, ctx.settings.conflict_timeout)
    target = WriteTarget(ctx, find_table(ctx, request.id), request.branch)
    incoming = IncomingRows(data)
    incoming.require_columns()
    _check_on(merge.on, incoming.schema.names, "These rows have")
    with target.cleanup_on_error(), ctx.storage.locks.hold(target.key, merge.seconds):
        ctx.check_deadline()
        if target.dataset_if_written() is None:
            return _into_nothing(target, incoming, merge)
        return _execute(target, incoming, merge)


def _parse(request: models.MergeInsertIntoTableRequest, default_seconds: float) -> Merge:
    """The request, checked. Raises InvalidInputError."""
    given: Any = request.on
    on = (given,) if isinstance(given, str) else tuple(given or ())
    if not on or not all(on):
        raise InvalidInputError("Name the key columns with `on`.")
    if len(set(on)) < len(on):
        raise InvalidInputError("A column is named twice in `on`: once is enough.")
    update_filter = _filter(request.when_matched_update_all_filt, "when_matched_update_all_filt")
    delete_filter = _filter(request.when_not_matched_by_source_delete_filt, "when_not_matched_by_source_delete_filt")
    merge = Merge(
        on=on,
        update=bool(request.when_matched_update_all),
        update_filter=update_filter,
        insert=bool(request.when_not_matched_insert_all),
        delete=bool(request.when_not_matched_by_source_delete),
        delete_filter=delete_filter,
        use_index=request.use_index is not False,
        seconds=_seconds(request.timeout) if request.timeout else default_seconds,
    )
    if update_filter and not merge.update:
        raise InvalidInputError("when_matched_update_all_filt needs when_matched_update_all=true.")
    if delete_filter and not merge.delete:
        raise InvalidInputError("when_not_matched_by_source_delete_filt needs when_not_matched_by_source_delete=true.")
    if not (merge.update or merge.insert or merge.delete):
        raise InvalidInputError("This merge changes nothing: set when_matched_update_all or one of the others.")
    return merge


def _filter(text: str | None, what: str) -> str | None:
    return checked_expression(text, what) if text else None


def _seconds(text: str) -> float:
    """A duration such as 30s, 5m or 500ms; a number alone counts seconds. Raises InvalidInputError."""
    total, at = 0.0, 0
    if len(text) > _LONGEST_DURATION:
        raise InvalidInputError("The timeout is no duration up to a day: write 30s, 5m or 500ms.")
    for part in _DURATION.finditer(text.lower()):
        if part.start() != at or part[2] not in _UNITS:
            break
        total, at = total + float(part[1]) * _UNITS[part[2]], part.end()
    if not text or at != len(text) or not 0 < total <= _LONGEST_SECONDS:
        raise InvalidInputError(f"The timeout '{text}' is no duration up to a day: write 30s, 5m or 500ms.")
    return total


def _check_on(on: Sequence[str], there: Sequence[str], whose: str) -> None:
    for name in on:
        if name not in there:
            error = no_column(name, there)
            raise type(error)(str(error).replace("This table has", whose))


def _into_nothing(target: WriteTarget, incoming: IncomingRows, merge: Merge) -> models.MergeInsertIntoTableResponse:
    """A merge into a table without data inserts all rows; without inserts it would make a table out of nothing."""
    if not merge.insert:
        target.dataset()  # says that there is no data yet
    version, rows = append(target, incoming)
    return models.MergeInsertIntoTableResponse(
        version=version,
        num_inserted_rows=rows,
        num_updated_rows=0,
        num_deleted_rows=0,
        num_attempts=1,
        num_rows=rows,
    )


def _execute(target: WriteTarget, incoming: IncomingRows, merge: Merge) -> models.MergeInsertIntoTableResponse:
    """The merge, tried again after conflicts for as long as its time lasts; a streamed body cannot be read again."""
    rows = incoming.table() if incoming.is_small else None
    retry = ConflictRetry(merge.seconds)
    while True:
        dataset = open_to_commit(target.ctx, target.record, target.branch)
        if standardize_maps(target, dataset) is not dataset:
            dataset = open_to_commit(target.ctx, target.record, target.branch)
        adapter = _fitting(merge, incoming.schema, dataset)
        with incoming.errors(dataset):
            source = incoming.reader(adapter, target.ctx.check_deadline) if rows is None else adapter.table(rows)
            try:
                target.ctx.check_deadline()
                stats = _builder(dataset, merge, retry.left, target.retries).execute(source)
                break
            except Exception as error:
                if rows is None:
                    raise
                retry.wait_or_raise(error)
    inserted, updated = stats["num_inserted_rows"], stats["num_updated_rows"]
    return models.MergeInsertIntoTableResponse(
        version=target.mark_written(dataset.version),
        num_inserted_rows=inserted,
        num_updated_rows=updated,
        num_deleted_rows=stats["num_deleted_rows"],
        num_attempts=retry.attempts,
        num_rows=inserted + updated,
    )


def _fitting(merge: Merge, source: pa.Schema, dataset: lance.LanceDataset) -> SchemaAdapter:
    """Rows as the table has them; Lance updates or inserts some of the columns only, if only those are given.

    Raises TableColumnNotFoundError, TableSchemaValidationError.
    """
    schema: pa.Schema = dataset.schema
    _check_on(merge.on, schema.names, "This table has")
    given = pa.schema([field for field in schema if field.name in source.names], metadata=schema.metadata)
    required = [field.name for field in schema if not field.nullable and field.name not in source.names]
    return SchemaAdapter(source, schema if merge.insert and required else given)


def _builder(dataset: lance.LanceDataset, merge: Merge, seconds: float, retries: int) -> Any:
    builder = dataset.merge_insert(list(merge.on))
    if merge.update:
        builder = builder.when_matched_update_all(merge.update_filter)
    if merge.insert:
        builder = builder.when_not_matched_insert_all()
    if merge.delete:
        builder = builder.when_not_matched_by_source_delete(merge.delete_filter)
    return (
        builder.use_index(merge.use_index)
        .conflict_retries(retries)
        .retry_timeout(timedelta(seconds=max(seconds, 0.001)))
    )
