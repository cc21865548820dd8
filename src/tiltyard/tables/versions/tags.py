"""Tags: names for versions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import (
    InvalidInputError,
    TableTagAlreadyExistsError,
    TableTagNotFoundError,
    TableVersionNotFoundError,
)

from tiltyard.access.needs import on_table
from tiltyard.model.branches import Branch
from tiltyard.model.ids import check_ref
from tiltyard.model.operations import operation
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.manifests.manifest_format import tag_file
from tiltyard.storage.reference_files import list_references
from tiltyard.tables.opening import check_version_number, find_table, open_for_reading, open_for_writing
from tiltyard.tables.versions.deleted_versions import check_not_deleted
from tiltyard.tables.versions.reference_changes import changing_reference
from tiltyard.tables.versions.removal_turns import confirm_reference, hold_removal_turn

if TYPE_CHECKING:
    import lance

    from tiltyard.context import Context, OpenTable
    from tiltyard.store import TableRecord

    TagTarget = tuple[str | None, int]
    """A branch by its name in Lance, and a version of it."""


@operation(needs=on_table(Privilege.USE), changes=False)
def list_table_tags(ctx: Context, request: models.ListTableTagsRequest) -> models.ListTableTagsResponse:
    """List tags with their versions, by name. Raises what opening a table raises, InvalidInputError."""
    table = open_for_reading(ctx, request.id)
    tags = tags_of(ctx, table)
    page, token = ctx.paging.cut_page(f"tags {table.record.id}", request.page_token, request.limit, tags)
    return models.ListTableTagsResponse(tags={name: _contents(tag) for name, tag in page.items()}, page_token=token)


def _contents(tag: Any) -> models.TagContents:
    return models.TagContents(version=tag["version"], manifestSize=tag["manifest_size"], branch=tag["branch"])


@operation(needs=on_table(Privilege.USE), changes=False)
def get_table_tag_version(ctx: Context, request: models.GetTableTagVersionRequest) -> models.GetTableTagVersionResponse:
    """Return the version, and the branch if it is not main, that a tag names. Raises TableTagNotFoundError."""
    tag = _find_tag(ctx, open_for_reading(ctx, request.id), request.tag)
    return models.GetTableTagVersionResponse(version=tag["version"], branch=tag["branch"])


@operation(needs=on_table(Privilege.WRITE))
def create_table_tag(ctx: Context, request: models.CreateTableTagRequest) -> models.CreateTableTagResponse:
    """Give a version a name.

    Raises TableTagAlreadyExistsError, TableVersionNotFoundError, TableBranchNotFoundError, ConcurrentModificationError
    (old versions are being removed).
    """
    check_ref(request.tag, "tag")
    check_version_number(request.version)
    table = open_for_reading(ctx, request.id, by_catalog=True)  # Lance looks for the version that the tag names
    with lance_errors(table.dataset):
        own = table.dataset.checkout_version(int(table.dataset.version))  # the shared one may not be used meanwhile
    with changing_reference(ctx, table.record, tag_file(request.tag)):
        _create(ctx, table, own, request)
    delete = partial(_delete_tag, ctx, table.record, own, request.tag)
    confirm_reference(ctx, table.record, Branch.parse(request.branch), request.version, delete)
    return models.CreateTableTagResponse()


def _create(ctx: Context, table: OpenTable, own: lance.LanceDataset, request: models.CreateTableTagRequest) -> None:
    """Create a tag that nobody else creates meanwhile. Raises as `create_table_tag` does."""
    location = table.record.location
    with lance_errors(location):
        was_there = ctx.storage.files(location).stat(f"{location}/{tag_file(request.tag)}") is not None
    try:
        target = _new_target(ctx, table, request)
        with lance_errors(own):
            own.tags.create(request.tag, target)
    except (TableTagAlreadyExistsError, TableVersionNotFoundError) as error:
        if was_there:
            raise _tag_taken(request.tag) from error
        if isinstance(error, TableVersionNotFoundError):
            raise
        if not _has_target(ctx, table, request.tag, target):
            raise _tag_taken(request.tag) from error
        # else it is ours: Lance wrote it twice, because the response of the first write was lost


def _tag_taken(tag: str) -> TableTagAlreadyExistsError:
    return TableTagAlreadyExistsError(f"The tag '{tag}' exists already: update it to move it.")


def _new_target(ctx: Context, table: OpenTable, request: models.CreateTableTagRequest) -> TagTarget:
    """Return the version that a new tag names, as Lance refers to it; on main Lance itself looks whether it is there.

    Raises TableVersionNotFoundError.
    """
    branch = Branch.parse(request.branch)
    if not branch.is_main:
        return _target(ctx, request)
    check_not_deleted(ctx, table.record, branch, request.version)
    return branch.lance_name, request.version


def _has_target(ctx: Context, table: OpenTable, tag: str, target: TagTarget) -> bool:
    """Return whether a tag exists and names this version."""
    existing = tags_of(ctx, table).get(tag)
    return existing is not None and (existing["branch"], existing["version"]) == target


@operation(needs=on_table(Privilege.WRITE))
def update_table_tag(ctx: Context, request: models.UpdateTableTagRequest) -> models.UpdateTableTagResponse:
    """Move a tag to another version. Raises TableTagNotFoundError, TableVersionNotFoundError,
    InvalidInputError (the tag of a snapshot), ConcurrentModificationError (old versions are being removed, or cloned).
    """
    target = _target(ctx, request)
    with hold_removal_turn(ctx, find_table(ctx, request.id).location), _changing(ctx, request) as tags:
        tags.update(request.tag, target)
    return models.UpdateTableTagResponse()


@operation(needs=on_table(Privilege.WRITE))
def delete_table_tag(ctx: Context, request: models.DeleteTableTagRequest) -> models.DeleteTableTagResponse:
    """Delete a tag; its version stays. Raises TableTagNotFoundError, InvalidInputError (the tag of a snapshot)."""
    with _changing(ctx, request) as tags:
        tags.delete(request.tag)
    return models.DeleteTableTagResponse()


@contextmanager
def _changing(ctx: Context, request: models.UpdateTableTagRequest | models.DeleteTableTagRequest) -> Iterator[Any]:
    """Yield the tags of a table to change one that is no snapshot's. Raises as the operations do."""
    table = open_for_writing(ctx, request.id)
    _find_tag(ctx, table, request.tag)
    _check_no_snapshot(ctx, table, request.tag)
    with changing_reference(ctx, table.record, tag_file(request.tag)), lance_errors(table.dataset):
        yield table.dataset.tags


