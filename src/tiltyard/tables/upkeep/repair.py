"""Repair a table: find what bypassed the server or was left unfinished, and correct it where that is safe.

So are files that a full disk has left broken on a disk, and versions that name some. Since commits check what they
bring (docs/architecture.md, Durability), no new version names such a file. Tables of earlier releases may have
some, and tables that others commit to without this catalog.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote

from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from tiltyard.access.needs import on_table
from tiltyard.model.branches import MAIN, Branch
from tiltyard.model.operations import operation
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import models
from tiltyard.runtime.durability import MISSING, describe_fault
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locations import is_local
from tiltyard.tables.commits.finalizing import finalize, stat_final_manifest
from tiltyard.tables.opening import find_table, finish_direct_commit
from tiltyard.tables.upkeep.garbage import cutoff_of, stale_staged
from tiltyard.tables.upkeep.references import FileKind, TableFile, open_branches, table_files, tracked_units
from tiltyard.tables.versions.records import (
    delete_records,
    has_no_manifest,
    record_stored_version,
    records_of,
    records_without_manifest,
    stored_versions,
    unrecorded_versions,
)

if TYPE_CHECKING:
    import lance

    from tiltyard.context import Context
    from tiltyard.store import TableRecord, VersionRecord


SETTLED_MS = 60 * 60 * 1000
"""A branch is created in several steps: its records are checked only once they are this old."""

_MAX_LISTED = 10
_CONTENT_KINDS = (FileKind.DATA, FileKind.DELETION, FileKind.INDEX, FileKind.MANIFEST, FileKind.OTHER)


@dataclass(frozen=True, slots=True)
class Damage:
    """What is wrong with a table, and what was done about it ("": nothing, an operator has to decide)."""

    kind: str
    found: str
    done: str = ""


@operation(needs=on_table(Privilege.ALTER))
def repair_table(ctx: Context, request: models.RepairTableRequest) -> models.RepairTableResponse:
    """Find what of a table bypassed the server, was left unfinished or is broken; correct it unless `dry_run`.

    With `restore`, it goes on from the last whole version where later ones name files that a full disk has broken.
    Raises NamespaceNotFoundError, TableNotFoundError, ServiceUnavailableError.
    """
    table = find_table(ctx, request.id)
    findings = repair(ctx, table, dry_run=bool(request.dry_run), restore=bool(request.restore))
    return models.RepairTableResponse(
        findings=[
            models.RepairFinding(kind=finding.kind, found=finding.found, done=finding.done or None)
            for finding in findings
        ]
    )


def repair(ctx: Context, table: TableRecord, *, dry_run: bool, restore: bool = False) -> list[Damage]:
    """Return all that is wrong with a table, corrected unless `dry_run`. Idempotent.

    What takes something from the table, because it is broken, is only done with `restore`.
    Where storage has no version at all, as while a disk is not mounted or a copy is not complete, the records stay.
    Raises PermissionDeniedError for one under a legal hold, but for a dry run.
    """
    storage = ctx.storage
    if not dry_run:
        ctx.store.refuse_under_hold(table.id, "What is broken of this table")
    if storage.is_empty(table.location):
        return [] if table.declared else [Damage("missing folder", f"There is nothing at {table.location}.")]
    findings = list(_repair_pending(ctx, table, dry_run))
    findings += _repair_broken_names(ctx, table, dry_run, restore=restore and not dry_run)
    findings += _repair_declared(ctx, table, dry_run)
    try:
        branches = open_branches(ctx, table.location)
    except LanceNamespaceError as error:
        return [*findings, Damage("unreadable", f"The table cannot be opened: {error}")]
    for branch in branches:
        findings += _repair_records(ctx, table, branch, dry_run)
        findings += _repair_broken_versions(ctx, table, branch, restore=restore and not dry_run)
    if branches:
        findings += _repair_deleted_branches(ctx, table, branches, dry_run)
    referenced = tracked_units(table.location, branches)
    files = table_files(ctx, table.location, branches)
    findings += _find_missing_files(files, referenced)
    findings += _repair_staged(ctx, table, files, dry_run)
    storage.datasets.evict(table.location)
    return findings


def _repair_pending(ctx: Context, table: TableRecord, dry_run: bool) -> Iterator[Damage]:
    """Finalize pending versions, or roll their records back if their manifests do not exist."""
    ctx.services.commit_log.flush()
    for record in ctx.store.pending_versions(table.id, limit=1000):
        if stat_final_manifest(ctx, table, record) is not None:
            continue  # finalized by another process a moment ago: it, or a reader, marks the version soon
        name = _version_name(record.version, Branch(record.branch))
        if _is_lost(ctx, table, record):
            if not dry_run:
                ctx.store.roll_back_version(record)
            problem = f"{name} is recorded, but its manifest does not exist: the commit was lost."
            yield Damage("lost version", problem, "The record was deleted." if not dry_run else "")
            continue
        problem, action = f"{name} is recorded, but its manifest lacks its final name.", ""
        if not dry_run:
            try:
                finalize(ctx, table, record)
                action = "The manifest was finalized."
            except LanceNamespaceError as error:
                action = f"That failed: {error}"
        yield Damage("pending version", problem, action)


def _is_lost(ctx: Context, table: TableRecord, record: VersionRecord) -> bool:
    """Return whether a manifest exists neither in storage nor in the catalog."""
    if ctx.store.stored_manifest(record) is not None:
        return False
    return has_no_manifest(ctx, table, record)


def _repair_declared(ctx: Context, table: TableRecord, dry_run: bool) -> Iterator[Damage]:
    """Compare with storage whether the catalog says that the table has data."""
    has_data = ctx.storage.has_table(table.location)
    if table.declared and has_data:
        if not dry_run:
            ctx.store.mark_written(table.id)
        problem = "The table has data, but the catalog has it as declared only."
        yield Damage("declared", problem, "It was marked as created." if not dry_run else "")
    elif not table.declared and not has_data:
        yield Damage("no versions", "The catalog has the table as created, but its folder has no version.")


def _repair_records(ctx: Context, table: TableRecord, branch: Branch, dry_run: bool) -> Iterator[Damage]:
    """Delete records of versions whose manifests are gone, and record versions whose commits bypassed the server."""
    cleaned = records_without_manifest(ctx, table, branch)
    if cleaned:
        if not dry_run:
            delete_records(ctx, table, branch, cleaned)
        versions = _version_list(record.version for record in cleaned)
        problem = f"{versions}{_of_branch(branch)} are recorded, but their manifests are gone."
        yield Damage("cleaned versions", problem, "The records were deleted." if not dry_run else "")
    unrecorded = unrecorded_versions(ctx, table, branch) if table.managed else []
    if unrecorded:
        for stored in unrecorded if not dry_run else ():
            record_stored_version(ctx, table, branch, stored)
        versions = _version_list(stored.version for stored in unrecorded)
        problem = f"{versions}{_of_branch(branch)} were committed bypassing the server."
        yield Damage("unrecorded versions", problem, "They were recorded." if not dry_run else "")


def _repair_broken_names(ctx: Context, table: TableRecord, dry_run: bool, *, restore: bool) -> Iterator[Damage]:
    """Remove files of tags and branches that are not whole, and with `restore` such manifests of versions."""
    location, removed = table.location, list[str]()
    for broken in find_broken_references(ctx, location):
        removed += [] if dry_run else [broken.location]
        problem = f"The file of the {broken.kind} {broken.name} is not whole: it was never acknowledged."
        yield Damage(f"broken {broken.kind}", problem, f"The {broken.kind} was removed." if not dry_run else "")
    for branch in branches_by_file(ctx, location):
        manifests = find_broken_manifests(ctx, table, branch)
        if manifests:
            is_any_whole = len(manifests) < len(stored_versions(ctx, table, branch))
            removed += manifests.values() if restore and is_any_whole else ()
            problem = f"{_version_list(iter(manifests))}{_of_branch(branch)} have no whole manifest: they are lost."
            is_done = restore and is_any_whole
            yield Damage("broken manifests", problem, "The manifests were removed." if is_done else "")
    if removed:
        ctx.storage.delete_files(removed)
        ctx.storage.datasets.evict(location)


def _repair_broken_versions(ctx: Context, table: TableRecord, branch: Branch, *, restore: bool) -> Iterator[Damage]:
    """Report versions that name files which are not whole; go on from the last one that names none with `restore`."""
    broken = find_broken_versions(ctx, table, branch)
    if not broken.files:
        return
    prefix = f"{table.location}/"
    listed = [f"{file.removeprefix(prefix)} ({fault})" for file, fault in sorted(broken.files.items())]
    more = f" and {len(listed) - _MAX_LISTED} more" if len(listed) > _MAX_LISTED else ""
    whole = "None is whole" if broken.last_whole is None else f"The last whole version is {broken.last_whole}"
    problem = (
        f"{_version_list(iter(broken.versions))}{_of_branch(branch)} name files that are not whole: "
        f"{', '.join(listed[:_MAX_LISTED])}{more}. {whole}."
    )
    action = ""
    if restore and broken.last_whole is not None and broken.last_whole < broken.latest:
        version = _restore(ctx, table, branch, broken.last_whole)
        action = f"Version {version} is as version {broken.last_whole} was: what came after it is in the old versions."
    yield Damage("broken files", problem, action)


def _restore(ctx: Context, table: TableRecord, branch: Branch, version: int) -> int:
    """Make a version of a branch the latest again, as a new one, and return that."""
    storage, route = ctx.storage, ctx.commit_route(table, durable=False)
    dataset = storage.datasets.open_for_writing(table.location, branch, route)
    with lance_errors(dataset):
        restored = dataset.checkout_version((branch.lance_name, version))
        restored.restore()  # type: ignore[no-untyped-call]  # pylance's
    if not table.managed:
        finish_direct_commit(ctx, table, branch, int(restored.version))
    return int(restored.version)


def _repair_deleted_branches(
    ctx: Context, table: TableRecord, branches: dict[Branch, lance.LanceDataset], dry_run: bool
) -> Iterator[Damage]:
    """Delete records of branches that do not exist: a new branch of the name could not commit."""
    for branch in map(Branch, ctx.store.recorded_branches(table.id)):
        if branch.is_main or branch in branches:
            continue
        records = list(records_of(ctx, table, branch))
        if any(record.created_at > ctx.clock() - SETTLED_MS for record in records):
            continue
        if not dry_run:
            delete_records(ctx, table, branch, records)
        problem = f"There are records of the branch {branch.name}, which does not exist."
        yield Damage("gone branch", problem, "The records were deleted." if not dry_run else "")


def _find_missing_files(files: list[TableFile], referenced: set[str]) -> Iterator[Damage]:
    """Report files that versions refer to and that do not exist: only a backup can help."""
    existing = {file.unit for file in files if file.kind in _CONTENT_KINDS}
    missing = sorted(unit for unit in referenced - existing if "_transactions/" not in unit)
    if missing:
        more = f" and {len(missing) - _MAX_LISTED} more" if len(missing) > _MAX_LISTED else ""
        yield Damage(
            "missing files", f"Versions refer to files that do not exist: {', '.join(missing[:_MAX_LISTED])}{more}."
        )


def _repair_staged(ctx: Context, table: TableRecord, files: list[TableFile], dry_run: bool) -> Iterator[Damage]:
    """Delete staged manifests that were never committed, and are older than any unfinished write."""
    cutoff = cutoff_of(ctx, table, ctx.clock())
    stale = stale_staged(ctx, table, [file for file in files if file.entry.modified < cutoff])
    if stale:
        if not dry_run:
            with lance_errors():
                ctx.storage.files(table.location).delete(f"{table.location}/{file.entry.path}" for file in stale)
        problem = f"{len(stale)} files were staged and never committed."
        yield Damage("staged leftovers", problem, "They were deleted." if not dry_run else "")


def _version_name(version: int, branch: Branch) -> str:
    return f"Version {version}{_of_branch(branch)}"


def _of_branch(branch: Branch) -> str:
    return "" if branch.is_main else f" of the branch {branch.name}"


def _version_list(versions: Iterator[int]) -> str:
    numbers = sorted(versions)
    listed = ", ".join(map(str, numbers[:_MAX_LISTED]))
    return f"Versions {listed}" + (f" and {len(numbers) - _MAX_LISTED} more" if len(numbers) > _MAX_LISTED else "")


_REFERENCES = ("tags", "branches")


@dataclass(frozen=True, slots=True)
class BrokenReference:
    """The file of a tag or a branch that is not whole: none of the table's tags, or branches, can be read."""

    location: str
    kind: str
    name: str


