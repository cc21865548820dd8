"""Versions of a table: what each one is, and going back to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lance_namespace.errors import InvalidInputError, InvalidTableStateError, TableVersionNotFoundError

from tiltyard.access import Privilege
from tiltyard.access.needs import on_table
from tiltyard.ids import MAIN_BRANCH
from tiltyard.operations import operation
from tiltyard.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.manifests import NamingScheme, manifest_name, versions_folder
from tiltyard.tables.committing import commit
from tiltyard.tables.opening import find_table, open_for_reading
from tiltyard.tables.version_commits import branch_key, finalize_pending

if TYPE_CHECKING:
    from collections.abc import Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.storage.files import FileStat
    from tiltyard.store import TableRecord, VersionRecord


_FEW = 16
"""So many versions are read one by one; more of them cost less together."""


def _find_manifest(ctx: Context, location: str, branch: str | None, version: int) -> tuple[str, FileStat] | None:
    """Path and state of a version's manifest, under either naming scheme."""
    for scheme in (NamingScheme.V2, NamingScheme.V1):
        path = f"{versions_folder(branch)}/{manifest_name(version, scheme)}"
        if found := ctx.storage.stat(location, path):
            return path, found
    return None


def _version(ctx: Context, table: TableRecord, branch: str | None, entry: Any) -> models.TableVersion:
    """One version as clients see it: the path has no scheme, as object stores name files.

    What a client said of it when it committed it is given back, besides what Lance knows.
    """
    location = table.location
    manifest = _find_manifest(ctx, location, branch, entry["version"])
    if manifest is None:
        raise TableVersionNotFoundError(f"No version {entry['version']}: it has just been cleaned up.")
    path, found = manifest
    told = _told(ctx, table, branch, entry["version"])
    return models.TableVersion(
        version=entry["version"],
        manifest_path=f"{urlsplit(location).path.lstrip('/')}/{path}",
        manifest_size=found.size,
        e_tag=(told and told.e_tag) or found.e_tag,
        timestamp_millis=int(entry["timestamp"].timestamp() * 1000),
        metadata={str(key): str(value) for key, value in entry["metadata"].items()} | (told.metadata if told else {}),
    )


def _told(ctx: Context, table: TableRecord, branch: str | None, version: int) -> VersionRecord | None:
    """The record of a version that was committed through the catalog."""
    if not table.managed:
        return None
    try:
        return ctx.store.describe_version(table.id, version, branch_key(branch))
    except TableVersionNotFoundError:
        return None


@operation(needs=on_table(Privilege.USE))
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
    dataset = _settled(ctx, record, request.branch)
    if dataset is None:
        return models.ListTableVersionsResponse(versions=[])
    down = bool(request.descending)

    def behind(after: int | None, count: int) -> Sequence[int]:
        if down and after is None and (top := _top(ctx, record.location, request.branch, dataset.version))[count - 1 :]:
            return top[:count]
        with lance_errors(dataset):
            numbers = sorted((found["version"] for found in dataset.version_refs()), reverse=down)
        return [found for found in numbers if after is None or (found < after if down else found > after)][:count]

    scope = f"versions {record.id} {request.branch or MAIN_BRANCH} {down}"
    page, token = ctx.paging.page(scope, request.page_token, request.limit, behind, lambda number: number)
    with lance_errors(dataset):
        entries = _entries(dataset, request.branch, page)
    return models.ListTableVersionsResponse(
        versions=[_version(ctx, record, request.branch, entry) for entry in entries], page_token=token
    )


def _top(ctx: Context, location: str, branch: str | None, latest: int) -> list[int]:
    """The latest version and the one before it, if that is still there; without listing all."""
    before = latest - 1
    return [latest, before] if before and _find_manifest(ctx, location, branch, before) else [latest]


def _entries(dataset: lance.LanceDataset, branch: str | None, page: Sequence[int]) -> list[Any]:
    """What Lance knows of some versions: each one by itself, or all in one go where there are many."""
    if len(page) <= _FEW:
        line = None if branch in (None, MAIN_BRANCH) else branch
        return [dataset.checkout_version((line, number)).get_version() for number in page]
    found = {entry["version"]: entry for entry in dataset.versions()}
    return [found[number] for number in page if number in found]


@operation(needs=on_table(Privilege.USE))
def describe_table_version(
    ctx: Context, request: models.DescribeTableVersionRequest
) -> models.DescribeTableVersionResponse:
    """Describe one version, the latest if none is named.

    Raises NamespaceNotFoundError, TableNotFoundError, TableVersionNotFoundError, TableBranchNotFoundError.
    """
    found = describe_version(ctx, find_table(ctx, request.id), request.branch, request.version)
    if found is None:
        raise TableVersionNotFoundError("This table has no versions yet: it is only declared.")
    return models.DescribeTableVersionResponse(version=found)


def describe_version(
    ctx: Context, record: TableRecord, branch: str | None, version: int | None
) -> models.TableVersion | None:
    """One version of a table, the latest without a number; None if it is only declared. Raises as the operation."""
    dataset = _settled(ctx, record, branch, version)
    return None if dataset is None else _version(ctx, record, branch, dataset.get_version())


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
    finalize_pending(ctx, record.id)
    try:
        options = ctx.storage.options(record.location)
        return ctx.storage.datasets.reader(record.location, options, branch, version)
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

    commit(ctx, request.id, branch, change)
    return models.RestoreTableResponse()
