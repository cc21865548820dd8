"""End the versions of a table that have erased rows: remove their manifests, and the files that they alone refer to.

The files go first and the manifests then, the oldest first: whoever repeats this after a crash finds the same versions
to end. Files that no version refers to are left alone, since a writer may be about to commit them.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    PermissionDeniedError,
    TableBranchAlreadyExistsError,
    TableNotFoundError,
    TableTagNotFoundError,
)
from msgspec import structs

from tiltyard.access.authorization import authorize_table
from tiltyard.catalog.jobs.authorization import authorize_submitter
from tiltyard.catalog.tables import drop_table
from tiltyard.model.branches import MAIN, Branch
from tiltyard.model.ids import Id
from tiltyard.model.principals import Privilege
from tiltyard.model.schemas.training_sets import set_name
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.manifests.manifest_format import tag_file
from tiltyard.store.access.grants import TABLE
from tiltyard.store.tables.versions import subtract
from tiltyard.tables.erasure.conditions import open_main
from tiltyard.tables.erasure.plan import add_new, branch_key
from tiltyard.tables.erasure.scope import find_references, name_of
from tiltyard.tables.upkeep.garbage import COLLECTED_KINDS, finalize_all
from tiltyard.tables.upkeep.references import FileKind, open_branches, referenced_units, table_files, units_of_versions
from tiltyard.tables.versions.branches import create_table_branch
from tiltyard.tables.versions.deleted_versions import tagged_versions
from tiltyard.tables.versions.records import stored_versions
from tiltyard.tables.versions.reference_changes import changing_reference
from tiltyard.tables.versions.removal_turns import hold_removal_turn
from tiltyard.tables.versions.snapshots import drop_snapshot_record
from tiltyard.tables.versions.tags import update_table_tag

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.model.jobs import Job
    from tiltyard.store import TableRecord
    from tiltyard.store.tables.snapshots import SnapshotRecord
    from tiltyard.tables.erasure.plan import Plan, TableFigures
    from tiltyard.tables.erasure.scope import Reference

_DELETE_BATCH = 500


def end_versions(
    ctx: Context,
    running: Job,
    table: TableRecord,
    first_clean: Mapping[Branch, int],
    predicate: str | None,
    plan: Plan,
    figures: TableFigures,
) -> None:
    """End the versions of each branch before its first one without the rows, except those of tags that never had them.

    Of a view that was computed anew (`predicate` is None), all versions of main before that one end.
    Raises ConcurrentModificationError (a branch was made meanwhile), InvalidInputError (a tag was, on such a version),
    PermissionDeniedError (a legal hold), JobCanceledError, TooBusyError.
    """
    finalize_all(ctx, table)
    branches = open_branches(ctx, table.location)
    find = partial(find_references, ctx, table, predicate, first_clean=first_clean)
    _end_references(ctx, running, table, branches, find(branches), first_clean, plan, figures)
    with hold_removal_turn(ctx, table.location, removes=True):
        ctx.store.refuse_under_hold(table.id, "Versions of this table")
        branches = open_branches(ctx, table.location)
        if new := next((branch for branch in branches if branch not in first_clean), None):
            raise ConcurrentModificationError(f"The branch '{new.name}' was made meanwhile: it is erased from next.")
        if late := find(branches):
            raise InvalidInputError(f"The tag '{late[0].tag}' was made meanwhile, on a version that has the rows.")
        kept = {branch: tagged_versions(branches[MAIN], branch) for branch in branches}

        def is_kept(branch: Branch, version: int) -> bool:
            return version >= first_clean[branch] or version in kept[branch]

        _remove_files(ctx, running, table, branches, is_kept, figures)
        for branch in branches:
            _remove_manifests(ctx, table, branch, first_clean[branch], kept[branch], figures)
    ctx.storage.datasets.evict(table.location)
    ctx.store.save_erasure_plan(running.id, plan.to_json())


def keep_tagged_rows(ctx: Context, running: Job, table: TableRecord, condition: str, plan: Plan) -> None:
    """Make a branch of each version with the rows that a tag names, if it is to be superseded.

    The branch is erased from as all others are, and then the tag moves to it. Raises what the making of a branch does.
    """
    for reference in find_references(ctx, table, condition, open_branches(ctx, table.location)):
        key = branch_key(table, MAIN, reference.tag)
        if reference.is_snapshot or key in plan.superseded:
            continue
        name, origin = f"superseded-{reference.tag}-{running.id[:8]}", reference.branch
        request = models.CreateTableBranchRequest(
            name=name,
            id=list(ctx.store.object_path(TABLE, table.id) or ()),
            from_branch=None if origin.is_main else origin.name,
            from_version=reference.version,
        )
        with suppress(TableBranchAlreadyExistsError):  # this job has made it, and was killed
            create_table_branch(ctx, request)
        plan.superseded[key] = name
        ctx.store.save_erasure_plan(running.id, plan.to_json())


def _end_references(
    ctx: Context,
    running: Job,
    table: TableRecord,
    branches: Mapping[Branch, lance.LanceDataset],
    references: Sequence[Reference],
    first_clean: Mapping[Branch, int],
    plan: Plan,
    figures: TableFigures,
) -> None:
    """Delete the tags of versions that have the rows, and snapshots that they are of; move those that are superseded.

    Raises InvalidInputError.
    """
    for reference in references:
        if (name := plan.superseded.get(branch_key(table, MAIN, reference.tag))) is not None:
            version, path = first_clean[Branch(name)], ctx.store.object_path(TABLE, table.id)
            moved = models.UpdateTableTagRequest(tag=reference.tag, version=version, id=list(path or ()), branch=name)
            update_table_tag(ctx, moved)
            add_new(figures.tags_superseded, [f"{reference.tag}: the branch {name}"])
            continue
        if not plan.end_protected:
            raise InvalidInputError(
                f"The tag '{reference.tag}' of {name_of(ctx, table.id)} was made meanwhile, on a version that has the "
                "rows: erase again, and say that it ends, too."
            )
        if reference.is_snapshot and (snapshot := ctx.store.find_snapshot(reference.tag)) is not None:
            with suppress(TableTagNotFoundError):  # another call has just dropped it
                drop_snapshot_record(ctx, snapshot, uuid4().hex)
            add_new(figures.snapshots_ended, [reference.tag])
            if (number := _drop_training_set(ctx, running, snapshot)) is not None:
                add_new(figures.training_sets_dropped, [reference.tag])
                plan.training_sets.append(number)
            continue
        changing = changing_reference(ctx, table, tag_file(reference.tag))
        with suppress(TableTagNotFoundError), changing, lance_errors(branches[MAIN]):
            branches[MAIN].tags.delete(reference.tag)
        add_new(figures.tags_ended, [reference.tag])


def _drop_training_set(ctx: Context, running: Job, snapshot: SnapshotRecord) -> int | None:
    """Drop the table of the training set that a snapshot was of, as who asked for the erasure; return its id, if any.

    Without the snapshot there is no set, and the table says which rows of a version were in it that has ended. It stays
    where that principal may not drop it.
    """
    for member in snapshot.members:
        with suppress(TableNotFoundError, PermissionDeniedError):
            table = ctx.store.table_by_id(member.table_id)
            if set_name(open_main(ctx, table.location).schema.metadata) == snapshot.name:
                own, _ = authorize_submitter(ctx, ctx.store.describe_transaction(running.id))
                path = Id(ctx.store.object_path(TABLE, table.id) or ())
                own = structs.replace(own, resolved=None, mounted=None)
                if not own.is_unchecked:
                    own = own.with_resolved({path: authorize_table(own, path, Privilege.DROP.value)})
                drop_table(own, models.DropTableRequest(id=list(path)))
                return table.id
    return None


def _remove_files(
    ctx: Context,
    running: Job,
    table: TableRecord,
    branches: dict[Branch, lance.LanceDataset],
    is_kept: Callable[[Branch, int], bool],
    figures: TableFigures,
) -> None:
    """Remove the files that ended versions refer to, and no version that stays, of this table or of a clone."""
    staying, ending = units_of_versions(table.location, branches, is_kept)
    needed = referenced_units(ctx, table.location, branches, staying)
    unneeded = [
        file
        for file in table_files(ctx, table.location, branches)
        if file.kind in COLLECTED_KINDS and file.unit in ending and file.unit not in needed
    ]
    for start in range(0, len(unneeded), _DELETE_BATCH):
        running.progress(stage="old versions", files_removed=figures.files_removed)
        batch = unneeded[start : start + _DELETE_BATCH]
        with lance_errors(table.location):
            ctx.storage.files(table.location).delete(f"{table.location}/{file.entry.path}" for file in batch)
        figures.files_removed += len(batch)
        figures.bytes_removed += sum(file.entry.size for file in batch)


def _remove_manifests(
    ctx: Context, table: TableRecord, branch: Branch, first_clean: int, kept: set[int], figures: TableFigures
) -> None:
    """Remove the manifests of ended versions, the oldest first, and their records in the catalog."""
    stored = stored_versions(ctx, table, branch)
    ended = [number for number in sorted(stored) if number < first_clean and number not in kept]
    for start in range(0, len(ended), _DELETE_BATCH):
        batch = ended[start : start + _DELETE_BATCH]
        ctx.storage.delete_files(f"{table.location}/{stored[number].path(branch)}" for number in batch)
        figures.versions_ended += len(batch)
    ranges = list(subtract([(0, first_clean)], [(number, number + 1) for number in sorted(kept)]))
    ctx.store.delete_versions(table.id, branch.key, ranges)
    ctx.store.prune_deleted_versions(table.id, branch.key, first_clean)


def unreferenced_files(ctx: Context, table: TableRecord) -> list[tuple[str, int]]:
    """Return the files of rows and indexes that no version refers to, with when they were written (ms since 1970)."""
    branches = open_branches(ctx, table.location)
    staying, _ = units_of_versions(table.location, branches, lambda branch, version: True)
    needed = referenced_units(ctx, table.location, branches, staying)
    kinds = (FileKind.DATA, FileKind.DELETION, FileKind.INDEX, FileKind.STAGED, FileKind.UNFINISHED)
    files = table_files(ctx, table.location, branches)
    return [(file.entry.path, file.entry.modified) for file in files if file.kind in kinds and file.unit not in needed]
