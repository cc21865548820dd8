"""Inserting rows: appended together with others' rows, or in place of all rows."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from lance_namespace.errors import ConcurrentModificationError, TableAlreadyExistsError

from tiltyard.access import Privilege
from tiltyard.access.needs import on_table
from tiltyard.modes import InsertMode, parse_mode
from tiltyard.operations import operation
from tiltyard.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.writing import (
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
from tiltyard.tables.appends import append_fragments, append_rows
from tiltyard.tables.fitting import Fitting
from tiltyard.tables.incoming import Incoming
from tiltyard.tables.multipart import insert_part
from tiltyard.tables.opening import find_table, open_to_commit
from tiltyard.tables.target import Patience, Target

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

    from tiltyard.bodies import ArrowBody
    from tiltyard.context import Context


@operation(needs=on_table(Privilege.WRITE))
def insert_into_table(
    ctx: Context, request: models.InsertIntoTableRequest, data: ArrowBody
) -> models.InsertIntoTableResponse:
    """Add rows to a table, or replace all its rows and its schema; the first rows of a declared table make it real.

    With `upload_id` they are a part of a multipart write, and are seen once that is complete.
    Raises NamespaceNotFoundError, TableNotFoundError, TableBranchNotFoundError, TableSchemaValidationError,
    InvalidInputError, ConcurrentModificationError, TransactionNotFoundError (no such multipart write).
    """
    mode = parse_mode(InsertMode, request.mode, InsertMode.APPEND)
    target = Target(ctx, find_table(ctx, request.id), request.branch)
    with _turn(target, data):
        incoming = Incoming(data)
    incoming.require_columns()
    with target.leaving_nothing():
        if request.upload_id:
            rows = insert_part(target, request.upload_id, request.upload_part_id, mode, incoming)
            return models.InsertIntoTableResponse(num_inserted_rows=rows)
        version, rows = (append if mode is InsertMode.APPEND else overwrite)(target, incoming)
    return models.InsertIntoTableResponse(version=version, num_inserted_rows=rows)


def _turn(target: Target, data: ArrowBody) -> AbstractContextManager[object]:
    """Small bodies are read one after the other.

    Threads that read them at once mostly wait for the interpreter, and so does the thread that commits for all of
    them: taking turns, 32 callers insert half as much again.
    """
    return nullcontext() if data.size is None else target.ctx.storage.turn


def append(target: Target, incoming: Incoming) -> tuple[int, int]:
    """Add rows to a table. Returns the version that has them, and their number."""
    rows = incoming.table() if incoming.is_small else None
    dataset = target.dataset_if_written()
    if dataset is None:
        if begun := _begin(target, incoming, rows):
            return begun
        dataset = target.dataset()
    if not dataset.schema.names:
        dataset = _adopt_columns(target, incoming)
    schema = dataset.schema
    fitting = Fitting(incoming.schema, schema)
    if rows is not None:
        fitted = fitting.table(rows)
        version = append_rows(target, fitted, schema) if rows.num_rows else target.written(dataset.version)
        return version, rows.num_rows
    with incoming.errors(dataset):
        fragments = write_rows(incoming.reader(fitting), dataset)
    if not fragments:
        return target.written(dataset.version), 0
    return append_fragments(target, dataset, fragments, dataset.version), count_rows(fragments)


def _begin(target: Target, incoming: Incoming, rows: pa.Table | None) -> tuple[int, int] | None:
    """Make the first version of a declared table; None if another did it first and the rows are still to be added."""
    storage, location = target.ctx.storage, target.location
    try:
        with incoming.errors():
            first = write_first(storage, location, incoming.reader() if rows is None else rows, {})
    except TableAlreadyExistsError:
        return None
    fragments = fragments_of(first)
    first.transaction_properties = target.marks(count_rows(fragments))
    try:
        publish_first(storage, location, first, target.road)
    except TableAlreadyExistsError:
        dataset = target.dataset()
        if has_schema(dataset, incoming.schema) and fragments:
            return append_fragments(target, dataset, fragments, dataset.version), count_rows(fragments)
        discard(storage, location, fragments)
        if rows is not None:
            return None
        raise ConcurrentModificationError(
            "Another request gave this table its first rows, with other columns: describe it, then insert again."
        ) from None
    except BaseException as error:
        discard_failed(storage, location, fragments, error)
        raise
    return target.written(1), count_rows(fragments)


def _adopt_columns(target: Target, incoming: Incoming) -> lance.LanceDataset:
    """Give a table that was created from an empty stream the columns of its first rows."""
    storage = target.ctx.storage
    with storage.locks.hold(target.key, target.ctx.settings.conflict_timeout):
        preparing = replace(target.ctx, claims=())  # the request is fulfilled by the rows, not by their columns
        dataset = open_to_commit(preparing, target.record, target.branch)
        if not dataset.schema.names:
            with lance_errors(dataset):
                dataset.add_columns(incoming.schema)
    return target.dataset()


def overwrite(target: Target, incoming: Incoming) -> tuple[int, int]:
    """Replace a table's rows and schema in a new version. Returns that version, and the number of rows."""
    rows = incoming.table() if incoming.is_small else None
    dataset = target.dataset_if_written()
    if dataset is None:
        if begun := _begin(target, incoming, rows):
            return begun
        dataset = target.dataset()
    base = dataset.uri
    with incoming.errors(dataset):
        replacing = write_table(incoming.reader() if rows is None else rows, dataset)
    try:
        committed = _replace(target, dataset, replacing)
    except BaseException as error:
        discard_failed(target.ctx.storage, base, fragments_of(replacing), error)
        raise
    return target.committed(committed), count_rows(fragments_of(replacing))


def _replace(target: Target, dataset: lance.LanceDataset, replacing: lance.Transaction) -> lance.LanceDataset:
    """Commit written rows in place of all that are there, whatever others commit meanwhile."""
    patience = Patience(target.ctx.settings.conflict_timeout)
    while True:
        try:
            with lance_errors(dataset):
                rows = count_rows(fragments_of(replacing))
                return commit_overwrite(target.to_commit(), replacing, target.marks(rows))
        except ConcurrentModificationError as error:
            patience.or_raise(error)
