"""Validate requests to commit a staged manifest; `recording` records them.

A version that storage has already, because a commit bypassed the server, is a conflict.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from lance_namespace.errors import (
    ConcurrentModificationError,
    InvalidInputError,
    LanceNamespaceError,
    UnsupportedOperationError,
)
from msgspec import structs

from tiltyard.model.branches import Branch
from tiltyard.model.columns.primary_keys import PrimaryKey
from tiltyard.model.ids import table_id
from tiltyard.model.modes import parse_mode
from tiltyard.model.spec import models
from tiltyard.model.views.plain_views import refuse_view
from tiltyard.runtime.durability import WrittenFile
from tiltyard.runtime.pool import run_together, start_thread
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locations import is_local
from tiltyard.storage.manifests.manifest_format import (
    NamingScheme,
    classified_fields,
    manifest_name,
    naming_scheme_of,
    versions_folder,
)
from tiltyard.store import NewVersion, TableRecord, VersionRecord
from tiltyard.tables.classification.new_columns import keep_classifications
from tiltyard.tables.commits.changed_rows import with_changed_rows
from tiltyard.tables.commits.finalizing import MAX_THREADS, finalize_pending
from tiltyard.tables.contracts.enforcement import check_contract
from tiltyard.tables.keys.enforcement import check_version, first_taken_key
from tiltyard.tables.keys.errors import taken_sentence
from tiltyard.tables.schema.column_declarations import check_declared, check_quoted
from tiltyard.tables.versions.records import (
    delete_branch_records,
    find_scheme,
    latest_stored_version,
    wire_version,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from tiltyard.context import Context
    from tiltyard.model.ids import Id
    from tiltyard.storage.files import FileContent
    from tiltyard.tables.keys.checked_appends import CheckedAppend

log = logging.getLogger("tiltyard.versions")

T = TypeVar("T")
Result = TypeVar("Result")

MAX_STORED_MANIFEST_BYTES = 64 << 10
"""Bytes of a manifest that the catalog stores until its file is durable: one write to the disk instead of two."""
_MAX_KEPT_BYTES = 64 << 10
"""Bytes of a staged object that are kept in memory from its check until it gets its final name."""

Entry = models.CreateTableVersionRequest | models.CreateTableVersionEntry


def validate_version(
    ctx: Context, table: TableRecord, entry: Entry, latest: NewVersion | int | None = None, *, alone: bool = True
) -> NewVersion:
    """Validate a request to commit a staged manifest; return the version to record.

    The staged file is read unless it is committed already. `latest` is the table's latest version, if the caller knows
    better than storage. `alone` is False for a version that is recorded in one transaction with others: all that is
    wrong with it has to be found here. That the version exists is reported first, whatever else is wrong with the
    request. Raises as CreateTableVersion does.
    """
    branch = Branch.parse(entry.branch)
    refuse_view(table.properties)
    try:
        return _validate_version(ctx, table, branch, entry, latest, alone)
    except InvalidInputError as error:
        last = version_number(latest) if latest is not None else latest_stored_version(ctx, table, branch) or 0
        if 1 <= entry.version <= last:
            raise _exists_error(entry.version, last) from error
        raise


def _validate_version(
    ctx: Context, table: TableRecord, branch: Branch, entry: Entry, latest: NewVersion | int | None, alone: bool
) -> NewVersion:
    staged = _check_staged_path(ctx, table, branch, entry.manifest_path)
    try:
        file, manifest = ctx.storage.manifests.read_checked(table.location, staged, entry.version)
    except InvalidInputError:
        if ctx.storage.files(table.location).stat(staged) is not None:
            raise
        if not _is_recorded(ctx, new := _new_version(ctx, table, branch, entry, staged, None)):
            raise InvalidInputError("There is no staged manifest at this path: write it first.") from None
        return new
    new = _new_version(ctx, table, branch, entry, staged, file, manifest.new_files)
    if manifest.code_declarations:
        check_declared(ctx, table_id(entry.id), table, branch, manifest.code_declarations)
    if manifest.has_classifications and branch.is_main and table.id:
        content = file.content or ctx.storage.manifests.read(table.location, staged).content
        keep_classifications(ctx, table, classified_fields(content))
    if manifest.backtick_columns:
        check_quoted(ctx, table, branch, manifest.backtick_columns)
    if latest is not None or not _is_next(ctx, table, new, alone, manifest.previous):
        _check_next(ctx, new, branch, latest)
    return with_changed_rows(
        ctx, table, _check_declarations(ctx, table, new, file.content, is_client=True), file.content
    )


def validate_versions(
    ctx: Context,
    entries: Sequence[tuple[TableRecord, Entry]],
    latest_of: Callable[[int], NewVersion | int | None] = lambda index: None,
) -> list[NewVersion]:
    """Validate versions that are recorded in one transaction: those of one table in order, several tables at once.

    `latest_of(index)` is the latest version before an entry, if the caller knows better than storage. Raises what
    `validate_version` raises for the first entry that is refused.
    """
    indexes_by_table: dict[str, list[int]] = {}
    for index, (table, _) in enumerate(entries):
        indexes_by_table.setdefault(table.location, []).append(index)

    def validate(indexes: Sequence[int]) -> list[tuple[int, NewVersion | Exception]]:
        outcomes, latest = list[tuple[int, NewVersion | Exception]](), dict[Branch, NewVersion]()
        for index in indexes:
            table, entry = entries[index]
            branch = Branch.parse(entry.branch)
            try:
                known = latest.get(branch) or latest_of(index)
                latest[branch] = validate_version(ctx, table, entry, known, alone=False)
                outcomes.append((index, latest[branch]))
            except Exception as error:  # noqa: BLE001  # raised below, unless an earlier entry has one
                return [*outcomes, (index, error)]
        return outcomes

    groups = map_tables(validate, indexes_by_table)
    by_index = dict(sorted(outcome for group in groups for outcome in group))
    for outcome in by_index.values():
        if isinstance(outcome, Exception):
            raise outcome
    return [version for version in by_index.values() if not isinstance(version, Exception)]


def map_tables(work: Callable[[T], Result], by_location: Mapping[str, T]) -> list[Result]:
    """Call `work` for each of several tables; at the same time where they are on object stores, which is waiting."""
    if len(by_location) < 2 or all(map(is_local, by_location)):
        return list(map(work, by_location.values()))
    return run_together(work, by_location.values(), MAX_THREADS)


def _check_declarations(
    ctx: Context, table: TableRecord, new: NewVersion, content: bytes, *, is_client: bool = False
) -> NewVersion:
    """Check a version by its table's primary key and contract; `content` is its manifest, empty for one that is large.

    In another thread: the commits of this process are called by Lance in threads of its own, in which reading rows,
    which calls Lance, ends the process. `is_client` says that a client wrote the files.
    """
    if table.primary_key is None and table.contract is None:
        return new
    content = content or ctx.storage.manifests.read(table.location, new.staged_path).content

    def check() -> NewVersion:
        checked = new if new.checked_key is not None else check_version(ctx, table, new, content)
        return check_contract(ctx, table, checked, content, is_client=is_client)

    return start_thread("check-rows", check).result()


def explain_conflict(
    ctx: Context, entries: Iterable[Entry], error: ConcurrentModificationError
) -> ConcurrentModificationError:
    """Return the error of a refused batch, with the first key that it brings and that another commit brought first.

    Run again on the latest versions, an insert of the key would be refused for good, and an upsert would update its
    row: so it stays an error after which that is tried.
    """
    for entry in entries:
        try:
            sentence = _taken_key(ctx, entry)
        except LanceNamespaceError as failure:  # its table or branch is gone by now: the refusal stands
            log.info("a refused version of %s is not explained: %s", entry.id, failure)
            continue
        if sentence is not None:
            return ConcurrentModificationError(f"{error} {sentence}")
    return error


def _taken_key(ctx: Context, entry: Entry) -> str | None:
    """Return the sentence on a key of one version of a refused batch that its table has by now; None without one."""
    table = ctx.find_table(table_id(entry.id))
    if table.primary_key is None:
        return None
    branch, key = Branch.parse(entry.branch), PrimaryKey.from_json(table.primary_key)
    recorded = ctx.store.latest_version(table.id, branch.key)
    if recorded is None or recorded.version < entry.version:  # it is another table's version that is taken
        return None
    staged = _check_staged_path(ctx, table, branch, entry.manifest_path)
    file, _ = ctx.storage.manifests.read_checked(table.location, staged, entry.version)
    content = file.content or ctx.storage.manifests.read(table.location, staged).content
    finalize_pending(ctx, table.id)
    latest = ctx.storage.datasets.open_for_reading(table.location, branch)
    taken = first_taken_key(ctx, table, key, _new_version(ctx, table, branch, entry, staged, None), content, latest)
    return None if taken is None else taken_sentence(ctx, table, key, taken)


def check_commits_here(path: Id, table: TableRecord) -> None:
    """Raise UnsupportedOperationError for a table below a mount that others commit to without this catalog.

    One of them could take the version's number after the batch is recorded, which then would be committed in part.
    """
    if table.mount_id is not None and not table.managed:
        raise UnsupportedOperationError(
            f"{path} is below a mount, and its commits do not go through this catalog: commit to it alone, or alter "
            "the mount to managed versioning."
        )


def version_number(version: NewVersion | int) -> int:
    """Return the number of a version."""
    return version if isinstance(version, int) else version.version


def trusted_version(
    ctx: Context,
    table: TableRecord,
    entry: Entry,
    checked_appends: Sequence[CheckedAppend] = (),
    content: bytes | None = None,
    *,
    durable: bool = True,
) -> NewVersion:
    """Return the version to record for a manifest that Lance staged in this process.

    Only its path is checked, and what its table declares of rows, unless these were checked before.
    `content` is that of a staged object, if the caller has it. Unless what the version brings is `durable` already, its
    files are those of the manifest. Raises IncompleteFileError for a manifest that is not whole.
    """
    branch, manifests = Branch.parse(entry.branch), ctx.storage.manifests
    staged = _check_staged_path(ctx, table, branch, entry.manifest_path)
    file = manifests.read(table.location, staged) if is_local(table.location) else None
    files = list[WrittenFile]()
    if file is not None:
        files = manifests.staged_files(table.location, staged, file.content)
        if not durable:
            files = manifests.new_files(table.location, staged, file.content, entry.version)
    new = _new_version(ctx, table, branch, entry, staged, file, files)
    if file is None:
        new = structs.replace(new, content=content)
    new = with_changed_rows(ctx, table, new, content or b"" if file is None else file.content)
    for checked in checked_appends:
        if checked.covers(table, new):
            new = structs.replace(new, checked_key=checked.token)
            if table.contract is None:
                return new
    return _check_declarations(ctx, table, new, content or b"" if file is None else file.content)


def _check_staged_path(ctx: Context, table: TableRecord, branch: Branch, path: str) -> str:
    """Return the full path of a staged manifest. Raises InvalidInputError unless its branch's folder has it."""
    folder = versions_folder(branch)
    staged = ctx.storage.manifests.resolve_path(table.location, path)
    if staged.rpartition("/")[0] != f"{table.location}/{folder}":
        raise InvalidInputError(f"The manifest has to lie in the folder {folder} of its table.")
    return staged


