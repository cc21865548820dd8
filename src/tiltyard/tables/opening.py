"""Open a table's dataset by the table's id; check and read its rows."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    TableBranchNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.context import OpenTable, StaleReadError
from tiltyard.model.branches import MAIN
from tiltyard.model.ids import table_id
from tiltyard.model.views.plain_views import refuse_view
from tiltyard.runtime.outage_log import StorageUnavailableError
from tiltyard.storage.caches.version_cache import CachedVersion
from tiltyard.storage.errors import IncompleteFileError, lance_errors
from tiltyard.storage.locations import is_local
from tiltyard.tables.commits.finalizing import finalize_pending, has_unfinished
from tiltyard.tables.rte_specification import PROPERTY
from tiltyard.tables.versions.deleted_versions import check_not_deleted
from tiltyard.tables.versions.records import recorded_latest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    import lance

    from tiltyard.context import Context, Freshness
    from tiltyard.model.branches import Branch
    from tiltyard.store import TableRecord

FRESHNESS_SECONDS = 2.0
"""How long a request waits at most for the state that it asks for."""
_FRESHNESS_PAUSE_SECONDS = 0.05


def find_table(ctx: Context, names: Sequence[str] | None) -> TableRecord:
    """Return a table's record. Raises NamespaceNotFoundError, TableNotFoundError, InvalidInputError."""
    return ctx.find_table(table_id(names))


def check_rte_enabled(ctx: Context, names: Sequence[str] | None) -> None:
    """Check that a table has the specification of a real-time engine, which a request asks for (`use_rte: true`).

    Raises InvalidInputError, and as `find_table`.
    """
    if PROPERTY not in find_table(ctx, names).properties:
        raise InvalidInputError(
            "use_rte (use_lsm) is true, and this table has no RTE specification: enable it, or leave the field out."
        )


def check_records_versions(table: TableRecord, what: str) -> None:
    """Raise UnsupportedOperationError for a table on which nothing can be enforced: not all its commits are seen."""
    if not table.managed or table.mount_id is not None:
        raise UnsupportedOperationError(
            f"{what} is enforced by the record of each version: only on tables of this catalog whose commits go "
            "through the server (managed versioning)."
        )


def check_version_number(version: int) -> None:
    """Raise InvalidInputError for a number that no version has."""
    if version < 1:
        raise InvalidInputError(f"version is {version}: the first version of a table is 1.")


def open_for_reading(
    ctx: Context,
    names: Sequence[str] | None,
    *,
    branch: Branch = MAIN,
    version: int | None = None,
    tag: str | None = None,
    by_catalog: bool = False,
) -> OpenTable:
    """Open a table at the latest version of a branch, or at a version or tag. The dataset is shared: never mutate it.

    With `by_catalog`, for requests that only read rows, the latest version on an object store is the one that the
    catalog has recorded, as long as a list of the store confirmed it a moment ago. All others look it up in storage,
    since a folder may have been restored from a copy meanwhile.

    Raises NamespaceNotFoundError, TableNotFoundError, InvalidTableStateError (declared, no data yet; a view),
    TableVersionNotFoundError, TableTagNotFoundError, TableBranchNotFoundError, StaleReadError (the latest version is
    older than what the request asks for).
    """
    record = find_table(ctx, names)
    opened = ctx.open_table
    if opened is not None and opened.record == record and branch.is_main and version is None and tag is None:
        return opened
    refuse_view(record.properties)
    if ctx.freshness is not None and version is None and tag is None:
        return OpenTable(record, _open_fresh(ctx, record, branch, ctx.freshness))
    _finalize_pending(ctx, record)
    if version is not None:
        check_not_deleted(ctx, record, branch, version)
    storage = ctx.storage
    recorded = recorded_latest(ctx, record, branch) if by_catalog else None
    return OpenTable(record, storage.datasets.open_snapshot(record.location, branch, version, tag, recorded))