@dataclass(slots=True)
class BrokenVersions:
    """Versions of a branch that name files which are not whole, and the last one that names none."""

    files: dict[str, str] = field(default_factory=dict)
    """Their locations, and what is wrong with each."""
    versions: list[int] = field(default_factory=list)
    last_whole: int | None = None
    latest: int = 0


def find_broken_references(ctx: Context, location: str) -> Iterator[BrokenReference]:
    """Iterate over the files of tags and branches that are not whole."""
    if not is_local(location):
        return
    files = ctx.storage.files(location)
    for folder in _REFERENCES:
        for name in files.list_names(f"{location}/_refs/{folder}"):
            file = f"{location}/_refs/{folder}/{name}"
            if name.endswith(".json") and describe_fault(file) is not None:
                yield BrokenReference(file, "tag" if folder == "tags" else "branch", unquote(name[: -len(".json")]))


def branches_by_file(ctx: Context, location: str) -> list[Branch]:
    """Return main, and all branches that have a file, without opening the table."""
    names = ctx.storage.files(location).list_names(f"{location}/_refs/branches")
    return [MAIN, *(Branch(unquote(name[: -len(".json")])) for name in sorted(names) if name.endswith(".json"))]


def find_broken_manifests(ctx: Context, table: TableRecord, branch: Branch) -> dict[int, str]:
    """Return the locations of the manifests of a branch that are not whole, by version; they are final ones."""
    if not is_local(table.location):
        return {}
    stored = stored_versions(ctx, table, branch)
    locations = {version: f"{table.location}/{each.path(branch)}" for version, each in stored.items()}
    with lance_errors(table.location):
        return {version: place for version, place in locations.items() if describe_fault(place) is not None}


def find_broken_versions(ctx: Context, table: TableRecord, branch: Branch) -> BrokenVersions:
    """Check the files of all versions of a branch, but for missing ones. Raises ServiceUnavailableError.

    Each file is looked at where it is new; a version's own names are only compared once a file has turned out broken.
    """
    found, manifests = BrokenVersions(), ctx.storage.manifests
    if not is_local(table.location):
        return found
    for version in sorted(stored_versions(ctx, table, branch)):
        found.latest = version
        try:
            new = manifests.version_files(table.location, branch, version)
        except InvalidInputError:
            found.versions.append(version)  # its manifest is damaged
            continue
        for file in new:
            with lance_errors(table.location):
                fault = describe_fault(file)
            if fault is not None and fault != MISSING and not file.is_copy:
                found.files[file.location] = fault
        if found.files and not found.files.keys().isdisjoint(manifests.named_files(table.location, branch, version)):
            found.versions.append(version)
        else:
            found.last_whole = version
    return found
