"""Branches of a table: histories of their own, each from a version of another branch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    InvalidInputError,
    TableAlreadyExistsError,
    TableBranchAlreadyExistsError,
    TableBranchNotFoundError,
)

from tiltyard.access.needs import on_table
from tiltyard.model.branches import MAIN, Branch
from tiltyard.model.ids import check_ref
from tiltyard.model.operations import operation
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import models
from tiltyard.runtime.process import wall_clock
from tiltyard.storage.errors import IncompleteFileError, lance_errors
from tiltyard.storage.locations import is_local
from tiltyard.storage.manifests.manifest_format import FINAL_NAME, branch_file
from tiltyard.storage.reference_files import list_references
from tiltyard.tables.opening import open_for_reading, open_for_writing, open_to_check
from tiltyard.tables.versions.records import delete_branch_records
from tiltyard.tables.versions.reference_changes import changing_reference
from tiltyard.tables.versions.removal_turns import confirm_reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import lance

    from tiltyard.context import Context, OpenTable

_SETTLED_MS = 2000
"""How long a client that creates a branch in the table's folder itself may take for it."""


@operation(needs=on_table(Privilege.WRITE))
def create_table_branch(ctx: Context, request: models.CreateTableBranchRequest) -> models.CreateTableBranchResponse:
    """Create a branch at a version of main, or of `from_branch`; the latest without `from_version`.

    Raises TableBranchAlreadyExistsError, TableBranchNotFoundError and TableVersionNotFoundError (of its origin),
    InvalidInputError (a name that no branch can have), ConcurrentModificationError (old versions are being removed).
    """
    check_ref(request.name, "branch")
    if request.name == MAIN.name:
        raise TableBranchAlreadyExistsError("The branch 'main' exists already.")
    table = open_for_writing(ctx, request.id)
    dataset = table.dataset
    exists_error = TableBranchAlreadyExistsError(f"The branch '{request.name}' exists already.")
    if request.name in branches_of(ctx, table):
        raise exists_error
    origin = Branch.parse(request.from_branch)
    start = open_for_reading(ctx, request.id, branch=origin, version=request.from_version).dataset
    branch, location = Branch(request.name), table.record.location
    try:
        with changing_reference(ctx, table.record, branch_file(branch)), lance_errors(dataset):
            _remove_unfinished(ctx, location, branch)
            delete_branch_records(ctx, table.record, branch)  # of one whose deletion bypassed the server, too
            dataset.create_branch(request.name, (origin.lance_name, start.version))
            ctx.storage.make_durable([f"{branch.base(location)}/"], missing_ok=True)
    except IncompleteFileError:  # its folder would keep the name
        delete_branch_records(ctx, table.record, branch)
        _delete_first_version(ctx, location, branch)
        raise
    except TableAlreadyExistsError as error:  # another request is creating it: its folder has a dataset already
        raise exists_error from error
    confirm_reference(ctx, table.record, origin, int(start.version), partial(_delete_branch, ctx, table, branch))
    return models.CreateTableBranchResponse()


def _remove_unfinished(ctx: Context, location: str, branch: Branch) -> None:
    """Remove what a loss of power, or a kill, has left of a branch on a disk whose creation did not get to its file.

    It has at most its first version, and nothing was written to it since: other folders are left, whose names are taken
    then. The caller holds off other creations of branches of the table.
    """
    base = branch.base(location)
    if not is_local(location) or not ctx.storage.is_empty(f"{base}/data"):
        return
    files = ctx.storage.files(location)
    with lance_errors(location):
        versions = [entry for entry in files.walk(f"{base}/_versions") if FINAL_NAME.match(entry.path)]
        if files.is_file(f"{location}/{branch_file(branch)}") or len(versions) > 1:
            return
    if any(abs(wall_clock() - entry.modified) < _SETTLED_MS for entry in versions):
        return  # a client that writes to the folder may be creating the branch just now
    _delete_first_version(ctx, location, branch)


def _delete_first_version(ctx: Context, location: str, branch: Branch) -> None:
    for folder in ("_versions", "_transactions"):
        ctx.storage.delete_folder(f"{branch.base(location)}/{folder}")


@operation(needs=on_table(Privilege.USE), changes=False)
def list_table_branches(ctx: Context, request: models.ListTableBranchesRequest) -> models.ListTableBranchesResponse:
    """List the branches other than main, by name. Raises what opening a table raises, InvalidInputError."""
    table = open_for_reading(ctx, request.id)
    branches = branches_of(ctx, table)
    page, token = ctx.paging.cut_page(f"branches {table.record.id}", request.page_token, request.limit, branches)
    return models.ListTableBranchesResponse(
        branches={name: _contents(branch) for name, branch in page.items()}, page_token=token
    )


def branches_of(ctx: Context, table: OpenTable) -> Mapping[str, Any]:
    """Return all branches other than main, by name."""
    ctx.storage.manifests.check_references(table.record.location)
    with lance_errors(table.dataset):
        return list_references(table.dataset.branches)


def check_branches(
    ctx: Context, table: OpenTable, columns: Iterable[str], check: Callable[[lance.LanceDataset, Branch], None]
) -> dict[str, int]:
    """Check all rows of the latest version of main and of each branch, which have these columns.

    Return the versions that were checked by their branches, 0 for a branch that was just deleted. Raises
    InvalidInputError for a column that a branch has not, and what `check` raises.
    """
    checked = {}
    for branch in (MAIN, *map(Branch, branches_of(ctx, table))):
        dataset = open_to_check(ctx, table.record, branch, columns)
        if dataset is not None:
            check(dataset, branch)
        checked[branch.key] = 0 if dataset is None else int(dataset.version)
    return checked


def _contents(branch: Any) -> models.BranchContents:
    return models.BranchContents(
        parentBranch=branch["parent_branch"],
        parentVersion=branch["parent_version"],
        createAt=branch["create_at"],
        manifestSize=branch["manifest_size"],
        metadata=branch["metadata"] or None,
    )


@operation(needs=on_table(Privilege.WRITE))
def delete_table_branch(ctx: Context, request: models.DeleteTableBranchRequest) -> models.DeleteTableBranchResponse:
    """Delete a branch and the versions that only it has.

    Raises TableBranchNotFoundError, InvalidInputError (main), PermissionDeniedError (a legal hold).
    """
    if request.name == MAIN.name:
        raise InvalidInputError("The branch 'main' cannot be deleted: drop the table.")
    table = open_for_writing(ctx, request.id)
    if request.name not in branches_of(ctx, table):
        raise TableBranchNotFoundError(f"No branch '{request.name}' on this table.")
    ctx.store.refuse_under_hold(table.record.id, f"The branch '{request.name}'")
    _delete_branch(ctx, table, Branch(request.name))
    return models.DeleteTableBranchResponse()


def _delete_branch(ctx: Context, table: OpenTable, branch: Branch) -> None:
    with changing_reference(ctx, table.record, branch_file(branch)), lance_errors(table.dataset):
        table.dataset.branches.delete(branch.name)
    ctx.store.delete_versions(table.record.id, branch.key, [(0, None)])
    ctx.store.truncate_deleted_versions(table.record.id, branch.key, 0)
    ctx.storage.datasets.evict(table.record.location)
