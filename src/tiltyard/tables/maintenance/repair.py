"""Repair: what of a table went round the server, or was left half done, is found, and put right where that is safe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError

from tiltyard.access import Privilege
from tiltyard.access.needs import on_table
from tiltyard.model.operations import operation
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.commits.finalizing import finalize, stat_final_manifest
from tiltyard.tables.maintenance.garbage import cutoff_of, stale_staged
from tiltyard.tables.maintenance.references import Kind, TableFile, open_lines, table_files, tracked
from tiltyard.tables.opening import find_table
from tiltyard.tables.versions.records import (
    branch_key,
    delete_records,
    has_no_manifest,
    record_stored_version,
    records_of,
    records_without_manifest,
    unrecorded_versions,
)

if TYPE_CHECKING:
    import lance

    from tiltyard.context import Context
    from tiltyard.store import TableRecord, VersionRecord

SETTLED_MS = 60 * 60 * 1000
"""A branch is made in several steps: its records are not judged before they are this old."""

_MOST_NAMED = 10
_CONTENT = (Kind.DATA, Kind.DELETION, Kind.INDEX, Kind.MANIFEST, Kind.OTHER)


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, and what was done about it ("" for nothing: somebody has to decide)."""

    kind: str
    found: str
    done: str = ""


@operation(needs=on_table(Privilege.ALTER))
def repair_table(ctx: Context, request: models.RepairTableRequest) -> models.RepairTableResponse:
    """Find what of a table went round the server or was left half done, and put it right; `dry_run` only tells.

    Raises NamespaceNotFoundError, TableNotFoundError, ServiceUnavailableError.
    """
    findings = repair(ctx, find_table(ctx, request.id), dry_run=bool(request.dry_run))
    return models.RepairTableResponse(
        findings=[models.RepairFinding(kind=one.kind, found=one.found, done=one.done or None) for one in findings]
    )


def repair(ctx: Context, table: TableRecord, *, dry_run: bool) -> list[Finding]:
    """All that is wrong with a table; done twice, the second time finds what nothing can be done about.

    Where storage has no version at all, as while a disk is not there or a copy is not whole, the records stay.
    """
    storage = ctx.storage
    if storage.is_empty(table.location):
        return [] if table.declared else [Finding("missing folder", f"There is nothing at {table.location}.")]
    findings = list(_pending(ctx, table, dry_run))
    findings += _declared(ctx, table, dry_run)
    try:
        lines = open_lines(ctx, table.location)
    except LanceNamespaceError as error:
        return [*findings, Finding("unreadable", f"The table cannot be opened: {error}")]
    for name in lines:
        findings += _records(ctx, table, branch_key(name), dry_run)
    if lines:
        findings += _gone_branches(ctx, table, lines, dry_run)
    needed = tracked(table.location, lines)
    files = table_files(ctx, table.location, lines)
    findings += _missing(files, needed)
    findings += _staged(ctx, table, files, dry_run)
    storage.datasets.forget(table.location)
    return findings


def _pending(ctx: Context, table: TableRecord, dry_run: bool) -> Iterator[Finding]:
    """Recorded versions without their final manifest: finished, or taken back if their manifest is nowhere."""
    ctx.services.finalized_log.flush()
    for record in ctx.store.pending_versions(table.id, limit=1000):
        if (
            stat_final_manifest(ctx, table, record) is not None
        ):  # committed a moment ago, elsewhere: noted soon, or by a reader
            continue
        name = _name(record.version, record.branch)
        if _lost(ctx, table, record):
            if not dry_run:
                ctx.store.roll_back_version(record)
            found = f"{name} is recorded, and its manifest is nowhere: the commit was lost."
            yield Finding("lost version", found, "The record was deleted." if not dry_run else "")
            continue
        found, done = f"{name} is recorded, and its manifest is not in its place.", ""
        if not dry_run:
            try:
                finalize(ctx, table, record)
                done = "The manifest was put there."
            except LanceNamespaceError as error:
                done = f"That failed: {error}"
        yield Finding("pending version", found, done)


