"""Records of versions in the catalog: which tables have them, and how they compare with the manifests in storage.

A managed table's versions are recorded in the catalog before their manifests get their final names. Records and
manifests may differ where a write to storage bypassed the server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lance_namespace.errors import InvalidInputError, InvalidTableStateError, TableBranchNotFoundError

from tiltyard.model.branches import MAIN
from tiltyard.model.columns.primary_keys import PROPERTY
from tiltyard.model.spec import models
from tiltyard.storage.caches.shared_snapshots import RecordedVersion
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locations import is_local
from tiltyard.storage.manifests.manifest_format import (
    LAST_VERSION,
    V2_DIGITS,
    NamingScheme,
    manifest_name,
    versions_folder,
)
from tiltyard.store import NewVersion
from tiltyard.tables import rte_specification

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tiltyard.context import Context
    from tiltyard.model.branches import Branch
    from tiltyard.model.ids import Id
    from tiltyard.storage.files import FileEntry
    from tiltyard.store import TableRecord, VersionRecord

MANAGED = "tiltyard.managed_versioning"
"""The property of a table or a namespace that makes (new) tables managed, or not."""

_BOOLEANS = {"true": True, "false": False}
_FINAL = re.compile(r"^(\d+)\.manifest$")
_PAGE = 1000


def new_is_managed(ctx: Context, path: Id, properties: Mapping[str, str] | None) -> bool:
    """Return whether a new table is managed: by its property, that of the nearest namespace, or the server's setting.

    Raises InvalidInputError for a property that is neither true nor false, and for one that another operation sets;
    NamespaceNotFoundError.
    """
    _check_not_declared(properties)
    if (managed := _managed_property(properties)) is not None:
        return managed
    for depth in range(len(path) - 1, -1, -1):
        if (managed := _managed_property(ctx.store.describe_namespace(path[:depth]).properties)) is not None:
            return managed
    return ctx.settings.managed_versioning


def registered_is_managed(properties: Mapping[str, str] | None) -> bool:
    """Return whether a registered table is managed: only if its property says so. Raises InvalidInputError."""
    _check_not_declared(properties)
    return bool(_managed_property(properties))


def _check_not_declared(properties: Mapping[str, str] | None) -> None:
    for name, call in ((PROPERTY, "then SetTablePrimaryKey"), (rte_specification.PROPERTY, "then EnableTableRte")):
        if name in (properties or {}):
            raise InvalidInputError(f"The property {name} declares nothing: create the table, {call}.")


def _managed_property(properties: Mapping[str, str] | None) -> bool | None:
    text = (properties or {}).get(MANAGED)
    if text is None:
        return None
    if text.lower() not in _BOOLEANS:
        raise InvalidInputError(f"The property {MANAGED} is 'true' or 'false', not '{text}'.")
    return _BOOLEANS[text.lower()]


def wire_version(table: TableRecord, record: VersionRecord) -> models.TableVersion:
    """Return a recorded version as a response has it: the path has no URI scheme, as object stores name files."""
    return models.TableVersion(
        version=record.version,
        manifest_path=f"{urlsplit(table.location).path.lstrip('/')}/{record.manifest_path}",
        manifest_size=record.manifest_size,
        e_tag=record.e_tag,
        timestamp_millis=record.created_at,
        metadata=record.metadata,
    )


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version whose manifest is in storage under its final name."""

    version: int
    scheme: NamingScheme

    def path(self, branch: Branch) -> str:
        """Return the manifest's path below the table's folder."""
        return f"{versions_folder(branch)}/{manifest_name(self.version, self.scheme)}"


def records_of(ctx: Context, table: TableRecord, branch: Branch) -> Iterator[VersionRecord]:
    """Yield all recorded versions of a branch, ascending."""
    after: int | None = None
    while page := ctx.store.list_versions(table.id, branch.key, after, _PAGE):
        yield from page
        after = page[-1].version


def recorded_latest(ctx: Context, table: TableRecord, branch: Branch) -> RecordedVersion | None:
    """Return the latest version that the catalog has of a managed table's main branch on an object store.

    None for all other tables and branches, and while it is not certain that the version has its final name.
    """
    if not table.managed or not branch.is_main or is_local(table.location):
        return None
    latest = ctx.store.latest_version(table.id, branch.key)
    if latest is None or not (latest.finalized or ctx.services.commit_log.has(latest)):
        return None
    return RecordedVersion(latest.table_id, latest.version, latest.staged_path)


def stored_versions(ctx: Context, table: TableRecord, branch: Branch) -> dict[int, StoredVersion]:
    """Return the versions of a branch whose manifests have their final names in storage, by number."""
    with lance_errors():
        names = ctx.storage.files(table.location).list_names(f"{table.location}/{versions_folder(branch)}")
    versions = [_stored_version(match[1]) for match in map(_FINAL.match, names) if match]
    return {stored.version: stored for stored in versions}