def _delete_tag(ctx: Context, table: TableRecord, dataset: lance.LanceDataset, tag: str) -> None:
    with changing_reference(ctx, table, tag_file(tag)), lance_errors(dataset):
        dataset.tags.delete(tag)


def _check_no_snapshot(ctx: Context, table: OpenTable, tag: str) -> None:
    """Raise InvalidInputError for the tag of a snapshot, which stays where it is."""
    if ctx.store.is_in_snapshot(tag, table.record.id):
        raise InvalidInputError(
            f"The tag '{tag}' is that of a snapshot, which is immutable: drop the snapshot instead."
        )


def _target(ctx: Context, request: models.CreateTableTagRequest | models.UpdateTableTagRequest) -> TagTarget:
    """Return the version that a request names, as Lance refers to it. Raises TableVersionNotFoundError."""
    check_version_number(request.version)
    branch = Branch.parse(request.branch)
    open_for_reading(ctx, request.id, branch=branch, version=request.version)
    return branch.lance_name, request.version


def tags_of(ctx: Context, table: OpenTable) -> dict[str, Any]:
    """Return all tags of a table by name."""
    ctx.storage.manifests.check_references(table.record.location)
    with lance_errors(table.dataset):
        return list_references(table.dataset.tags)


def _find_tag(ctx: Context, table: OpenTable, tag: str) -> Any:
    tags = tags_of(ctx, table)
    if tag not in tags:
        raise TableTagNotFoundError(f"No tag '{tag}' on this table: list its tags to see which there are.")
    return tags[tag]
