"""From a table's id to its open dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.context import OpenTable
from tiltyard.model.ids import table_id
from tiltyard.tables.commits.finalizing import finalize_pending
from tiltyard.tables.versions.deleted_versions import check_not_deleted

if TYPE_CHECKING:
    from collections.abc import Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.store import TableRecord


def find_table(ctx: Context, names: Sequence[str] | None) -> TableRecord:
    """A table's record. Raises NamespaceNotFoundError, TableNotFoundError, InvalidInputError."""
    return ctx.find_table(table_id(names))


def open_for_reading(
    ctx: Context,
    names: Sequence[str] | None,
    *,
    branch: str | None = None,
    version: int | None = None,
    tag: str | None = None,
) -> OpenTable:
    """A table with a shared handle at a branch's latest version, or at a version or tag. Never mutate the handle.

    Raises NamespaceNotFoundError, TableNotFoundError, InvalidTableStateError (declared, no data yet),
    TableVersionNotFoundError, TableTagNotFoundError, TableBranchNotFoundError.
    """
    record = find_table(ctx, names)
    opened = ctx.open_table
    if opened is not None and opened.record is record and (branch, version, tag) == (None, None, None):
        return opened
    _settle(ctx, record)
    if version is not None:
        check_not_deleted(ctx, record, branch, version)
    storage = ctx.storage
    dataset = storage.datasets.reader(record.location, storage.options(record.location), branch, version, tag)
    return OpenTable(record, dataset)


def open_at_hand(ctx: Context, names: Sequence[str] | None) -> OpenTable | None:
    """A table with a shared handle of its latest version, if that takes no more than a look at a local file's name.

    None where it takes more, or is refused. Raises NamespaceNotFoundError, TableNotFoundError, InvalidInputError.
    """
    record = find_table(ctx, names)
    if not ctx.storage.at_hand(record.location) or _is_unsettled(ctx, record):
        return None
    dataset = ctx.storage.datasets.current(record.location)
    return None if dataset is None else OpenTable(record, dataset)


def _settle(ctx: Context, record: TableRecord) -> None:
    """Finish what is recorded of a table and not yet final: a batch is seen on all its tables, or on none."""
    if _is_unsettled(ctx, record):
        finalize_pending(ctx, record.id, recent=False)


def _is_unsettled(ctx: Context, record: TableRecord) -> bool:
    return record.managed and ctx.store.has_pending_versions(record.id)


def open_for_writing(ctx: Context, names: Sequence[str] | None, *, branch: str | None = None) -> OpenTable:
    """A table with a handle of its own, to commit through. Raises what `open_for_reading` raises."""
    record = find_table(ctx, names)
    return OpenTable(record, open_to_commit(ctx, record, branch))


def open_to_commit(
    ctx: Context, record: TableRecord, branch: str | None, *, durable: bool = False
) -> lance.LanceDataset:
    """Open a handle of a table's latest version, whose commits are routed by CommitRouting. Raises as above."""
    storage = ctx.storage
    return storage.datasets.writer(
        record.location, storage.options(record.location), branch, ctx.commit_route(record, durable=durable)
    )
