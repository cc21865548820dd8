"""Versions deleted by BatchDeleteTableVersions, whose files wait for garbage collection.

Storage has them until then, so whatever takes a version of a table by its number checks it here. The latest version of
a branch is never deleted, nor one with a tag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidTableStateError, TableVersionNotFoundError

from tiltyard.model.branches import MAIN, Branch
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.reference_files import list_references
from tiltyard.store.tables.versions import subtract
from tiltyard.tables.versions.records import stored_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import lance

    from tiltyard.context import Context
    from tiltyard.store import TableRecord, UnitOfWork
    from tiltyard.store.tables.versions import Range
    from tiltyard.tables.versions.records import StoredVersion


def check_not_deleted(ctx: Context, record: TableRecord, branch: Branch, version: int) -> None:
    """Raise TableVersionNotFoundError for a version that was deleted."""
    if not ctx.store.is_deleted_version(record.id, branch.key, version):
        return
    latest = ctx.storage.datasets.open_for_reading(record.location, branch)
    if latest.version != version:  # it may be the latest again, after a restore by file copy
        raise TableVersionNotFoundError(f"No version {version}: it was deleted; the latest is {latest.version}.")


def deletion_test(ctx: Context, record: TableRecord, branch: Branch, latest: int) -> Callable[[int], bool]:
    """Return a function that tells whether a version of a branch is deleted; `latest` is not."""
    ranges = ctx.store.deleted_versions(record.id, branch.key)
    return lambda version: version != latest and any(version in deleted for deleted in ranges)


def tagged_versions(dataset: lance.LanceDataset, branch: Branch) -> set[int]:
    """Return the versions of a branch that have a tag."""
    with lance_errors(dataset):
        tags = list_references(dataset.tags).values()
    return {tag["version"] for tag in tags if Branch.parse(tag["branch"]) == branch}


def exclude_tagged(ctx: Context, record: TableRecord, branch: Branch, ranges: Iterable[Range]) -> list[Range]:
    """Return ranges of versions without those that have a tag."""
    try:
        main = ctx.storage.datasets.open_for_reading(record.location)
    except InvalidTableStateError:  # no data yet
        return list(subtract(ranges, ()))
    ctx.storage.manifests.check_references(record.location)
    tagged = tagged_versions(main, branch)
    return list(subtract(ranges, ((version, version + 1) for version in tagged)))


def delete_versions(
    catalog: UnitOfWork, table_id: int, branch: Branch, ranges: list[Range], stored: Iterable[int]
) -> int:
    """Mark versions as deleted and delete their records; return how many of them were `stored` or recorded.

    Raises PermissionDeniedError where the table is under a legal hold.
    """
    catalog.refuse_under_hold(table_id, "Versions of this table")
    recorded = catalog.recorded_versions(table_id, branch.key, ranges)
    catalog.delete_versions(table_id, branch.key, ranges)
    added = catalog.add_deleted_versions(table_id, branch.key, ranges)
    existing = recorded.union(stored)
    return sum(1 for version in existing if any(first <= version < beyond for first, beyond in added))


def expired_versions(
    ctx: Context, record: TableRecord, branches: Mapping[Branch, lance.LanceDataset], now: int
) -> dict[Branch, list[StoredVersion]]:
    """Return deleted versions whose files may be removed, by branch, ascending.

    These were deleted at least a retention time before `now` (milliseconds), and nothing older in their branch is
    needed. Removed in this order they leave no gap in a history without tags: readers count on that. `branches` has
    the dataset of each branch.
    """
    before = now - ctx.settings.retention_ms
    expired: dict[Branch, list[StoredVersion]] = {}
    for branch, dataset in branches.items():
        deleted = [span for span in ctx.store.deleted_versions(record.id, branch.key) if span.deleted_at <= before]
        if not deleted:
            continue
        tagged = tagged_versions(branches[MAIN], branch)
        for version, stored in sorted(stored_versions(ctx, record, branch).items()):
            if version in tagged:
                continue
            if version >= dataset.version or not any(version in span for span in deleted):
                break
            expired.setdefault(branch, []).append(stored)
    return expired
