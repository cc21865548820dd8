"""Versions of a table: what each one is, and going back to one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    TableVersionNotFoundError,
)

from tiltyard.access import Privilege
from tiltyard.access.needs import on_table
from tiltyard.model.ids import MAIN_BRANCH, check_name, table_id
from tiltyard.model.operations import CommitStep, operation
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locations import is_local
from tiltyard.storage.manifest_format import NamingScheme, manifest_name, versions_folder
from tiltyard.storage.version_cache import VersionInfo
from tiltyard.tables.commits.commit_requests import wire_version
from tiltyard.tables.commits.finalizing import finalize_pending, is_final
from tiltyard.tables.opening import find_table, open_for_reading
from tiltyard.tables.rows.conflict_retry import commit_with_retry
from tiltyard.tables.versions.deleted_versions import check_not_deleted, deleted_test
from tiltyard.tables.versions.records import branch_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.storage.files import FileStat
    from tiltyard.store import TableRecord, VersionRecord

    Read = Callable[[], VersionInfo]

_FEW = 16
"""So many versions are read one by one; more of them cost less together."""


def _find_manifest(ctx: Context, location: str, branch: str | None, version: int) -> tuple[str, FileStat] | None:
    """Path and state of a version's manifest, under either naming scheme."""
    files, folder = ctx.storage.files(location), versions_folder(branch)
    with lance_errors():
        for scheme in (NamingScheme.V2, NamingScheme.V1):
            path = f"{folder}/{manifest_name(version, scheme)}"
            if found := files.stat(f"{location}/{path}"):
                return path, found
    return None


def _version(ctx: Context, table: TableRecord, branch: str | None, version: int, read: Read) -> models.TableVersion:
    """One version as clients see it: the path has no scheme, as object stores name files.

    What a client said of it when it committed it is given back, besides what Lance knows, which is read only once
    for each manifest.
    """
    location = table.location
    manifest = _find_manifest(ctx, location, branch, version)
    if manifest is None:
        raise TableVersionNotFoundError(f"No version {version}: it has just been cleaned up.")
    path, found = manifest
    entry = ctx.storage.datasets.version_cache.get_or_read((location, path, found.e_tag), read)
    told = _told(ctx, table, branch, version)
    return models.TableVersion(
        version=version,
        manifest_path=f"{urlsplit(location).path.lstrip('/')}/{path}",
        manifest_size=found.size,
        e_tag=(told and told.e_tag) or found.e_tag,
        timestamp_millis=entry.timestamp,
        metadata=entry.metadata | (told.metadata if told else {}),
    )


def _if_there(
    ctx: Context, table: TableRecord, branch: str | None, version: int, read: Read
) -> models.TableVersion | None:
    """The same; None for a version that was cleaned up since the list was begun."""
    try:
        return _version(ctx, table, branch, version, read)
    except TableVersionNotFoundError:
        return None


def _told(ctx: Context, table: TableRecord, branch: str | None, version: int) -> VersionRecord | None:
    """The record of a version that was committed through the catalog."""
    if not table.managed:
        return None
    try:
        return ctx.store.describe_version(table.id, version, branch_key(branch))
    except TableVersionNotFoundError:
        return None


def _recorded(ctx: Context, request: models.ListTableVersionsRequest) -> Context | None:
    """For `inline`: whether the latest version is asked for, and its record says all, of a table on a disk."""
    if not _asks_for_newest(request):
        return None
    try:
        path = table_id(request.id)
        record = ctx.find_table(path)
        if not is_local(record.location) or _newest_recorded(ctx, record, request.branch) is None:
            return None
        return ctx.with_resolved({path: record})
    except LanceNamespaceError:
        return ctx  # the operation says it again, as quickly


@operation(needs=on_table(Privilege.USE), inline=_recorded, changes=False, commit_step=CommitStep.READ_LATEST)
def list_table_versions(ctx: Context, request: models.ListTableVersionsRequest) -> models.ListTableVersionsResponse:
    """List versions, oldest first, or newest first if `descending`; a table that is only declared has none.

    Clients of managed tables find the latest version by this list, descending, with a limit of 1: that costs the same
    whatever the number of versions.

    Raises NamespaceNotFoundError, TableNotFoundError, TableBranchNotFoundError, InvalidInputError.
    """
    return list_versions(ctx, find_table(ctx, request.id), request)