def with_disk_cache(ctx: Context, table: OpenTable, branch: Branch, version: int | None) -> OpenTable:
    """Return a table opened so that this machine's disk is read first: from its copy, or by ranges; else the same.

    For requests that only read rows; `branch` and `version` are those that the request names.
    """
    is_latest = version is None and branch.is_main
    cache, location = ctx.storage.datasets.disk_cache, table.record.location
    snapshot = cache.open(location, table.snapshot, is_latest=is_latest)
    return table if snapshot is table.snapshot else OpenTable(table.record, snapshot)


def explain_disk_cache(ctx: Context, table: OpenTable, branch: Branch, version: int | None) -> str | None:
    """Return a line for a plan that says where a table is read from; None where nothing is kept on disk."""
    cache, location = ctx.storage.datasets.disk_cache, table.record.location
    if not cache.max_bytes or is_local(location):
        return None
    is_latest = version is None and branch.is_main
    reason = cache.state(location, table.snapshot) if is_latest else "only the latest version of main is copied"
    if reason is None:
        return "DiskCache: read from the copy on the server's disk."
    if cache.ranges.reads(table.snapshot):
        return f"DiskCache: read by ranges, through the server's disk: {reason}."
    return f"DiskCache: read from the object store: {'; '.join(filter(None, (reason, cache.ranges.reason)))}."


def open_cached(ctx: Context, names: Sequence[str] | None) -> OpenTable | None:
    """Open a table at its latest version, if that takes no more than lookups of local files' names; None otherwise.

    Raises NamespaceNotFoundError, TableNotFoundError, InvalidInputError.
    """
    record = find_table(ctx, names)
    if not ctx.storage.is_latest_cached(record.location):
        return None
    if _has_pending_versions(ctx, record) and has_unfinished(ctx, record):
        return None
    snapshot = ctx.storage.datasets.cached_snapshot(record.location)
    if snapshot is None or (ctx.freshness and not ctx.freshness.is_met_by(int(snapshot.dataset.version), ctx.clock())):
        return None
    return OpenTable(record, snapshot)


def _open_fresh(ctx: Context, record: TableRecord, branch: Branch, freshness: Freshness) -> CachedVersion:
    """Open the latest version of a branch once it is fresh enough; wait for that for a moment, never on the event loop.

    The version is looked up at each request, so it is fresh, but for what another server has not made visible yet.
    Raises StaleReadError, and what opening the table raises.
    """
    give_up_at = time.monotonic() + (0 if _is_on_event_loop() else FRESHNESS_SECONDS)
    datasets = ctx.storage.datasets
    while True:
        _finalize_pending(ctx, record)
        looked_up_at = ctx.clock()
        snapshot = datasets.open_snapshot(record.location, branch)
        version = int(snapshot.dataset.version)
        if freshness.is_met_by(version, looked_up_at):
            return snapshot
        if time.monotonic() >= give_up_at:
            raise StaleReadError(_staleness(freshness, version))
        time.sleep(_FRESHNESS_PAUSE_SECONDS)
        ctx.check_deadline()
        datasets.forget(record.location, branch)


def _is_on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _staleness(freshness: Freshness, version: int) -> str:
    if version < freshness.version:
        return f"The latest version here is {version}, and version {freshness.version} is asked for: try again."
    return "The state of a time that is ahead of this server's clock is asked for: try again, or set the clocks."


def _finalize_pending(ctx: Context, record: TableRecord) -> None:
    """Finalize what is recorded of a table and not final: readers see a batch on all its tables, or on none."""
    if _has_pending_versions(ctx, record):
        finalize_pending(ctx, record.id, recent=False)


def _has_pending_versions(ctx: Context, record: TableRecord) -> bool:
    return record.managed and ctx.store.has_pending_versions(record.id)


def open_for_writing(ctx: Context, names: Sequence[str] | None, *, branch: Branch = MAIN) -> OpenTable:
    """Open a table with a dataset that is not shared, to commit through. Raises what `open_for_reading` raises."""
    record = find_table(ctx, names)
    return OpenTable(record, CachedVersion(open_to_commit(ctx, record, branch)))