def _new_version(
    ctx: Context,
    table: TableRecord,
    branch: Branch,
    entry: Entry,
    staged: str,
    file: FileContent | None,
    files: Sequence[WrittenFile] = (),
) -> NewVersion:
    """Return the version to record for a request and its staged file, None if that was not read, and its new `files`.

    On a disk the whole of a small manifest is stored with its record, and renaming it leaves its tag as it is. Objects
    are durable as they are, and get another tag.
    """
    scheme = parse_mode(NamingScheme, entry.naming_scheme, naming_scheme_of(staged), "naming scheme")
    local_file = file if is_local(table.location) else None
    is_stored = local_file is not None and local_file.stat.size <= MAX_STORED_MANIFEST_BYTES
    if local_file is not None and not is_stored:
        files = [*files, WrittenFile(staged, local_file.stat.size)]
    return NewVersion(
        table_id=table.id,
        branch=branch.key,
        version=entry.version,
        staged_path=staged,
        manifest_path=f"{versions_folder(branch)}/{manifest_name(entry.version, scheme)}",
        manifest_size=local_file.stat.size if local_file else entry.manifest_size,
        e_tag=local_file.stat.e_tag if local_file else entry.e_tag,
        metadata=entry.metadata,
        naming_scheme=scheme,
        manifest=local_file.content if local_file and is_stored else None,
        finalized_by_rename=local_file is not None,
        primary_key=table.primary_key,
        contract=table.contract,
        content=_content_to_keep(file),
        files=tuple(files),
        committed_by=ctx.principal,
    )