def list_versions(
    ctx: Context, record: TableRecord, request: models.ListTableVersionsRequest
) -> models.ListTableVersionsResponse:
    """What ListTableVersions answers for a table. Raises TableBranchNotFoundError, InvalidInputError."""
    down = bool(request.descending)
    scope = f"versions {record.id} {request.branch or MAIN_BRANCH} {down}"
    if _asks_for_newest(request):
        newest = _newest_recorded(ctx, record, request.branch)
        if newest is not None:
            token = ctx.paging.token(scope, newest.version) if newest.version > 1 else None
            return models.ListTableVersionsResponse(versions=[newest], page_token=token)
    dataset = _settled(ctx, record, request.branch)
    if dataset is None:
        return models.ListTableVersionsResponse(versions=[])

    is_deleted = deleted_test(ctx, record, request.branch, int(dataset.version))

    def behind(after: int | None, count: int) -> Sequence[int]:
        if down and after is None:
            top = [one for one in _top(ctx, record.location, request.branch, dataset.version) if not is_deleted(one)]
            if len(top) >= count:
                return top[:count]
        with lance_errors(dataset):
            numbers = sorted((found["version"] for found in dataset.version_refs()), reverse=down)
        numbers = [number for number in numbers if not is_deleted(number)]
        return [found for found in numbers if after is None or (found < after if down else found > after)][:count]

    page, token = ctx.paging.page(scope, request.page_token, request.limit, behind, lambda number: number)
    _check_sizes(ctx, record, request.branch, page)
    looked = (_if_there(ctx, record, request.branch, *each) for each in _readings(dataset, request.branch, page))
    found = [one for one in looked if one]
    if page and not found:  # an empty list would say that the table has no data
        raise TableVersionNotFoundError(f"No version {page[0]}: it has just been cleaned up.")
    return models.ListTableVersionsResponse(versions=found, page_token=token)


def _check_sizes(ctx: Context, record: TableRecord, branch: str | None, page: Sequence[int]) -> None:
    """Look at manifests before they are read. Raises InvalidInputError for one that is too large."""
    if len(page) > 2:
        ctx.storage.manifests.check_history(record.location, branch)
        return
    for number in page:
        ctx.storage.manifests.check_size(record.location, branch, number)


def _asks_for_newest(request: models.ListTableVersionsRequest) -> bool:
    return request.limit == 1 and bool(request.descending) and request.page_token is None


def _newest_recorded(ctx: Context, record: TableRecord, branch: str | None) -> models.TableVersion | None:
    """The latest version as its record has it, like CreateTableVersion's answer: nothing is opened.

    Committers of one table wait for each other while they ask for this. None where storage has more to say: the
    manifest is not in place, another follows it or the one before it is gone, or others may follow behind a gap.
    """
    if not record.managed or record.declared:
        return None
    check_name(branch or MAIN_BRANCH, "branch")
    found = ctx.store.latest_version(record.id, branch_key(branch))
    if found is None or not is_final(ctx, found):
        return None
    placed = ctx.services.finalized_log.placed(found.table_id, found.branch, found.version, found.naming_scheme)
    if not placed and ctx.storage.may_have_version_gaps(record.location):
        return None
    folder, scheme = f"{record.location}/{versions_folder(branch)}", NamingScheme(found.naming_scheme)

    def stat(version: int) -> FileStat | None:
        return ctx.storage.files(record.location).stat(f"{folder}/{manifest_name(version, scheme)}")

    with lance_errors():
        there = stat(found.version)
        if there is None or stat(found.version + 1) or (found.version > 1 and not stat(found.version - 1)):
            return None
    return wire_version(record, found.as_finalized(there.size, found.e_tag or there.e_tag))


def _top(ctx: Context, location: str, branch: str | None, latest: int) -> list[int]:
    """The latest version and the one before it, if that is still there; without listing all."""
    before = latest - 1
    return [latest, before] if before and _find_manifest(ctx, location, branch, before) else [latest]


