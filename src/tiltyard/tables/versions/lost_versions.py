"""Versions that storage lost round the server, as in a restore by file copy, give way to those that come next."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from lance_namespace.errors import ConcurrentModificationError, TableNotFoundError, TableVersionNotFoundError

from tiltyard.tables.commits.commit_requests import latest_at
from tiltyard.tables.commits.finalizing import finalize_pending
from tiltyard.tables.versions.records import forget_cleaned, is_nowhere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tiltyard.context import Context
    from tiltyard.store import NewVersion

log = logging.getLogger("tiltyard.versions")

T = TypeVar("T")


def recording(ctx: Context, news: Iterable[NewVersion], record: Callable[[], T]) -> T:
    """What `record` returns, tried once more if records were in the way of versions that storage lost.

    Raises what it raises: ConcurrentModificationError if a version is somebody else's.
    """
    try:
        return record()
    except ConcurrentModificationError:
        if not make_way(ctx, news):
            raise
        return record()


def make_way(ctx: Context, news: Iterable[NewVersion]) -> bool:
    """Forget the records that keep versions from being committed and whose manifests are gone; whether any were.

    Only where the version to commit is the next one of those that storage has: it may lack one in the middle, too,
    that was cleaned up.
    """
    made = False
    for new in news:
        try:
            table = ctx.store.table_by_id(new.table_id)
            there = ctx.store.describe_version(new.table_id, new.version, new.branch)
        except (TableNotFoundError, TableVersionNotFoundError):
            continue
        if there.staged_path == new.staged_path or not there.finalized or not is_nowhere(ctx, table, there):
            continue
        finalize_pending(ctx, table.id)
        ctx.storage.datasets.forget(table.location)
        if latest_at(ctx, table, new.branch) != new.version - 1:
            continue
        count = forget_cleaned(ctx, table, new.branch)
        ctx.store.clip_deleted_versions(table.id, new.branch, new.version)
        made = made or count > 0
        log.warning("%s versions of table %s are gone from storage: %s is next", count, table.id, new.version)
    return made