def _content_to_keep(file: FileContent | None) -> bytes | None:
    """Return the content of a small staged object: a batch of a thousand keeps that of all until it is recorded."""
    return file.content or None if file is not None and file.stat.size <= _MAX_KEPT_BYTES else None


def _is_recorded(ctx: Context, new: NewVersion) -> bool:
    try:
        return ctx.store.describe_version(new.table_id, new.version, new.branch).staged_path == new.staged_path
    except LanceNamespaceError:
        return False


def _is_next(ctx: Context, table: TableRecord, new: NewVersion, alone: bool, previous: NamingScheme | None) -> bool:
    """Return whether storage has the version before, and not this one: two lookups, for less than opening a table.

    Right after a commit of this process there is one lookup at most: if others have taken the name since, finalizing
    meets it. On a disk, where lookups are quick, the version before is looked up even then: a restore by file copy may
    have removed it. `previous` is how that is named, where its manifest was just read.
    """
    if new.version <= 1:
        return False
    follows_ours = alone and ctx.services.commit_log.is_latest(table.id, new.branch, new.version - 1, new.naming_scheme)
    if follows_ours and not is_local(table.location):
        return True
    if not follows_ours and ctx.storage.may_have_version_gaps(table.location):
        return False  # a later version may be the latest, behind one that was cleaned up
    files, scheme = ctx.storage.files(table.location), NamingScheme(new.naming_scheme)
    before = f"{new.staged_path.rpartition('/')[0]}/{manifest_name(new.version - 1, scheme)}"  # a path that was checked
    final = f"{table.location}/{new.manifest_path}"
    with lance_errors():
        if is_local(table.location):
            return (previous is scheme or files.is_file(before)) and (follows_ours or not files.is_file(final))
        has_before, has_final = files.stat_all([before, final])
        return has_before is not None and has_final is None


