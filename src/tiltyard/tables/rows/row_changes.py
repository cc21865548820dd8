"""Commit merges, updates and deletes of tables on object stores in few round trips, as appends are committed.

Lance's own commit looks up the latest version before it reads rows, lists all versions, and puts a manifest that is
read again to get its final name. Here the rows are changed on the version that the catalog has, whose manifest is read
and which is looked up in storage meanwhile, and the next manifest is made of it on this machine. Lance rebases the
change there on what was committed meanwhile. Where that is a conflict, or Lance has to commit itself, nothing is
committed here, and Lance changes the rows again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from tiltyard.model.columns.primary_keys import unenforced_key
from tiltyard.runtime.pool import run_together
from tiltyard.storage.caches.version_cache import VersionInfo
from tiltyard.storage.errors import lance_errors, may_have_committed
from tiltyard.storage.locks import LockKind
from tiltyard.storage.manifests.next_manifest import COMMIT_HOOKS
from tiltyard.storage.writing import commit_made_here, discard_transaction
from tiltyard.tables.keys.errors import DuplicateKeyError

if TYPE_CHECKING:
    from collections.abc import Callable

    import lance

    from tiltyard.storage.writing import UnopenedVersion
    from tiltyard.tables.rows.write_target import OpenedVersion, WriteBase, WriteTarget

Result = TypeVar("Result")

_MAX_REBASED = 16
"""Versions that came meanwhile, whose manifests are read: after more of them Lance changes the rows again."""
MAX_FRAGMENTS = 4_000
"""Fragments of tables that are changed here: the manifests of more of them are too large to be made here."""

Written: TypeAlias = "tuple[lance.Transaction, Result] | None"
"""A transaction whose files are written, and what the response says of it; None where Lance has to do it."""


@dataclass(frozen=True, slots=True)
class CommittedChange(Generic[Result]):
    """A committed change of rows: what `write` has returned of it, and its version."""

    result: Result
    version: int


def change_rows(
    target: WriteTarget, write: Callable[[lance.LanceDataset], Written[Result]], seconds: float
) -> CommittedChange[Result] | None:
    """Commit a change of rows to a managed table's main branch on an object store; None if Lance has to do it.

    `write` gets a shared dataset of the latest version, which it must not mutate; it may be called again. The caller
    holds the table's lock. `seconds` is how long to wait for appends that are about to commit. Raises what `write` and
    the commit route raise.
    """
    while (base := target.open_to_change()) is not None and _has_small_manifest(base.dataset):
        with lance_errors(base.dataset), target.looking_up(base) as opened:
            written, error = _write(write, base.dataset)
        try:
            if not opened.is_in_storage:  # the folder was restored from a copy: begin again with what it has
                _discard(target, base, written)
                continue
        except BaseException:
            _discard(target, base, written)
            raise
        if error is not None:
            raise error
        if written is None:
            return None
        transaction, result = written
        committed = _commit(target, base, opened, transaction, seconds)
        if committed is None:
            return None
        target.share_when_open(base, committed)
        return CommittedChange(result, target.mark_written(committed.version))
    return None


def _write(
    write: Callable[[lance.LanceDataset], Written[Result]], dataset: lance.LanceDataset
) -> tuple[Written[Result], Exception | None]:
    """Call `write`; return its error, which counts only if storage still has the version."""
    try:
        with lance_errors(dataset):
            return write(dataset), None
    except Exception as error:  # noqa: BLE001  # raised by the caller
        return None, error


def _discard(target: WriteTarget, base: WriteBase, written: Written[Result]) -> None:
    if written is not None:
        discard_transaction(target.ctx.storage, target.base, written[0], base.dataset)


def _commit(
    target: WriteTarget, base: WriteBase, opened: OpenedVersion, transaction: lance.Transaction, seconds: float
) -> UnopenedVersion | None:
    """Commit a transaction after the version that it was made on; None, without its files, if that fails."""
    storage = target.ctx.storage
    try:
        with storage.locks.hold(LockKind.COMMITS, target.key, seconds):
            committed = _commit_rebased(target, base, opened.manifest, transaction)
    except BaseException as error:
        if not may_have_committed(error):
            discard_transaction(storage, target.base, transaction, base.dataset)
        raise
    if committed is None:
        discard_transaction(storage, target.base, transaction, base.dataset)
    return committed


def _commit_rebased(
    target: WriteTarget, base: WriteBase, manifest: bytes | None, transaction: lance.Transaction
) -> UnopenedVersion | None:
    """Commit right after the latest version, as long as other servers take its number; None where Lance has to.

    The manifest in storage has to be that of the dataset: the number alone could be that of another version, after the
    folder was restored from a copy.
    """
    if manifest is None or not _is_same_version(base, manifest):
        return None
    manifests = {base.version: manifest}
    while _add_later(target, base, manifests):
        *_, version = manifests
        route = target.commit_route
        assert route is not None
        try:
            committed = commit_made_here(target.ctx.storage, target.location, manifests, transaction, route)
        except DuplicateKeyError:
            if len(manifests) == 1:
                raise
            return None  # another commit may have brought the key: a merge that runs again updates its row
        if committed is not None or _latest_version(target) == version:
            return committed
    return None


def _add_later(target: WriteTarget, base: WriteBase, manifests: dict[int, bytes]) -> bool:
    """Add the manifests of the versions that were committed meanwhile; return whether those are all of them.

    A merge whose table has a key in Lance's schema is not rebased here: what Lance compares then is not in its
    transaction as pylance has it.
    """
    latest = _latest_version(target)
    if latest is None or not base.version <= latest <= base.version + _MAX_REBASED:
        return False
    later = range(max(manifests) + 1, latest + 1)
    if not later:
        return latest == max(manifests)
    if unenforced_key(base.dataset.schema):
        return False
    contents = run_together(partial(target.ctx.storage.manifests.read_latest, target.location), later, len(later))
    manifests.update((version, content) for version, content in zip(later, contents, strict=True) if content)
    return all(contents)


def _latest_version(target: WriteTarget) -> int | None:
    record = target.ctx.store.latest_version(target.record.id, target.branch.key)
    return None if record is None else record.version


def _is_same_version(base: WriteBase, manifest: bytes) -> bool:
    return VersionInfo.of(base.dataset.get_version()) == VersionInfo.of_manifest(manifest, base.version)


def _has_small_manifest(dataset: lance.LanceDataset) -> bool:
    """Return whether a manifest is one that can be the base of the next one here, as far as can be told before."""
    has_hooks = any(name.startswith(COMMIT_HOOKS) for name in dataset.config())
    return not has_hooks and not dataset.base_paths() and len(dataset.fragment_ids()) <= MAX_FRAGMENTS