def _readings(dataset: lance.LanceDataset, branch: str | None, page: Sequence[int]) -> Iterator[tuple[int, Read]]:
    """Versions, each with how to read what Lance knows of it: by itself, or all in one go where there are many."""
    line = None if branch in (None, MAIN_BRANCH) else branch
    if len(page) <= _FEW:
        for number in page:
            yield number, partial(_read, dataset, line, number)
        return
    with lance_errors(dataset):
        found = {entry["version"]: VersionInfo.of(entry) for entry in dataset.versions()}
    for number in page:
        if number in found:
            yield number, partial(found.__getitem__, number)


def _read(dataset: lance.LanceDataset, line: str | None, version: int) -> VersionInfo:
    with lance_errors(dataset):
        at = dataset if dataset.version == version else dataset.checkout_version((line, version))
        return VersionInfo.of(at.get_version())


@operation(needs=on_table(Privilege.USE), changes=False)
def describe_table_version(
    ctx: Context, request: models.DescribeTableVersionRequest
) -> models.DescribeTableVersionResponse:
    """Describe one version, the latest if none is named.

    Raises NamespaceNotFoundError, TableNotFoundError, TableVersionNotFoundError, TableBranchNotFoundError.
    """
    table = find_table(ctx, request.id)
    if request.version is not None:
        check_name(request.branch or MAIN_BRANCH, "branch")
        check_not_deleted(ctx, table, request.branch, request.version)
    found = describe_version(ctx, table, request.branch, request.version)
    if found is None:
        raise TableVersionNotFoundError("This table has no versions yet: it is only declared.")
    return models.DescribeTableVersionResponse(version=found)


def describe_version(
    ctx: Context, record: TableRecord, branch: str | None, version: int | None
) -> models.TableVersion | None:
    """One version of a table, the latest without a number; None if it is only declared. Raises as the operation.

    A version that was asked for before is not opened again: who reads a history asks for one after the other.
    """
    if version is None:
        dataset = _settled(ctx, record, branch)
        if dataset is None:
            return None
        return _version(ctx, record, branch, dataset.version, lambda: VersionInfo.of(dataset.get_version()))
    check_name(branch or MAIN_BRANCH, "branch")
    finalize_pending(ctx, record.id, recent=False)
    if _find_manifest(ctx, record.location, branch, version) is None and _settled(ctx, record, branch, version) is None:
        return None

    def read() -> VersionInfo:
        options = ctx.storage.options(record.location)
        return VersionInfo.of(ctx.storage.datasets.open_for_reading(record.location, options, branch, version).get_version())

    return _version(ctx, record, branch, version, read)


def latest_manifest(ctx: Context, record: TableRecord, branch: str | None) -> models.TableVersion | None:
    """Number and file of the latest version, and nothing more; None if the table is only declared."""
    dataset = _settled(ctx, record, branch)
    if dataset is None:
        return None
    manifest = _find_manifest(ctx, record.location, branch, dataset.version)
    if manifest is None:
        raise TableVersionNotFoundError(f"No version {dataset.version}: it has just been cleaned up.")
    path, found = manifest
    where = f"{urlsplit(record.location).path.lstrip('/')}/{path}"
    return models.TableVersion(version=dataset.version, manifest_path=where, manifest_size=found.size)


def _settled(
    ctx: Context, record: TableRecord, branch: str | None, version: int | None = None
) -> lance.LanceDataset | None:
    """A table after all recorded commits; None without data."""
    finalize_pending(ctx, record.id, recent=False)
    try:
        options = ctx.storage.options(record.location)
        return ctx.storage.datasets.open_for_reading(record.location, options, branch, version)
    except InvalidTableStateError:
        return None


@operation(needs=on_table(Privilege.WRITE))
def restore_table(ctx: Context, request: models.RestoreTableRequest) -> models.RestoreTableResponse:
    """Make an earlier version the latest again, as a new version; nothing of the history is lost.

    Raises TableVersionNotFoundError, TableBranchNotFoundError, InvalidTableStateError (declared only),
    ConcurrentModificationError.
    """
    if request.version < 1:
        raise InvalidInputError(f"version is {request.version}: the first version of a table is 1.")
    branch = None if request.branch in (None, MAIN_BRANCH) else request.branch
    open_for_reading(ctx, request.id, branch=branch, version=request.version)

    def change(dataset: lance.LanceDataset) -> None:
        dataset.checkout_version((branch, request.version)).restore()  # type: ignore[no-untyped-call]  # pylance's

    commit_with_retry(ctx, request.id, branch, change)
    return models.RestoreTableResponse()
