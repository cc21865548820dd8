"""Open a table's dataset by the table's id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.context import OpenTable
from tiltyard.model.branches import MAIN
from tiltyard.model.ids import table_id
from tiltyard.storage.version_cache import Snapshot
from tiltyard.tables.commits.finalizing import finalize_pending
from tiltyard.tables.versions.deleted_versions import check_not_deleted

if TYPE_CHECKING:
    from collections.abc import Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.model.branches import Branch
    from tiltyard.store import TableRecord


def find_table(ctx: Context, names: Sequence[str] | None) -> TableRecord:
    """Return a table's record. Raises NamespaceNotFoundError, TableNotFoundError, InvalidInputError."""
    return ctx.find_table(table_id(names))


def open_for_reading(
    ctx: Context,
    names: Sequence[str] | None,
    *,
    branch: Branch = MAIN,
    version: int | None = None,
    tag: str | None = None,
) -> OpenTable:
    """Open a table at the latest version of a branch, or at a version or tag. The dataset is shared: never mutate it.

    Raises NamespaceNotFoundError, TableNotFoundError, InvalidTableStateError (declared, no data yet),
    TableVersionNotFoundError, TableTagNotFoundError, TableBranchNotFoundError.
    """
    record = find_table(ctx, names)
    opened = ctx.open_table
    if opened is not None and opened.record is record and branch.is_main and version is None and tag is None:
        return opened
    _finalize_pending(ctx, record)
    if version is not None:
        check_not_deleted(ctx, record, branch, version)
    storage = ctx.storage
    options = storage.options(record.location)
    return OpenTable(record, storage.datasets.open_snapshot(record.location, options, branch, version, tag))


def open_cached(ctx: Context, names: Sequence[str] | None) -> OpenTable | None:
    """Open a table at its latest version, if that takes no more than a lookup of a local file's name; None otherwise.

    Raises NamespaceNotFoundError, TableNotFoundError, InvalidInputError.
    """
    record = find_table(ctx, names)
    if not ctx.storage.is_latest_cached(record.location) or _has_pending_versions(ctx, record):
        return None
    snapshot = ctx.storage.datasets.cached_snapshot(record.location)
    return None if snapshot is None else OpenTable(record, snapshot)


def _finalize_pending(ctx: Context, record: TableRecord) -> None:
    """Finalize what is recorded of a table and not final: readers see a batch on all its tables, or on none."""
    if _has_pending_versions(ctx, record):
        finalize_pending(ctx, record.id, recent=False)


def _has_pending_versions(ctx: Context, record: TableRecord) -> bool:
    return record.managed and ctx.store.has_pending_versions(record.id)


def open_for_writing(ctx: Context, names: Sequence[str] | None, *, branch: Branch = MAIN) -> OpenTable:
    """Open a table with a dataset that is not shared, to commit through. Raises what `open_for_reading` raises."""
    record = find_table(ctx, names)
    return OpenTable(record, Snapshot(open_to_commit(ctx, record, branch)))


def open_to_commit(ctx: Context, record: TableRecord, branch: Branch, *, durable: bool = False) -> lance.LanceDataset:
    """Open a dataset at a table's latest version, whose commits take the table's commit route. Raises as above.

    `durable` says that what the commits bring is on the disk already.
    """
    storage = ctx.storage
    return storage.datasets.open_for_writing(
        record.location, storage.options(record.location), branch, ctx.commit_route(record, durable=durable)
    )