def _lost(ctx: Context, table: TableRecord, record: VersionRecord) -> bool:
    """Whether a manifest is nowhere, the catalog included."""
    if ctx.store.stored_manifest(record) is not None:
        return False
    return has_no_manifest(ctx, table, record)


def _declared(ctx: Context, table: TableRecord, dry_run: bool) -> Iterator[Finding]:
    written = ctx.storage.has_table(table.location)
    if table.declared and written:
        if not dry_run:
            ctx.store.mark_written(table.id)
        found = "The table has data, and the catalog calls it declared only."
        yield Finding("declared", found, "It is called written now." if not dry_run else "")
    elif not table.declared and not written:
        yield Finding("no versions", "The catalog knows of data, and there is no version in the table's folder.")


def _records(ctx: Context, table: TableRecord, branch: str, dry_run: bool) -> Iterator[Finding]:
    """Records against manifests: cleaned up or taken away, and committed round the server."""
    gone = records_without_manifest(ctx, table, branch)
    if gone:
        if not dry_run:
            delete_records(ctx, table, branch, gone)
        found = f"{_list(record.version for record in gone)}{_on(branch)} are recorded, and their manifests are gone."
        yield Finding("cleaned versions", found, "The records were deleted." if not dry_run else "")
    strange = unrecorded_versions(ctx, table, branch) if table.managed else []
    if strange:
        for stored in strange if not dry_run else ():
            record_stored_version(ctx, table, branch, stored)
        found = f"{_list(stored.version for stored in strange)}{_on(branch)} were committed round the server."
        yield Finding("unrecorded versions", found, "They were recorded." if not dry_run else "")


def _gone_branches(
    ctx: Context, table: TableRecord, lines: dict[str, lance.LanceDataset], dry_run: bool
) -> Iterator[Finding]:
    """Records of branches that were deleted: a new branch of the name could not commit."""
    for branch in ctx.store.recorded_branches(table.id):
        if not branch or branch in lines:
            continue
        records = list(records_of(ctx, table, branch))
        if any(record.created_at > ctx.clock() - SETTLED_MS for record in records):
            continue
        if not dry_run:
            delete_records(ctx, table, branch, records)
        found = f"There are records of the branch {branch}, and no such branch."
        yield Finding("gone branch", found, "The records were deleted." if not dry_run else "")


def _missing(files: list[TableFile], needed: set[str]) -> Iterator[Finding]:
    """Files that versions need and that are not there: only a backup can help."""
    there = {file.unit for file in files if file.kind in _CONTENT}
    missing = sorted(unit for unit in needed - there if "_transactions/" not in unit)
    if missing:
        more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
        yield Finding("missing files", f"Versions need what is not there: {', '.join(missing[:_MOST_NAMED])}{more}.")


def _staged(ctx: Context, table: TableRecord, files: list[TableFile], dry_run: bool) -> Iterator[Finding]:
    """Staged manifests that nobody committed, and is not likely to any more."""
    cutoff = cutoff_of(ctx, table, ctx.clock())
    old = stale_staged(ctx, table, [file for file in files if file.found.modified < cutoff])
    if old:
        if not dry_run:
            with lance_errors():
                ctx.storage.files(table.location).delete(f"{table.location}/{file.found.path}" for file in old)
        found = f"{len(old)} files were staged and never committed."
        yield Finding("staged leftovers", found, "They were deleted." if not dry_run else "")


def _name(version: int, branch: str) -> str:
    return f"Version {version}{_on(branch)}"


def _on(branch: str) -> str:
    return f" of the branch {branch}" if branch else ""


def _list(versions: Iterator[int]) -> str:
    numbers = sorted(versions)
    shown = ", ".join(map(str, numbers[:_MOST_NAMED]))
    return f"Versions {shown}" + (f" and {len(numbers) - _MOST_NAMED} more" if len(numbers) > _MOST_NAMED else "")
