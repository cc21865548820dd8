"""Versions of a table: list them, describe one, restore one."""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lance_namespace.errors import (
    InvalidTableStateError,
    LanceNamespaceError,
    TableBranchNotFoundError,
    TableVersionNotFoundError,
)
from msgspec import structs

from tiltyard.access.needs import on_table
from tiltyard.change_feed.version_change import ChangedVersion, RowCounts
from tiltyard.model.branches import MAIN, Branch
from tiltyard.model.ids import table_id
from tiltyard.model.operations import CommitStep, operation
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import models
from tiltyard.runtime.pool import run_together
from tiltyard.storage.caches.version_cache import VersionInfo, version_info
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locations import is_local
from tiltyard.storage.manifests.manifest_format import NamingScheme, manifest_name, versions_folder
from tiltyard.tables.classification.followed_columns import follow_columns
from tiltyard.tables.commits.finalizing import finalize_pending, is_final
from tiltyard.tables.opening import check_version_number, find_table, open_for_reading
from tiltyard.tables.rows.conflict_retry import commit_with_retry
from tiltyard.tables.versions.deleted_versions import check_not_deleted, deletion_test
from tiltyard.tables.versions.records import listed_manifests, wire_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.storage.files import FileEntry, FileStat
    from tiltyard.store import TableRecord, VersionRecord
    from tiltyard.tables.commits.recovery import RecoveredCommit

    Read = Callable[[], VersionInfo]


_MAX_SINGLE_READS = 16
"""Up to so many versions are read one by one; more of them cost less in one read."""
_READERS, _READ_BYTES = 32, 64 << 20
"""Manifests on an object store that are read at the same time, and how many bytes they may have together."""


def _find_manifest(ctx: Context, location: str, branch: Branch, version: int) -> tuple[str, FileStat] | None:
    """Return the path and stat of a version's manifest, by either naming scheme; None if there is none."""
    files, folder = ctx.storage.files(location), versions_folder(branch)
    with lance_errors():
        for scheme in (NamingScheme.V2, NamingScheme.V1):
            path = f"{folder}/{manifest_name(version, scheme)}"
            if stat := files.stat(f"{location}/{path}"):
                return path, stat
    return None


def _version(ctx: Context, table: TableRecord, branch: Branch, version: int, read: Read) -> models.TableVersion:
    """Return one version as a response has it: the path has no URI scheme, as object stores name files.

    Its metadata is Lance's, which is `read` once for each manifest and cached, and what a client sent when it
    committed the version. Raises TableVersionNotFoundError.
    """
    location = table.location
    manifest = _find_manifest(ctx, location, branch, version)
    if manifest is None:
        raise TableVersionNotFoundError(f"No version {version}: it has just been cleaned up.")
    return _wire_version(ctx, table, branch, version, *manifest, read)


def _wire_version(
    ctx: Context, table: TableRecord, branch: Branch, version: int, path: str, stat: FileStat | FileEntry, read: Read
) -> models.TableVersion:
    """Return a version whose manifest was found in storage; `path` is below the table's folder."""
    info = version_info((table.location, path, stat.e_tag), read)
    record = _record_of(ctx, table, branch, version)
    return models.TableVersion(
        version=version,
        manifest_path=f"{urlsplit(table.location).path.lstrip('/')}/{path}",
        manifest_size=stat.size,
        e_tag=(record and record.e_tag) or stat.e_tag,
        timestamp_millis=info.timestamp,
        metadata=info.metadata | (record.metadata if record else {}),
    )


def _existing_version(
    ctx: Context, table: TableRecord, branch: Branch, version: int, read: Read
) -> models.TableVersion | None:
    """Return one version, as `_version` does; None for one that was cleaned up since its number was listed."""
    try:
        return _version(ctx, table, branch, version, read)
    except TableVersionNotFoundError:
        return None


def _record_of(ctx: Context, table: TableRecord, branch: Branch, version: int) -> VersionRecord | None:
    """Return the record of a version that was committed through the catalog; None for any other."""
    if not table.managed:
        return None
    try:
        return ctx.store.describe_version(table.id, version, branch.key)
    except TableVersionNotFoundError:
        return None


def _latest_is_recorded(ctx: Context, request: models.ListTableVersionsRequest) -> Context | None:
    """Decide for `inline`: only where the latest version alone is requested, and a local table's record has it all."""
    if not _wants_latest(request) or request.load_changes:  # which reads a transaction, and may compare rows
        return None
    try:
        path = table_id(request.id)
        record = ctx.find_table(path)
        if not is_local(record.location) or _latest_recorded(ctx, record, Branch.parse(request.branch)) is None:
            return None
        return ctx.with_resolved({path: record})
    except LanceNamespaceError:
        return ctx  # the operation raises it again, as quickly


