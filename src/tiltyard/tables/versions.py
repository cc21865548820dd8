"""Versions of a table: what each one is, and going back to one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lance_namespace.errors import InvalidInputError, InvalidTableStateError, TableVersionNotFoundError

from tiltyard.ids import MAIN_BRANCH
from tiltyard.operations import operation
from tiltyard.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.manifests import NamingScheme, manifest_name, versions_folder
from tiltyard.tables.committing import commit
from tiltyard.tables.opening import find_table, open_for_reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    import lance

    from tiltyard.context import Context


def _version(ctx: Context, location: str, branch: str | None, entry: Any) -> models.TableVersion:
    """One version as clients see it: the path has no scheme, as object stores name files."""
    for scheme in (NamingScheme.V2, NamingScheme.V1):
        path = f"{versions_folder(branch)}/{manifest_name(entry['version'], scheme)}"
        found = ctx.storage.stat(location, path)
        if found is not None:
            return models.TableVersion(
                version=entry["version"],
                manifest_path=f"{urlsplit(location).path.lstrip('/')}/{path}",
                manifest_size=found.size,
                e_tag=found.e_tag,
                timestamp_millis=int(entry["timestamp"].timestamp() * 1000),
                metadata={str(key): str(value) for key, value in entry["metadata"].items()},
            )
    raise TableVersionNotFoundError(f"No version {entry['version']}: it has just been cleaned up.")


@operation
def list_table_versions(ctx: Context, request: models.ListTableVersionsRequest) -> models.ListTableVersionsResponse:
    """List versions, oldest first, or newest first if `descending`; a table that is only declared has none.

    Raises NamespaceNotFoundError, TableNotFoundError, TableBranchNotFoundError, InvalidInputError.
    """
    record = find_table(ctx, request.id)
    try:
        dataset = open_for_reading(ctx, request.id, branch=request.branch).dataset
    except InvalidTableStateError:
        return models.ListTableVersionsResponse(versions=[])
    with lance_errors(dataset):
        entries = sorted(dataset.versions(), key=lambda entry: entry["version"], reverse=bool(request.descending))

    def behind(after: int | None, count: int) -> Sequence[Any]:
        if after is None:
            return entries[:count]
        later = (lambda found: found < after) if request.descending else (lambda found: found > after)
        return [entry for entry in entries if later(entry["version"])][:count]

    scope = f"versions {record.id} {request.branch or MAIN_BRANCH} {bool(request.descending)}"
    page, token = ctx.paging.page(scope, request.page_token, request.limit, behind, lambda entry: entry["version"])
    return models.ListTableVersionsResponse(
        versions=[_version(ctx, record.location, request.branch, entry) for entry in page], page_token=token
    )


@operation
def describe_table_version(
    ctx: Context, request: models.DescribeTableVersionRequest
) -> models.DescribeTableVersionResponse:
    """Describe one version, the latest if none is named.

    Raises NamespaceNotFoundError, TableNotFoundError, TableVersionNotFoundError, TableBranchNotFoundError.
    """
    record = find_table(ctx, request.id)
    try:
        dataset = open_for_reading(ctx, request.id, branch=request.branch, version=request.version).dataset
    except InvalidTableStateError as error:
        raise TableVersionNotFoundError("This table has no versions yet: it is only declared.") from error
    return models.DescribeTableVersionResponse(version=_version(ctx, record.location, request.branch, _entry(dataset)))


def _entry(dataset: lance.LanceDataset) -> Any:
    with lance_errors(dataset):
        return next(entry for entry in dataset.versions() if entry["version"] == dataset.version)


@operation
def restore_table(ctx: Context, request: models.RestoreTableRequest) -> models.RestoreTableResponse:
    """Make an earlier version the latest again, as a new version; nothing of the history is lost.

    Raises TableVersionNotFoundError, TableBranchNotFoundError, InvalidTableStateError (declared only),
    ConcurrentModificationError.
    """
    if request.version < 1:
        raise InvalidInputError(f"version is {request.version}: the first version of a table is 1.")
    branch = None if request.branch in (None, MAIN_BRANCH) else request.branch
    open_for_reading(ctx, request.id, branch=branch, version=request.version)
    commit(ctx, request.id, branch, lambda dataset: dataset.checkout_version((branch, request.version)).restore())
    return models.RestoreTableResponse()
