"""Promote the columns that were added on a branch to main: one commit, which copies their files.

The files of the new columns are copied into main's folder as they are, so that main depends on no branch, no value is
decoded, and what their names say of a computed column's freshness stays true. The commit adds them to the fragments of
main, under field ids that main has never used; it applies to the version that was compared, or not at all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import lance
from lance.fragment import DataFile
from lance.schema import LanceSchema

from tiltyard.access.needs import on_table
from tiltyard.change_feed.table_history import field_ids_by_column, fragments_by_id
from tiltyard.column_refresh.freshness import TOMBSTONE
from tiltyard.model.branches import MAIN, Branch
from tiltyard.model.columns.blob_columns import has_blobs
from tiltyard.model.operations import operation
from tiltyard.model.principals import Privilege
from tiltyard.model.quotas import FILES
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors, may_have_committed
from tiltyard.storage.manifests.manifest_format import with_column_ids
from tiltyard.storage.pylance_internals import schema_of_protos
from tiltyard.storage.writing import commit_new_columns
from tiltyard.tables.opening import find_table
from tiltyard.tables.rows.conflict_retry import commit_with_retry
from tiltyard.tables.versions.branch_diff import BranchComparison

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from lance.fragment import FragmentMetadata

    from tiltyard.context import Context

READY = "ready"
FAILED = "failed"
NOT_IMPLEMENTED = "notImplemented"
CHERRY_PICKED = "cherryPicked"

_FRESHNESS = re.compile(r"-udf-[^/]*$")
"""The part of a file's name by which a backfill recognizes the values that it has computed."""
_FIRST_FORMAT = 2
"""Before, a file's columns were found by the field ids within it, which are the branch's."""


@operation(needs=on_table(Privilege.READ | Privilege.ALTER), stores=FILES)
def cherry_pick_table_branch(
    ctx: Context, request: models.CherryPickTableBranchRequest
) -> models.CherryPickTableBranchResponse:
    """Add the columns that were added on a branch to main, in one commit; with `dry_run` only say whether it can be.

    The status is `cherryPicked` (`ready` for a dry run), `failed` for the reasons among the errors of the response's
    diff, or `notImplemented` for columns of blobs, and for files of Lance's first format. Main keeps its rows and
    indexes, and the branch is left as it is. Raises TableBranchNotFoundError, ConcurrentModificationError and what
    opening a table raises.
    """
    comparison = BranchComparison.open(ctx, request.id, request.from_branch)

    location = find_table(ctx, request.id).location

    def pick(main: lance.LanceDataset) -> models.CherryPickTableBranchResponse:
        diff, columns = comparison.diff(main), comparison.promotable(main)
        status = FAILED if diff.errors else READY if _can_copy(comparison.branch, columns) else NOT_IMPLEMENTED
        response = models.CherryPickTableBranchResponse(
            status=status,
            diff=diff,
            preview=models.CherryPickPreview(promotedColumns=columns if status == READY else []),
        )
        if status == READY and not request.dry_run:
            response.mainVersionAfter = _promote(ctx, location, main, comparison, columns)
            response.status = CHERRY_PICKED
        return response

    return commit_with_retry(ctx, request.id, MAIN, pick)[0]


def _can_copy(branch: lance.LanceDataset, columns: Sequence[str]) -> bool:
    """Return whether the values of columns are in files that can be copied: blobs lie in further ones beside them."""
    if has_blobs(branch.schema.field(name) for name in columns):
        return False
    fields = frozenset[int]().union(*(field_ids_by_column(branch)[name] for name in columns))
    files = (file for fragment in branch.get_fragments() for file in fragment.metadata.files)
    return all(
        file.file_major_version >= _FIRST_FORMAT and file.base_id is None
        for file in files
        if not fields.isdisjoint(file.fields)
    )


def _promote(
    ctx: Context, location: str, main: lance.LanceDataset, comparison: BranchComparison, columns: Sequence[str]
) -> int:
    """Add columns of a branch, whose rows are those of `main`, on top of exactly that version; return the new one.

    Raises what Lance raises: after a conflict nothing was committed, and the copies are deleted.
    """
    plan = _plan(main, comparison.branch, columns)
    source = f"{Branch(comparison.name).base(location)}/data"
    target = f"{location}/data"
    try:
        _copy(ctx, source, target, plan.copies)
        return commit_new_columns(main, lance.LanceOperation.Merge(plan.fragments, plan.schema))
    except BaseException as error:
        if not may_have_committed(error):
            ctx.storage.delete_files(f"{target}/{name}" for name in plan.copies.values())
        raise


@dataclass(frozen=True, slots=True)
class _Promotion:
    """The new version's schema and fragments, and the new name of each file to be copied, by its name on the branch."""

    schema: LanceSchema
    fragments: list[FragmentMetadata]
    copies: dict[str, str]


def _plan(main: lance.LanceDataset, branch: lance.LanceDataset, columns: Sequence[str]) -> _Promotion:
    ids = [number for name in columns for number in sorted(field_ids_by_column(branch)[name])]
    first = max(_used_ids(main), default=-1) + 1
    new_ids = {number: first + position for position, number in enumerate(ids)}
    copies: dict[str, str] = {}
    fragments = []
    branch_files = {number: fragment.files for number, fragment in fragments_by_id(branch).items()}
    for fragment in main.get_fragments():
        files = list(fragment.metadata.files)
        for file in branch_files[fragment.fragment_id]:
            if new_ids.keys().isdisjoint(file.fields):
                continue
            mark = _FRESHNESS.search(str(file.path))
            name = f"{uuid4().hex}{mark[0] if mark else '.lance'}"
            copies[str(file.path)] = name
            files.append(_copied(file, name, new_ids))
        fragments.append(replace(fragment.metadata, files=files))
    return _Promotion(_schema(main, branch, columns, new_ids), fragments, copies)


def _used_ids(dataset: lance.LanceDataset) -> Iterable[int]:
    """Iterate over the field ids of a version, those of dropped columns that files still have included."""
    for ids in field_ids_by_column(dataset).values():
        yield from ids
    for fragment in dataset.get_fragments():
        for file in fragment.metadata.files:
            yield from file.fields


def _copied(file: DataFile, name: str, new_ids: Mapping[int, int]) -> DataFile:
    """Return the entry of a file's copy, in which columns that are not promoted are not read."""
    return DataFile(
        name,
        [new_ids.get(number, TOMBSTONE) for number in file.fields],
        list(file.column_indices),
        file.file_major_version,
        file.file_minor_version,
        file.file_size_bytes,
    )


def _schema(
    main: lance.LanceDataset, branch: lance.LanceDataset, columns: Sequence[str], new_ids: Mapping[int, int]
) -> LanceSchema:
    """Return main's schema with columns of the branch behind it, under new ids."""
    metadata, *fields = _protos(main)
    renumbered = (with_column_ids(field, new_ids) for field in _protos(branch)[1:])
    added = [field for field in renumbered if field is not None]
    return schema_of_protos(metadata, *fields, *added)


def _protos(dataset: lance.LanceDataset) -> Any:
    """Return the metadata of a schema as JSON, and its fields as a manifest has them, the way it is pickled."""
    return dataset.lance_schema.__reduce__()[1]


def _copy(ctx: Context, source: str, target: str, copies: Mapping[str, str]) -> None:
    """Copy files durably from one folder to another. Raises what the storage raises."""
    with lance_errors(target):
        for name, new_name in copies.items():
            ctx.storage.files(target).copy(f"{source}/{name}", f"{target}/{new_name}")
    ctx.storage.make_durable(f"{target}/{new_name}" for new_name in copies.values())