@operation(needs=on_table(Privilege.USE), inline=_latest_is_recorded, changes=False, commit_step=CommitStep.READ_LATEST)
def list_table_versions(ctx: Context, request: models.ListTableVersionsRequest) -> models.ListTableVersionsResponse:
    """List versions, oldest first, or newest first if `descending`; a table that is only declared has none.

    Clients of managed tables find the latest version by this list, descending, with a limit of 1: that costs the same
    whatever the number of versions.

    With `load_changes` the metadata of each says what it did: its operation, and the rows that it changed. These are
    read from each version's transaction, so a page has MAX_CHANGES at most.

    Raises NamespaceNotFoundError, TableNotFoundError, TableBranchNotFoundError, InvalidInputError.
    """
    record = find_table(ctx, request.id)
    if not request.load_changes:
        return list_versions(ctx, record, request)
    limit = min(request.limit or MAX_CHANGES, MAX_CHANGES)
    response = list_versions(ctx, record, structs.replace(request, limit=limit))
    if response.versions:
        _load_changes(ctx, record, Branch.parse(request.branch), response.versions)
    return response


def list_versions(
    ctx: Context, record: TableRecord, request: models.ListTableVersionsRequest
) -> models.ListTableVersionsResponse:
    """Return the response of ListTableVersions for a table. Raises TableBranchNotFoundError, InvalidInputError."""
    branch, descending = Branch.parse(request.branch), bool(request.descending)
    scope = f"versions {record.id} {branch.name} {descending}"
    if _wants_latest(request):
        latest = _latest_recorded(ctx, record, branch)
        if latest is not None:
            token = ctx.paging.make_token(scope, latest.version) if latest.version > 1 else None
            return models.ListTableVersionsResponse(versions=[latest], page_token=token)
    if branch.is_main and not is_local(record.location):
        return _list_objects(ctx, record, request, scope)
    dataset = _open_finalized(ctx, record, branch)
    if dataset is None:
        return models.ListTableVersionsResponse(versions=[])

    is_deleted = deletion_test(ctx, record, branch, int(dataset.version))

    def next_numbers(after: int | None, count: int) -> Sequence[int]:
        if descending and after is None:
            top = _last_two(ctx, record.location, branch, dataset.version)
            top = [number for number in top if not is_deleted(number)]
            if len(top) >= count:
                return top[:count]
        with lance_errors(dataset):
            numbers = sorted((reference["version"] for reference in dataset.version_refs()), reverse=descending)
        numbers = [number for number in numbers if not is_deleted(number)]
        return [number for number in numbers if after is None or (number < after if descending else number > after)][
            :count
        ]

    page, token = ctx.paging.fetch_page(scope, request.page_token, request.limit, next_numbers, lambda number: number)
    _check_sizes(ctx, record, branch, page)
    readers = _readers(dataset, branch, page)
    candidates = (_existing_version(ctx, record, branch, number, read) for number, read in readers)
    versions = [version for version in candidates if version]
    if page and not versions:  # an empty list would say that the table has no data
        raise TableVersionNotFoundError(f"No version {page[0]}: it has just been cleaned up.")
    return models.ListTableVersionsResponse(versions=versions, page_token=token)


def _load_changes(ctx: Context, record: TableRecord, branch: Branch, versions: Sequence[models.TableVersion]) -> None:
    """Add to the metadata of versions what each of them did. Raises TableVersionNotFoundError, InvalidInputError."""
    ctx.storage.manifests.check_history(record.location, branch)
    first, before = min(version.version for version in versions), None
    if first > 1:
        with suppress(TableVersionNotFoundError, TableBranchNotFoundError):  # it is gone, or not of this branch
            before = describe_version(ctx, record, branch, first - 1)
    dataset = _open_finalized(ctx, record, branch)
    assert dataset is not None
    load_changes(ctx, dataset, record.location, branch, [*([before] if before else []), *versions])


