"""Record versions in the catalog: the one way by which a version comes to be, whoever commits it.

Requests of clients, commits of this server, and batches of several tables come here with what was validated. Files are
whole and durable before the record, which takes a version's number; its manifest is finalized after it (`finalizing`).
What else a commit changes in the catalog is part of the record's transaction.

The unique key of the records decides which of several commits wins. A version that storage has lost (a restore by file
copy) is no conflict: its record is deleted, so that a new commit can take its number.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    PermissionDeniedError,
    TableNotFoundError,
    TableVersionNotFoundError,
)

from tiltyard.model.branches import Branch
from tiltyard.runtime.failpoints import Point, reach
from tiltyard.storage.errors import IncompleteFileError
from tiltyard.store import NewVersion, VersionRecord
from tiltyard.tables.commits.finalizing import finalize_pending
from tiltyard.tables.versions.records import delete_records_without_manifest, has_no_manifest, latest_stored_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tiltyard.context import Context
    from tiltyard.store import Store, UnitOfWork

log = logging.getLogger("tiltyard.versions")

T = TypeVar("T")

REFUSALS = (TableNotFoundError, InvalidInputError, ConcurrentModificationError, PermissionDeniedError)
"""What a version is refused with, for itself."""


class DeclarationChangedError(ConcurrentModificationError):
    """A table got another primary key or contract after a version was checked: it is to be checked again."""


def record_versions(
    ctx: Context,
    news: Sequence[NewVersion],
    write: Callable[[], T],
    *,
    written_here: bool = False,
    are_noted: bool = True,
) -> T:
    """Make the files of versions durable, then call `write`, which records them in one transaction; return its result.

    It is called once more if it met records of versions that storage has lost. Unless the caller does, they `are_noted`
    for quotas. Raises what `write` raises: ConcurrentModificationError if another manifest has a version,
    DeclarationChangedError; for a file that is missing or not whole InvalidInputError, or IncompleteFileError where it
    was `written_here`; PermissionDeniedError for a table that is read-only by now, whoever commits.
    """
    ctx.services.protections.check_tables_writable([new.table_id for new in news])
    _make_durable(ctx, news, written_here)
    reach(Point.BEFORE_RECORD)
    try:
        recorded = write()
    except ConcurrentModificationError:
        if not _delete_lost_records(ctx, news):
            raise
        recorded = write()
    except TableNotFoundError as error:
        _check_declarations_current(ctx, news, error)
        raise
    if are_noted:
        note_versions(ctx, news)
    return recorded


def note_versions(ctx: Context, news: Iterable[NewVersion]) -> None:
    """Note versions that were recorded, for quotas: the rows of each are read later."""
    for new in news:
        ctx.services.quotas.note_version(new.table_id, new.branch, new.version, new.committed_by or ctx.principal)


def record_all(
    catalog: UnitOfWork | Store, news: Sequence[NewVersion], batch_id: str | None = None
) -> list[VersionRecord]:
    """Record versions in a transaction, or one by itself. Raises ConcurrentModificationError if another has its number.

    Of a transaction, none is recorded then. `batch_id` is the id of the batch that commits them.
    """
    pairs = catalog.record_versions(news, batch_id)
    return [_check_same_manifest(new, *pair) for new, pair in zip(news, pairs, strict=True)]


def record_independently(ctx: Context, news: Sequence[NewVersion]) -> list[VersionRecord | Exception]:
    """Record versions in one transaction, or, if the catalog refuses one, each in its own; return each outcome."""
    try:
        return record_each(ctx, news)
    except REFUSALS as error:
        if len(news) == 1:
            return [error]
        return [record for new in news for record in record_independently(ctx, [new])]


def record_each(ctx: Context, news: Sequence[NewVersion]) -> list[VersionRecord | Exception]:
    """Record versions in one transaction: an error is the outcome where another manifest has one. Raises REFUSALS."""
    pairs = record_versions(ctx, news, lambda: ctx.store.record_versions(news), are_noted=False)
    blocked = [new for new, (found, inserted) in zip(news, pairs, strict=True) if not inserted and found.finalized]
    if blocked and _delete_lost_records(ctx, blocked):
        pairs = ctx.store.record_versions(news)
    note_versions(ctx, (new for new, (_, inserted) in zip(news, pairs, strict=True) if inserted))
    return [_same_or_error(new, *pair) for new, pair in zip(news, pairs, strict=True)]


def _make_durable(ctx: Context, news: Iterable[NewVersion], written_here: bool) -> None:
    """Check that the files of versions are whole, and make them durable.

    Raises TableNotFoundError for a table that was dropped meanwhile; for a file that is missing or not whole
    InvalidInputError, or IncompleteFileError where it was `written_here`.
    """
    try:
        ctx.storage.make_durable(file for new in news for file in new.files)
    except (IncompleteFileError, InvalidTableStateError) as error:
        for number in {new.table_id for new in news} - {0}:  # 0: of a table that is declared with it
            ctx.store.table_by_id(number)
        if written_here:
            raise IncompleteFileError from error
        found = error.__cause__ if isinstance(error.__cause__, OSError) else None
        name = str(found.filename).rpartition("/")[2] if found is not None else "a file"
        raise InvalidInputError(
            f"The staged manifest names {name}, which is missing or not whole: nothing was committed. Write it again."
        ) from error


def _check_same_manifest(new: NewVersion, record: VersionRecord, inserted: bool) -> VersionRecord:
    """Return the record, if it is of this manifest. Raises ConcurrentModificationError if another has the version."""
    if not inserted and record.staged_path != new.staged_path:
        raise ConcurrentModificationError(f"Version {new.version} exists: describe it, and rebase.")
    return record


def _same_or_error(new: NewVersion, record: VersionRecord, inserted: bool) -> VersionRecord | Exception:
    try:
        return _check_same_manifest(new, record, inserted)
    except ConcurrentModificationError as error:
        return error


def _check_declarations_current(ctx: Context, news: Iterable[NewVersion], error: TableNotFoundError) -> None:
    """Raise DeclarationChangedError if versions were refused as a table got another primary key or contract."""
    for new in news:
        with suppress(TableNotFoundError):
            table = ctx.store.table_by_id(new.table_id)
            if (table.primary_key, table.contract) != (new.primary_key, new.contract):
                changed = "contract" if table.primary_key == new.primary_key else "primary key"
                raise DeclarationChangedError(
                    f"The {changed} of this table was changed meanwhile: try again."
                ) from error


def _delete_lost_records(ctx: Context, news: Iterable[NewVersion]) -> bool:
    """Delete records that block new versions and whose manifests are gone from storage, as in a restore by file copy.

    Only where the new version is the next one of those that storage has: storage may also lack one in the middle, which
    was cleaned up. Return whether records were deleted.
    """
    has_deleted = False
    for new in news:
        try:
            table = ctx.store.table_by_id(new.table_id)
            blocking = ctx.store.describe_version(new.table_id, new.version, new.branch)
        except (TableNotFoundError, TableVersionNotFoundError):
            continue
        if (
            blocking.staged_path == new.staged_path
            or not blocking.finalized
            or not has_no_manifest(ctx, table, blocking)
        ):
            continue
        finalize_pending(ctx, table.id)
        ctx.storage.datasets.evict(table.location)
        branch = Branch(new.branch)
        if latest_stored_version(ctx, table, branch) != new.version - 1:
            continue
        count = delete_records_without_manifest(ctx, table, branch)
        ctx.store.truncate_deleted_versions(table.id, branch.key, new.version)
        has_deleted = has_deleted or count > 0
        log.warning("%s versions of table %s are gone from storage: %s is next", count, table.id, new.version)
    return has_deleted
