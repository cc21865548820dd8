"""What has to be there before rows can join a table: its first version, its columns, names that Arrow can say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import TableAlreadyExistsError
from msgspec import structs

from tiltyard.model.schemas.column_names import check_new_columns
from tiltyard.model.schemas.nested_types import map_renamings
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.writing import count_rows, discard, discard_failed, fragments_of, publish_first, write_first
from tiltyard.tables.opening import open_to_commit

if TYPE_CHECKING:
    import lance
    import pyarrow as pa

    from tiltyard.tables.rows.write_target import WriteTarget


def begin(target: WriteTarget, rows: pa.Table) -> int | None:
    """Make rows in memory the first version of a declared table, and return that.

    None if another made the first version: the rows are still to be added.
    """
    storage, location = target.ctx.storage, target.location
    check_new_columns(rows.schema)
    try:
        first = write_first(storage, location, rows, {})
    except TableAlreadyExistsError:
        return None
    if publish(target, first):
        return 1
    discard(storage, location, fragments_of(first))
    return None


def publish(target: WriteTarget, first: lance.Transaction) -> bool:
    """Make written rows the first version of a declared table; False if another was first, and their files are left.

    Files of rows that cannot be published at all are deleted.
    """
    fragments = fragments_of(first)
    first.transaction_properties = target.marks(count_rows(fragments))
    try:
        publish_first(target.ctx.storage, target.location, first, target.road)
    except TableAlreadyExistsError:
        return False
    except BaseException as error:
        discard_failed(target.ctx.storage, target.location, fragments, error)
        raise
    target.mark_written(1)
    return True


def add_first_columns(target: WriteTarget, schema: pa.Schema) -> lance.LanceDataset:
    """Give a table that was created from an empty stream the columns of its first rows."""
    storage = target.ctx.storage
    check_new_columns(schema)
    with storage.locks.hold(target.key, target.ctx.settings.conflict_timeout):
        preparing = structs.replace(target.ctx, claims=())  # the request is fulfilled by the rows, not by their columns
        dataset = open_to_commit(preparing, target.record, target.branch)
        if not dataset.schema.names:
            with lance_errors(dataset):
                dataset.add_columns(schema)
    return target.dataset()


def standardize_maps(target: WriteTarget, dataset: lance.LanceDataset) -> lance.LanceDataset:
    """Give a table's maps Arrow's names for what is in them, if its writer gave others: no rows could join them.

    Lance compares these names, and no body can say them: pyarrow reads Arrow's names from every stream. It is a commit
    of metadata, once in a table's life. Returns the version that has them.
    """
    if not map_renamings(dataset):
        return dataset
    with target.ctx.storage.locks.hold(target.key, target.ctx.settings.conflict_timeout):
        preparing = structs.replace(target.ctx, claims=())  # the request is fulfilled by the rows, not by these names
        dataset = open_to_commit(preparing, target.record, target.branch)
        if renamings := map_renamings(dataset):
            with lance_errors(dataset):
                dataset.alter_columns(*renamings)  # type: ignore[arg-type]  # annotated as if each were a list
    return target.dataset()