def finish_direct_commit(
    ctx: Context, record: TableRecord, branch: Branch, version: int, *, is_new: bool = True
) -> None:
    """Make a version durable that was committed to storage itself, and note its table for upkeep.

    Nothing else tells that a table which is not managed got a version. One that is not new, where there was nothing to
    commit, counts for nobody's quota. Raises as `make_commit_durable` does.
    """
    make_commit_durable(ctx, record, branch, version)
    if is_new:
        ctx.services.quotas.note_version(record.id, branch.key, version, ctx.principal)
    if branch.is_main:
        ctx.services.commit_log.add_change(record.id)


def make_commit_durable(ctx: Context, record: TableRecord, branch: Branch, version: int) -> None:
    """Check a version that was committed to storage itself, and make it durable.

    Raises ServiceUnavailableError for one that is not whole: it stays, with its files, until the table is repaired.
    """
    try:
        ctx.storage.make_version_durable(record.location, branch, version)
    except (IncompleteFileError, InvalidTableStateError, InvalidInputError) as error:
        raise StorageUnavailableError(
            f"Version {version} was committed, and is not whole, as on a full disk: look at the table before you send "
            "this again, and repair it (`tiltyard repair`).",
            record.location,
        ) from error


@contextmanager
def finishing_direct_commits(
    ctx: Context, record: TableRecord, branch: Branch, since: int | None = None
) -> Iterator[None]:
    """Make the versions durable that the block commits to storage itself, those after `since` or the latest one before.

    Nothing is left to do for a managed table, whose commit route does it. Raises as `make_commit_durable` does.
    """
    if record.managed or not is_local(record.location):
        yield
        return
    first = int(open_to_commit(ctx, record, branch).version) if since is None else since
    try:
        yield
    finally:  # also where a job was canceled, or has failed: it may have committed before
        for version in range(first + 1, int(open_to_commit(ctx, record, branch).version) + 1):
            make_commit_durable(ctx, record, branch, version)


def open_to_commit(ctx: Context, record: TableRecord, branch: Branch, *, durable: bool = False) -> lance.LanceDataset:
    """Open a dataset at a table's latest version, whose commits take the table's commit route. Raises as above.

    `durable` says that what the commits bring is on the disk already.
    """
    storage = ctx.storage
    return storage.datasets.open_for_writing(record.location, branch, ctx.commit_route(record, durable=durable))


def open_to_check(
    ctx: Context, table: TableRecord, branch: Branch, columns: Iterable[str]
) -> lance.LanceDataset | None:
    """Open a branch's latest version to check rows that have these columns; None for one that was just deleted.

    Raises InvalidInputError for a column that the branch has not.
    """
    finalize_pending(ctx, table.id)
    try:
        dataset = ctx.storage.datasets.open_for_reading(table.location, branch)
    except TableBranchNotFoundError:
        return None
    for name in columns:
        if name not in dataset.schema.names:
            raise InvalidInputError(f"The branch '{branch.name}' has no column '{name}': delete it, or add the column.")
    return dataset


def read_fragments(
    dataset: lance.LanceDataset, columns: Sequence[str], fragments: Collection[int] | None, batch_rows: int
) -> Iterator[pa.Table]:
    """Yield the rows of fragments, None for all, in batches; those that the version does not have are left out.

    Raises what Lance raises, translated.
    """
    if fragments is not None and not fragments:
        return
    with lance_errors(dataset):
        chosen = None if fragments is None else existing_fragments(dataset, sorted(fragments))
        scanner = dataset.scanner(columns=list(columns), fragments=chosen, batch_size=batch_rows)
        for batch in scanner.to_batches():
            yield pa.Table.from_batches([batch])


def existing_fragments(dataset: lance.LanceDataset, numbers: Iterable[int]) -> list[lance.LanceFragment]:
    """Return fragments by their ids; those that the version does not have are left out."""
    fragments = (dataset.get_fragment(number) for number in numbers)
    return [fragment for fragment in fragments if fragment is not None]
