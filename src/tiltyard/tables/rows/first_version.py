"""Prepare tables for their first rows: create the first version, add the columns, give maps Arrow's field names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import TableAlreadyExistsError
from msgspec import structs

from tiltyard.model.schemas.column_names import check_new_columns
from tiltyard.model.schemas.nested_types import map_renamings
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locks import LockKind
from tiltyard.storage.writing import (
    commit_first_version,
    count_rows,
    discard,
    discard_after_error,
    fragments_of,
    write_first_version,
)
from tiltyard.tables.opening import open_to_commit

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

    from tiltyard.tables.rows.write_target import WriteTarget


def create_first_version(target: WriteTarget, rows: pa.Table) -> int | None:
    """Write in-memory rows as the first version of a declared table; return that version, 1.

    Returns None if a concurrent request created the first version: the rows are still to be appended.
    """
    storage, location = target.ctx.storage, target.location
    check_new_columns(rows.schema)
    try:
        first = write_first_version(storage, location, rows, {})
    except TableAlreadyExistsError:
        return None
    if publish_first_version(target, first):
        return 1
    discard(storage, location, fragments_of(first))
    return None


def publish_first_version(target: WriteTarget, first: lance.Transaction) -> bool:
    """Publish written rows as the first version of a declared table; return whether it is theirs.

    False if a concurrent request published first: the files of the rows stay, for the caller to append or to delete.
    Files of rows that cannot be published at all are deleted.
    """
    fragments = fragments_of(first)
    first.transaction_properties = target.transaction_properties(count_rows(fragments))
    try:
        commit_first_version(target.ctx.storage, target.location, first, target.commit_route)
    except TableAlreadyExistsError:
        return False
    except BaseException as error:
        discard_after_error(target.ctx.storage, target.location, fragments, error)
        raise
    target.mark_written(1)
    return True


def add_first_columns(target: WriteTarget, schema: pa.Schema) -> lance.LanceDataset:
    """Add the columns of the first rows to a table that was created from an empty stream; return the latest version."""
    storage = target.ctx.storage
    check_new_columns(schema)
    with storage.locks.hold(LockKind.CHANGES, target.key, target.ctx.settings.conflict_timeout):
        unclaimed = structs.replace(target.ctx, claims=())  # the request is fulfilled by the rows, not by their columns
        dataset = open_to_commit(unclaimed, target.record, target.branch)
        if not dataset.schema.names:
            with lance_errors(dataset):
                dataset.add_columns(schema)
    return target.dataset()


def standardize_map_names(target: WriteTarget, dataset: lance.LanceDataset) -> lance.LanceDataset:
    """Rename the inner fields of a table's maps to Arrow's names, where they have others; return the latest version.

    Lance compares these names when rows are appended, and no request body can match other ones: pyarrow reads Arrow's
    names from every stream. The renaming is a commit of metadata, once in a table's life.
    """
    if not map_renamings(dataset):
        return dataset
    with target.ctx.storage.locks.hold(LockKind.CHANGES, target.key, target.ctx.settings.conflict_timeout):
        unclaimed = structs.replace(target.ctx, claims=())  # the request is fulfilled by the rows, not by these names
        dataset = open_to_commit(unclaimed, target.record, target.branch)
        if renamings := map_renamings(dataset):
            with lance_errors(dataset):
                dataset.alter_columns(*renamings)  # type: ignore[arg-type]  # annotated as if each were a list
    return target.dataset()
