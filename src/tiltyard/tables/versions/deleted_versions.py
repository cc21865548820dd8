"""Versions deleted by BatchDeleteTableVersions, whose files wait for garbage collection.

Storage has them until then, so whatever takes a version of a table by its number checks it here. The latest version of
a branch is never deleted, nor one with a tag.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidTableStateError, TableVersionNotFoundError

from tiltyard.model.ids import MAIN_BRANCH
from tiltyard.storage.errors import lance_errors
from tiltyard.store.tables.versions import subtract
from tiltyard.tables.versions.records import branch_key, stored_versions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import lance

    from tiltyard.context import Context
    from tiltyard.store import TableRecord, UnitOfWork
    from tiltyard.store.tables.versions import Range
    from tiltyard.tables.versions.records import StoredVersion


def check_not_deleted(ctx: Context, record: TableRecord, branch: str | None, version: int) -> None:
    """Raise TableVersionNotFoundError for a version that was deleted."""
    if not ctx.store.is_deleted_version(record.id, branch_key(branch), version):
        return
    latest = ctx.storage.datasets.open_for_reading(record.location, ctx.storage.options(record.location), branch)
    if latest.version != version:  # it may be the latest again, after a restore by file copy
        raise TableVersionNotFoundError(f"No version {version}: it was deleted; the latest is {latest.version}.")


def deletion_test(ctx: Context, record: TableRecord, branch: str | None, latest: int) -> Callable[[int], bool]:
    """Return a function that tells whether a version of a branch is deleted; `latest` is not."""
    ranges = ctx.store.deleted_versions(record.id, branch_key(branch))
    return lambda version: version != latest and any(version in deleted for deleted in ranges)


def tagged_versions(dataset: lance.LanceDataset, branch: str) -> set[int]:
    """Return the versions of a branch ('' is main) that have a tag."""
    with lance_errors(dataset):
        tags = dataset.tags.list().values()
    return {tag["version"] for tag in tags if branch_key(tag["branch"]) == branch}


def exclude_tagged(ctx: Context, record: TableRecord, branch: str | None, ranges: Iterable[Range]) -> list[Range]:
    """Return ranges of versions without those that have a tag."""
    try:
        main = ctx.storage.datasets.open_for_reading(record.location, ctx.storage.options(record.location))
    except InvalidTableStateError:  # no data yet
        return list(subtract(ranges, ()))
    ctx.storage.manifests.check_references(record.location)
    tagged = tagged_versions(main, branch_key(branch))
    return list(subtract(ranges, ((version, version + 1) for version in tagged)))


def delete_versions(
    catalog: UnitOfWork, table_id: int, branch: str | None, ranges: list[Range], stored: Iterable[int]
) -> int:
    """Mark versions as deleted and delete their records; return how many of them were `stored` or recorded."""
    key = branch_key(branch)
    recorded = catalog.recorded_versions(table_id, key, ranges)
    catalog.delete_versions(table_id, key, ranges)
    added = catalog.add_deleted_versions(table_id, key, ranges)
    existing = recorded.union(stored)
    return sum(1 for version in existing if any(first <= version < beyond for first, beyond in added))


def expired_versions(
    ctx: Context, record: TableRecord, branches: Mapping[str, lance.LanceDataset], now: int
) -> dict[str, list[StoredVersion]]:
    """Return deleted versions whose files may be removed, by branch ('' is main), ascending.

    These were deleted at least a retention time before `now` (milliseconds), and nothing older in their branch is
    needed. Removed in this order they leave no gap in a history without tags: readers count on that. `branches` has
    the dataset of each branch by its name.
    """
    before = now - ctx.settings.retention_ms
    expired: dict[str, list[StoredVersion]] = {}
    for name, dataset in branches.items():
        branch = branch_key(name)
        deleted = [span for span in ctx.store.deleted_versions(record.id, branch) if span.deleted_at <= before]
        if not deleted:
            continue
        tagged = tagged_versions(branches[MAIN_BRANCH], branch)
        for version, stored in sorted(stored_versions(ctx, record, branch).items()):
            if version in tagged:
                continue
            if version >= dataset.version or not any(version in span for span in deleted):
                break
            expired.setdefault(branch, []).append(stored)
    return expired