def _check_next(ctx: Context, new: NewVersion, branch: Branch, latest: NewVersion | int | None) -> None:
    """Check that a version is the next one of its branch, or is recorded already, and follows its naming scheme."""
    if latest is None:
        record = ctx.store.table_by_id(new.table_id)
        stored = latest_stored_version(ctx, record, branch)
        if stored is None:  # a branch begins at the version where it leaves main, and is listed once it has that
            delete_branch_records(ctx, record, branch)
            return
        _check_scheme(new, find_scheme(ctx, record, branch, stored))
        last = stored
    else:
        last = version_number(latest)
        _check_scheme(new, None if isinstance(latest, int) else latest.naming_scheme)
    if new.version > last + 1:
        raise InvalidInputError(f"The next version is {last + 1}, not {new.version}.")
    if new.version <= last and not _is_recorded(ctx, new):
        raise _exists_error(new.version, last)


def _exists_error(version: int, latest: int) -> ConcurrentModificationError:
    return ConcurrentModificationError(f"Version {version} exists: describe it, and rebase on {latest}.")


def _check_scheme(new: NewVersion, scheme: str | None) -> None:
    """Raise InvalidInputError for a name by another scheme than the table's: Lance opens no folder that has both."""
    if scheme not in (None, new.naming_scheme):
        raise InvalidInputError(f"This table's manifests are named by the scheme {scheme}: nothing was committed.")


def create_version_response(table: TableRecord, record: VersionRecord) -> models.CreateTableVersionResponse:
    """Return the response of CreateTableVersion."""
    return models.CreateTableVersionResponse(version=wire_version(table, record))