def _list_objects(
    ctx: Context, record: TableRecord, request: models.ListTableVersionsRequest, scope: str
) -> models.ListTableVersionsResponse:
    """Return versions of main on an object store, whose list has sizes and entity tags of the manifests.

    Manifests that were not read before are read at the same time: two round trips in all, up to _READERS of these.
    """
    location, descending = record.location, bool(request.descending)
    finalize_pending(ctx, record.id, recent=False)
    stored = listed_manifests(ctx, location)
    if not stored:
        return models.ListTableVersionsResponse(versions=[])
    is_deleted = deletion_test(ctx, record, MAIN, max(stored))
    numbers = [number for number in sorted(stored, reverse=descending) if not is_deleted(number)]

    def next_numbers(after: int | None, count: int) -> Sequence[int]:
        rest = numbers if after is None else [n for n in numbers if (n < after if descending else n > after)]
        return rest[:count]

    def version_of(number: int) -> models.TableVersion | None:
        path = f"{versions_folder(MAIN)}/{stored[number].path}"

        def read() -> VersionInfo:
            with lance_errors(location):
                return VersionInfo.of_manifest(ctx.storage.files(location).read(f"{location}/{path}"), number)

        try:
            return _wire_version(ctx, record, MAIN, number, path, stored[number], read)
        except LanceNamespaceError as error:
            if isinstance(error.__cause__, FileNotFoundError):  # it was cleaned up since it was listed
                return None
            raise

    page, token = ctx.paging.fetch_page(scope, request.page_token, request.limit, next_numbers, lambda number: number)
    largest = max([1, *(stored[number].size for number in page)])
    readers = max(1, min(_READERS, _READ_BYTES // largest))
    versions = [version for version in run_together(version_of, page, readers) if version]
    if page and not versions:  # an empty list would say that the table has no data
        raise TableVersionNotFoundError(f"No version {page[0]}: it has just been cleaned up.")
    return models.ListTableVersionsResponse(versions=versions, page_token=token)


def _check_sizes(ctx: Context, record: TableRecord, branch: Branch, page: Sequence[int]) -> None:
    """Check the sizes of manifests before they are read. Raises InvalidInputError for one that is too large."""
    if len(page) > 2:
        ctx.storage.manifests.check_history(record.location, branch)
        return
    for number in page:
        ctx.storage.manifests.check_size(record.location, branch, number)


def _wants_latest(request: models.ListTableVersionsRequest) -> bool:
    return request.limit == 1 and bool(request.descending) and request.page_token is None


def _latest_recorded(ctx: Context, record: TableRecord, branch: Branch) -> models.TableVersion | None:
    """Return the latest version from its record, as CreateTableVersion returns it, without opening the table.

    Committers of one table wait for each other while they request this. None where storage has to be read: the
    manifest is not final, a version follows it, the one before it is gone, or versions may follow behind a gap.
    """
    if not record.managed or record.declared:
        return None
    latest = ctx.store.latest_version(record.id, branch.check().key)
    if latest is None or not is_final(ctx, latest):
        return None
    is_ours = ctx.services.commit_log.is_latest(latest.table_id, latest.branch, latest.version, latest.naming_scheme)
    if not is_ours and ctx.storage.may_have_version_gaps(record.location):
        return None
    folder, scheme = f"{record.location}/{versions_folder(branch)}", NamingScheme(latest.naming_scheme)
    numbers = [latest.version, latest.version + 1, *([latest.version - 1] if latest.version > 1 else [])]
    with lance_errors():
        manifest, following, *before = ctx.storage.files(record.location).stat_all(
            [f"{folder}/{manifest_name(number, scheme)}" for number in numbers]
        )
    if manifest is None or following is not None or None in before:
        return None
    return wire_version(record, latest.as_finalized(manifest.size, latest.e_tag or manifest.e_tag))


def _last_two(ctx: Context, location: str, branch: Branch, latest: int) -> list[int]:
    """Return the latest version and the one before it, if that is still there, without listing all."""
    before = latest - 1
    return [latest, before] if before and _find_manifest(ctx, location, branch, before) else [latest]


def _readers(dataset: lance.LanceDataset, branch: Branch, page: Sequence[int]) -> Iterator[tuple[int, Read]]:
    """Yield versions, each with a function that reads its metadata: by itself, or all at once where there are many."""
    if len(page) <= _MAX_SINGLE_READS:
        for number in page:
            yield number, partial(_read, dataset, branch, number)
        return
    with lance_errors(dataset):
        infos = {entry["version"]: VersionInfo.of(entry) for entry in dataset.versions()}
    for number in page:
        if number in infos:
            yield number, partial(infos.__getitem__, number)


def _read(dataset: lance.LanceDataset, branch: Branch, version: int) -> VersionInfo:
    with lance_errors(dataset):
        at = dataset if dataset.version == version else dataset.checkout_version((branch.lance_name, version))
        return VersionInfo.of(at.get_version())


@operation(needs=on_table(Privilege.USE), changes=False)
def describe_table_version(
    ctx: Context, request: models.DescribeTableVersionRequest
) -> models.DescribeTableVersionResponse:
    """Describe one version; the latest without a number.

    Raises NamespaceNotFoundError, TableNotFoundError, TableVersionNotFoundError, TableBranchNotFoundError.
    """
    table, branch = find_table(ctx, request.id), Branch.parse(request.branch)
    if request.version is not None:
        check_not_deleted(ctx, table, branch.check(), request.version)
    version = describe_version(ctx, table, branch, request.version)
    if version is None:
        raise TableVersionNotFoundError("This table has no versions yet: it is only declared.")
    return models.DescribeTableVersionResponse(version=version)


def describe_version(
    ctx: Context, record: TableRecord, branch: Branch, version: int | None
) -> models.TableVersion | None:
    """Return one version of a table, the latest without a number; None if it is only declared. Raises as the operation.

    The metadata of a version that was described before is cached: clients describe the versions of a history one by
    one.
    """
    if version is None:
        dataset = _open_finalized(ctx, record, branch)
        if dataset is None:
            return None
        return _version(ctx, record, branch, dataset.version, lambda: VersionInfo.of(dataset.get_version()))
    branch.check()
    finalize_pending(ctx, record.id, recent=False)
    manifest = _find_manifest(ctx, record.location, branch, version)
    if manifest is None and _open_finalized(ctx, record, branch, version) is None:
        return None

    def read() -> VersionInfo:
        return VersionInfo.of(ctx.storage.datasets.open_for_reading(record.location, branch, version).get_version())

    return _version(ctx, record, branch, version, read)


def latest_manifest(ctx: Context, record: TableRecord, branch: Branch) -> models.TableVersion | None:
    """Return number and file of the latest version, without its metadata; None if the table is only declared."""
    dataset = _open_finalized(ctx, record, branch)
    if dataset is None:
        return None
    manifest = _find_manifest(ctx, record.location, branch, dataset.version)
    if manifest is None:
        raise TableVersionNotFoundError(f"No version {dataset.version}: it has just been cleaned up.")
    path, stat = manifest
    wire_path = f"{urlsplit(record.location).path.lstrip('/')}/{path}"
    return models.TableVersion(version=dataset.version, manifest_path=wire_path, manifest_size=stat.size)


def _open_finalized(
    ctx: Context, record: TableRecord, branch: Branch, version: int | None = None
) -> lance.LanceDataset | None:
    """Open a table after finalizing its pending versions; None without data."""
    finalize_pending(ctx, record.id, recent=False)
    try:
        return ctx.storage.datasets.open_for_reading(record.location, branch, version)
    except InvalidTableStateError:
        return None


def recover_restore(
    ctx: Context, request: models.RestoreTableRequest, commit: RecoveredCommit
) -> models.RestoreTableResponse:
    """Return the response of an interrupted restore that has committed."""
    return models.RestoreTableResponse()


@operation(needs=on_table(Privilege.WRITE), recovered_by=recover_restore)
def restore_table(ctx: Context, request: models.RestoreTableRequest) -> models.RestoreTableResponse:
    """Make an earlier version the latest again, as a new version; the history stays.

    Raises TableVersionNotFoundError, TableBranchNotFoundError, InvalidTableStateError (declared only),
    ConcurrentModificationError.
    """
    check_version_number(request.version)
    branch = Branch.parse(request.branch)
    open_for_reading(ctx, request.id, branch=branch, version=request.version)

    def change(dataset: lance.LanceDataset) -> None:
        dataset.checkout_version((branch.lance_name, request.version)).restore()  # type: ignore[no-untyped-call]  # pylance's

    commit_with_retry(ctx, request.id, branch, change)
    if branch.is_main:
        opened = open_for_reading(ctx, request.id)
        follow_columns(ctx, opened.record, opened.dataset)
    return models.RestoreTableResponse()


MAX_CHANGES = 100
"""Versions of a page that says what each of them did."""
_READERS = 16
"""Transactions on an object store that are read at the same time."""


def load_changes(
    ctx: Context, dataset: lance.LanceDataset, location: str, branch: Branch, versions: Sequence[models.TableVersion]
) -> None:
    """Add to the metadata of versions what each of them did (`VersionChange.texts`); one without the version before it
    among them says no more than its own transaction does.

    `dataset` is of any version of the branch. Raises what `lance_errors` raises.
    """
    counts = {version.version: _row_counts(version) for version in versions}

    def load(version: models.TableVersion) -> None:
        ctx.check_deadline()
        number = version.version
        before = counts.get(number - 1)

        def read() -> VersionInfo:
            with lance_errors(dataset):
                changed = ChangedVersion(copy(dataset), branch.lance_name, number, counts[number], before)
                return VersionInfo(version.timestamp_millis or 0, changed.describe().texts())

        key = (location, f"{version.manifest_path} after {before}", version.e_tag)
        version.metadata = (version.metadata or {}) | version_info(key, read).metadata

    run_together(load, versions, 1 if is_local(location) else _READERS)


def _row_counts(version: models.TableVersion) -> RowCounts:
    metadata = version.metadata or {}
    return RowCounts(int(metadata.get("total_rows", 0)), int(metadata.get("total_fragments", 0)))
