"""Records of versions against what storage holds: somebody may have gone round the server."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiltyard.model.ids import MAIN_BRANCH
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.manifest_format import LAST_VERSION, NamingScheme, manifest_name, versions_folder
from tiltyard.store import NewVersion

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tiltyard.context import Context
    from tiltyard.store import TableRecord, VersionRecord

_FINAL = re.compile(r"^(\d+)\.manifest$")
_V2_DIGITS = 20
_PAGE = 1000


def branch_key(branch: str | None) -> str:
    """A branch as the catalog has it: main is the empty name."""
    return "" if not branch or branch == MAIN_BRANCH else branch


@dataclass(frozen=True, slots=True)
class Stored:
    """A version that storage holds."""

    version: int
    scheme: NamingScheme

    def path(self, branch: str) -> str:
        """Its manifest, below the table's folder."""
        return f"{versions_folder(branch)}/{manifest_name(self.version, self.scheme)}"


def records_of(ctx: Context, table: TableRecord, branch: str) -> Iterator[VersionRecord]:
    """All recorded versions of a branch ('' is main), upwards."""
    after: int | None = None
    while page := ctx.store.list_versions(table.id, branch, after, _PAGE):
        yield from page
        after = page[-1].version


def stored_versions(ctx: Context, table: TableRecord, branch: str) -> dict[int, Stored]:
    """The versions of a branch whose manifests lie in storage under their final names."""
    with lance_errors():
        names = ctx.storage.files(table.location).names(f"{table.location}/{versions_folder(branch)}")
    numbers = [match[1] for match in map(_FINAL.match, names) if match]
    found = [
        Stored(LAST_VERSION - int(number), NamingScheme.V2)
        if len(number) == _V2_DIGITS
        else Stored(int(number), NamingScheme.V1)
        for number in numbers
    ]
    return {stored.version: stored for stored in found}


def unrecorded(ctx: Context, table: TableRecord, branch: str = "") -> list[Stored]:
    """Versions that storage holds and no record knows: they were committed round the server.

    The oldest one may have come with the table or the branch, before there was anything to record it for; one that was
    deleted has no record any more.
    """
    stored = stored_versions(ctx, table, branch)
    known = {record.version for record in records_of(ctx, table, branch)}  # looked up last: a record comes first
    deleted = ctx.store.deleted_versions(table.id, branch)
    return [
        stored[number]
        for number in sorted(stored)[1:]
        if number not in known and not any(number in one for one in deleted)
    ]


def adopt(ctx: Context, table: TableRecord, branch: str, found: Stored) -> bool:
    """Record a version that storage holds; whether it was still there, and still without a record."""
    path = found.path(branch)
    manifest = ctx.storage.stat(table.location, path)
    if manifest is None:
        return False
    new = NewVersion(
        table_id=table.id,
        branch=branch,
        version=found.version,
        staged_path=f"{table.location}/{path}",
        manifest_path=path,
        manifest_size=manifest.size,
        e_tag=manifest.e_tag,
        naming_scheme=found.scheme,
        finalized=True,
    )
    return ctx.store.record_version(new)[1]


def cleaned(ctx: Context, table: TableRecord, branch: str = "") -> list[VersionRecord]:
    """Records whose manifest was there and is gone."""
    records = [record for record in records_of(ctx, table, branch) if record.finalized]
    stored = stored_versions(ctx, table, branch) if records else {}  # looked up last: a commit meanwhile is seen
    return [record for record in records if record.version not in stored]


def forget_cleaned(ctx: Context, table: TableRecord, branch: str = "") -> int:
    """Delete the records of versions whose manifest is gone; how many there were."""
    return forget(ctx, table, branch, cleaned(ctx, table, branch))


def forget(ctx: Context, table: TableRecord, branch: str, records: Iterable[VersionRecord]) -> int:
    """Delete records of a branch ('' is main) in one transaction; how many were still there."""
    return ctx.store.delete_versions(table.id, branch, [(record.version, record.version + 1) for record in records])


def forget_branch(ctx: Context, table: TableRecord, branch: str) -> None:
    """Delete what a branch that is no more has left in the catalog: its records would keep the name from a new one.

    One whose manifest is there is left: somebody may be making the branch just now.
    """
    ctx.store.clip_deleted_versions(table.id, branch, 0)
    for record in records_of(ctx, table, branch):
        if is_nowhere(ctx, table, record):
            ctx.store.forget_version(record)


def is_nowhere(ctx: Context, table: TableRecord, record: VersionRecord) -> bool:
    """Whether a manifest is neither staged nor final; the final place is looked at last: it is there before the other
    goes.
    """
    return all(ctx.storage.stat(table.location, place) is None for place in (record.staged_path, record.manifest_path))
