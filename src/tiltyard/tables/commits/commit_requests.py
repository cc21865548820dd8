"""What a client asks CreateTableVersion for: from a staged manifest to the version that is to be recorded.

A version that storage holds already, because somebody committed round the server, is a conflict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    InvalidTableStateError,
    LanceNamespaceError,
    TableBranchNotFoundError,
)

from tiltyard.model.ids import table_id
from tiltyard.model.modes import parse_mode
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locations import is_local
from tiltyard.storage.manifest_format import NamingScheme, manifest_name, scheme_of, versions_folder
from tiltyard.store import NewVersion, TableRecord, VersionRecord
from tiltyard.tables.schema.column_declarations import check_declared, check_quoted
from tiltyard.tables.versions.records import branch_key, forget_branch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tiltyard.context import Context
    from tiltyard.storage.files import WholeFile

MOST_KEPT = 16 << 10
"""Bytes of a manifest that is kept in the catalog until its file is durable: one write to the disk instead of two."""

Entry = models.CreateTableVersionRequest | models.CreateTableVersionEntry


def staged_version(
    ctx: Context, table: TableRecord, entry: Entry, before: NewVersion | int | None = None, *, alone: bool = True
) -> NewVersion:
    """What an entry asks to record; its staged file is looked at unless it is committed already.

    `before` is the table's latest version, if the caller knows better than storage. What is wrong with one that is not
    `alone` has to be found here, before the others are recorded with it. That the version exists is answered first,
    whatever else is wrong with the entry. Raises as CreateTableVersion does.
    """
    try:
        return _staged_version(ctx, table, entry, before, alone)
    except InvalidInputError as error:
        latest = number(before) if before is not None else latest_at(ctx, table, entry.branch) or 0
        if 1 <= entry.version <= latest:
            raise _exists(entry.version, latest) from error
        raise


def _staged_version(
    ctx: Context, table: TableRecord, entry: Entry, before: NewVersion | int | None, alone: bool
) -> NewVersion:
    staged = _staged_path(ctx, table, entry)
    try:
        found, manifest = ctx.storage.manifests.checked(table.location, staged, entry.version)
    except InvalidInputError:
        if ctx.storage.files(table.location).stat(staged) is not None:
            raise
        if not _is_recorded(ctx, new := _version(table, entry, staged, None)):
            raise InvalidInputError("There is no staged manifest at this path: write it first.") from None
        return new
    new = _version(table, entry, staged, found)
    if manifest.declared:
        check_declared(ctx, table_id(entry.id), table, entry.branch, manifest.declared)
    if manifest.quoted:
        check_quoted(ctx, table, entry.branch, manifest.quoted)
    if before is not None or not _follows(ctx, table, new, alone):
        _check_next(ctx, new, entry, before)
    return new


def number(version: NewVersion | int) -> int:
    """The number of a version."""
    return version if isinstance(version, int) else version.version


def own_version(ctx: Context, table: TableRecord, entry: Entry) -> NewVersion:
    """The same for what Lance staged in this process."""
    staged = _staged_path(ctx, table, entry)
    if not is_local(table.location):
        return _version(table, entry, staged, None)
    return _version(table, entry, staged, ctx.storage.manifests.content(table.location, staged))


def not_kept(news: Iterable[NewVersion]) -> list[str]:
    """The staged manifests whose files have to be durable before their versions are recorded."""
    return [new.staged_path for new in news if new.manifest is None]


def _staged_path(ctx: Context, table: TableRecord, entry: Entry) -> str:
    """Where an entry says that its manifest is. Raises InvalidInputError unless that is where its branch has them."""
    folder = versions_folder(entry.branch)
    staged = ctx.storage.manifests.named(table.location, entry.manifest_path)
    if staged.rpartition("/")[0] != f"{table.location}/{folder}":
        raise InvalidInputError(f"The manifest has to lie in the folder {folder} of its table.")
    return staged


def _version(table: TableRecord, entry: Entry, staged: str, found: WholeFile | None) -> NewVersion:
    """What an entry asks to record.

    On a disk all of a small manifest is kept with its record, and moving it leaves its tag as it is. Objects are
    durable as they are, and get another tag.
    """
    scheme = parse_mode(NamingScheme, entry.naming_scheme, scheme_of(staged), "naming scheme")
    on_disk = found if is_local(table.location) else None
    return NewVersion(
        table_id=table.id,
        branch=branch_key(entry.branch),
        version=entry.version,
        staged_path=staged,
        manifest_path=f"{versions_folder(entry.branch)}/{manifest_name(entry.version, scheme)}",
        manifest_size=on_disk.stat.size if on_disk else entry.manifest_size,
        e_tag=on_disk.stat.e_tag if on_disk else entry.e_tag,
        metadata=entry.metadata,
        naming_scheme=scheme,
        manifest=on_disk.content if on_disk and on_disk.stat.size <= MOST_KEPT else None,
        same_file=on_disk is not None,
    )


def _is_recorded(ctx: Context, new: NewVersion) -> bool:
    try:
        return ctx.store.describe_version(new.table_id, new.version, new.branch).staged_path == new.staged_path
    except LanceNamespaceError:
        return False


def _follows(ctx: Context, table: TableRecord, new: NewVersion, alone: bool) -> bool:
    """Whether storage has the version before, and not this one: two files to look for; to open a table costs more.

    Right behind a commit of this process there is one at most: if others have taken the name since, that is seen where
    it is given. On a disk, which tells at once, the version before is looked for even then: a restore by file copy may
    have taken it away.
    """
    if new.version <= 1:
        return False
    placed = alone and ctx.services.finalized_log.placed(table.id, new.branch, new.version - 1, new.naming_scheme)
    if placed and not is_local(table.location):
        return True
    if not placed and ctx.storage.may_have_gaps(table.location):
        return False  # a later version may be the latest, behind one that was cleaned up
    is_file, scheme = ctx.storage.files(table.location).is_file, NamingScheme(new.naming_scheme)
    before = f"{new.staged_path.rpartition('/')[0]}/{manifest_name(new.version - 1, scheme)}"  # a path that was checked
    with lance_errors():
        return is_file(before) and (placed or not is_file(f"{table.location}/{new.manifest_path}"))


def _check_next(ctx: Context, new: NewVersion, entry: Entry, before: NewVersion | int | None) -> None:
    if before is None:
        record = ctx.store.table_by_id(new.table_id)
        found = latest_at(ctx, record, entry.branch)
        if found is None:  # a branch begins at the version it leaves main, and is listed once it has that
            forget_branch(ctx, record, new.branch)
            return
        _check_scheme(new, _scheme_at(ctx, record, new.branch, found))
        latest = found
    else:
        latest = number(before)
        _check_scheme(new, None if isinstance(before, int) else before.naming_scheme)
    if new.version > latest + 1:
        raise InvalidInputError(f"The next version is {latest + 1}, not {new.version}.")
    if new.version <= latest and not _is_recorded(ctx, new):
        raise _exists(new.version, latest)


def _exists(version: int, latest: int) -> ConcurrentModificationError:
    return ConcurrentModificationError(f"Version {version} exists: describe it, and rebase on {latest}.")


def _check_scheme(new: NewVersion, scheme: str | None) -> None:
    """Raise InvalidInputError for a name by another scheme than the table's: Lance opens no folder that has both."""
    if scheme not in (None, new.naming_scheme):
        raise InvalidInputError(f"This table's manifests are named by the scheme {scheme}: nothing was committed.")