def _stored_version(number: str) -> StoredVersion:
    """Return the version that a manifest's final name, without its suffix, is of."""
    if len(number) == V2_DIGITS:
        return StoredVersion(LAST_VERSION - int(number), NamingScheme.V2)
    return StoredVersion(int(number), NamingScheme.V1)


def listed_manifests(ctx: Context, location: str) -> dict[int, FileEntry]:
    """Return the final manifests of main on an object store as one list has them, by their versions."""
    folder = f"{location}/{versions_folder(MAIN)}"
    with lance_errors(location):
        entries = list(ctx.storage.files(location).walk(folder))
    return {_stored_version(match[1]).version: entry for entry in entries if (match := _FINAL.match(entry.path))}


def unrecorded_versions(ctx: Context, table: TableRecord, branch: Branch = MAIN) -> list[StoredVersion]:
    """Return versions that are in storage and have no record, ascending: their commits bypassed the server.

    The oldest one is left out: it may have come with the table or the branch, before there was anything to record it
    for. So are deleted ones, which have no record any more.
    """
    stored = stored_versions(ctx, table, branch)
    # Records are read after storage is listed: a commit writes its record first.
    recorded = {record.version for record in records_of(ctx, table, branch)}
    deleted = ctx.store.deleted_versions(table.id, branch.key)
    return [
        stored[number]
        for number in sorted(stored)[1:]
        if number not in recorded and not any(number in span for span in deleted)
    ]


def record_stored_version(ctx: Context, table: TableRecord, branch: Branch, stored: StoredVersion) -> bool:
    """Record a version that is in storage; return whether it was still there, and still without a record."""
    path = stored.path(branch)
    manifest = ctx.storage.stat(table.location, path)
    if manifest is None:
        return False
    new = NewVersion(
        table_id=table.id,
        branch=branch.key,
        version=stored.version,
        staged_path=f"{table.location}/{path}",
        manifest_path=path,
        manifest_size=manifest.size,
        e_tag=manifest.e_tag,
        naming_scheme=stored.scheme,
        finalized=True,
    )
    return ctx.store.record_version(new)[1]


def records_without_manifest(ctx: Context, table: TableRecord, branch: Branch = MAIN) -> list[VersionRecord]:
    """Return records of finalized versions whose manifest is gone from storage."""
    records = [record for record in records_of(ctx, table, branch) if record.finalized]
    # Storage is listed after the records are read, so that a commit made meanwhile is not missed.
    stored = stored_versions(ctx, table, branch) if records else {}
    return [record for record in records if record.version not in stored]


def delete_records_without_manifest(ctx: Context, table: TableRecord, branch: Branch = MAIN) -> int:
    """Delete the records of finalized versions whose manifest is gone; return how many there were."""
    return delete_records(ctx, table, branch, records_without_manifest(ctx, table, branch))


def delete_records(ctx: Context, table: TableRecord, branch: Branch, records: Iterable[VersionRecord]) -> int:
    """Delete records of a branch in one transaction; return how many were still there."""
    return ctx.store.delete_versions(table.id, branch.key, [(record.version, record.version + 1) for record in records])


def delete_branch_records(ctx: Context, table: TableRecord, branch: Branch) -> None:
    """Delete what a branch that no longer exists has left in the catalog: it would block a new branch of its name.

    A record whose manifest is in storage stays: a request may be creating the branch just now.
    """
    ctx.store.truncate_deleted_versions(table.id, branch.key, 0)
    for record in records_of(ctx, table, branch):
        if has_no_manifest(ctx, table, record):
            ctx.store.delete_version_record(record)


def has_no_manifest(ctx: Context, table: TableRecord, record: VersionRecord) -> bool:
    """Return whether a version's manifest exists under neither its staged nor its final name.

    The final name is looked up last: a manifest gets it before it loses the other.
    """
    return all(ctx.storage.stat(table.location, path) is None for path in (record.staged_path, record.manifest_path))


def find_scheme(ctx: Context, table: TableRecord, branch: Branch, version: int) -> NamingScheme | None:
    """Return by which scheme the manifest of a version is named; None if there is none."""
    folder, is_file = f"{table.location}/{versions_folder(branch)}", ctx.storage.files(table.location).is_file
    schemes = (NamingScheme.V2, NamingScheme.V1)  # the likelier one first: each is a request to an object store
    return next((scheme for scheme in schemes if is_file(f"{folder}/{manifest_name(version, scheme)}")), None)


def latest_stored_version(ctx: Context, record: TableRecord, branch: Branch) -> int | None:
    """Return the latest version of a branch in storage: 0 without data, None for a branch that is not there (yet)."""
    try:
        dataset = ctx.storage.datasets.open_for_reading(record.location, branch)
    except InvalidTableStateError:  # nothing but what is staged
        return 0
    except TableBranchNotFoundError:
        return None
    return int(dataset.version)