def _scheme_at(ctx: Context, record: TableRecord, branch: str, version: int) -> str | None:
    """How a version's manifest is named; None if there is none."""
    folder = f"{record.location}/{versions_folder(branch)}"
    is_file = ctx.storage.files(record.location).is_file
    return next((scheme for scheme in NamingScheme if is_file(f"{folder}/{manifest_name(version, scheme)}")), None)


def latest_at(ctx: Context, record: TableRecord, branch: str | None) -> int | None:
    """The latest version of a branch on storage: 0 without data, None for a branch that is not there (yet)."""
    try:
        dataset = ctx.storage.datasets.reader(record.location, ctx.storage.options(record.location), branch)
    except InvalidTableStateError:  # nothing but what is staged
        return 0
    except TableBranchNotFoundError:
        return None
    return int(dataset.version)


def check_same(new: NewVersion, record: VersionRecord, inserted: bool) -> VersionRecord:
    """The record, if it is of this very manifest. Raises ConcurrentModificationError if another has the version."""
    if not inserted and record.staged_path != new.staged_path:
        raise ConcurrentModificationError(f"Version {new.version} exists: describe it, and rebase.")
    return record


def wire_version(table: TableRecord, record: VersionRecord) -> models.TableVersion:
    """A recorded version as clients see it: the path has no scheme, as object stores name files."""
    return models.TableVersion(
        version=record.version,
        manifest_path=f"{urlsplit(table.location).path.lstrip('/')}/{record.manifest_path}",
        manifest_size=record.manifest_size,
        e_tag=record.e_tag,
        timestamp_millis=record.created_at,
        metadata=record.metadata,
    )


def created(table: TableRecord, record: VersionRecord) -> models.CreateTableVersionResponse:
    """What CreateTableVersion answers."""
    return models.CreateTableVersionResponse(version=wire_version(table, record))
