"""End a block: commit its changes in one batch, or roll them back."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import lance_namespace as upstream
from lance_namespace.errors import (
    ConcurrentModificationError,
    LanceNamespaceError,
    NamespaceNotFoundError,
    TableBranchNotFoundError,
    TableNotFoundError,
    TableVersionNotFoundError,
)

from tiltyard.publishing.batch_call import RETRYABLE_ERRORS, is_refusal
from tiltyard.publishing.errors import PublishConflictError, PublishUncertainError
from tiltyard.publishing.staged import display_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tiltyard.publishing.batch_call import Send
    from tiltyard.publishing.staged import Path, PublishedTable, StagedBranch, StagedChanges

log = logging.getLogger("tiltyard.publishing")

PAUSES = (0.1, 0.5, 2.0, 5.0)
"""Seconds before each retry of a batch, after a response that did not say whether it is committed."""


class MappingRequest(dict[str, Any]):
    """A request as pylance builds it for methods that take mappings."""

    def model_dump(self) -> dict[str, Any]:
        """Return a plain dict."""
        return dict(self)


def commit(
    client: upstream.LanceNamespace, send: Send, changes: StagedChanges, renew: Callable[[PublishedTable], None]
) -> str | None:
    """Send the batch; return its transaction's id, None if nothing was sent or the response was lost.

    A block that has changed nothing has still to have read versions of one moment, if it has read several tables.
    `renew` replaces a table's credentials if they are about to expire.
    Raises PublishConflictError, PublishUncertainError, and the error with which the server refuses the batch.
    """
    reads = changes.read_branches()
    if not changes.operations and len(reads) <= 1:
        return None
    replaced = [path for path, table in changes.deregistered.items() if _location(client, path) != table.location]
    # The catalog does not know of commits straight to storage: so these tables are compared here, just before.
    changed = [branch.table.path for branch in reads if not branch.table.managed and _is_changed(client, branch)]
    if replaced or changed:
        raise PublishConflictError(dict.fromkeys([*replaced, *changed]))
    checks = [branch.check() for branch in reads if branch.table.managed]
    if not checks and not changes.operations:
        return None
    transaction_id = _send(client, send, changes, [*checks, *changes.operations])
    for branch in changes.branches():
        with _best_effort(branch.table):
            renew(branch.table)
            branch.delete_copies()
    return transaction_id


def roll_back(client: upstream.LanceNamespace, changes: StagedChanges, renew: Callable[[PublishedTable], None]) -> None:
    """Delete the files of the block. Those that cannot be deleted are logged, and left to the garbage collection."""
    for branch in changes.branches():
        if not branch.table.declared:
            with _best_effort(branch.table):
                renew(branch.table)
                _discard(client, branch)
    for table in changes.new_tables():
        with _best_effort(table):
            renew(table)
            if not _is_in_catalog(client, table):
                table.delete()


def _is_in_catalog(client: upstream.LanceNamespace, table: PublishedTable) -> bool:
    """Whether a new table is in the catalog after all; False without an answer: the batch was refused or never sent."""
    try:
        return _location(client, table.path) == table.location
    except Exception as error:  # noqa: BLE001  # see above
        log.warning("cannot look for %s in the catalog: %s", table.location, error)
        return False


def _discard(client: upstream.LanceNamespace, branch: StagedBranch) -> None:
    """Delete the staged versions of a branch, and their new files.

    The client looks up the table by name, which may be another table's by now: then it is unknown which files older
    versions reference, and only manifests and transactions are deleted. Raises what the client and the storage raise.
    """
    base, others = _base_manifest(client, branch), _other_manifests(client, branch)
    has_base = base is not None or not branch.base_version
    if not has_base or others is None or _location(client, branch.table.path) != branch.table.location:
        others = None
    branch.discard(base, others)


@contextmanager
def _best_effort(table: PublishedTable) -> Iterator[None]:
    """Log errors of a clean-up instead of raising them: the caller needs to learn how the block ended."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # see above
        log.warning("files of a publication are left in %s: %s", table.location, error)


def _base_manifest(client: upstream.LanceNamespace, branch: StagedBranch) -> str | None:
    """Return the manifest of a branch's base version; None if there is none any more."""
    try:
        return _manifest(client, branch, branch.base_version) if branch.base_version else None
    except LanceNamespaceError:
        return None


def _other_manifests(client: upstream.LanceNamespace, branch: StagedBranch) -> list[str] | None:
    """Return the manifests of all other versions whose files the block's versions may reference; None if unknown.

    These are the versions that were restored, and those that others have committed since: Lance finds them in storage,
    and versions staged on top of them reference their files, too. Versions cleaned up by now are not needed.
    Raises what the client raises.
    """
    try:
        restored = [version for version in branch.restored_versions() if version <= branch.base_version]
        manifests = [_manifest(client, branch, version) for version in restored]
        latest = latest_version(client, branch)
    except (TableNotFoundError, TableVersionNotFoundError):
        return None
    for version in range(branch.base_version + 1, latest + 1):
        with suppress(TableVersionNotFoundError):
            manifests.append(_manifest(client, branch, version))
    return manifests


def _manifest(client: upstream.LanceNamespace, branch: StagedBranch, version: int) -> str:
    """Return the path of a committed version's manifest. Raises TableVersionNotFoundError, TableNotFoundError."""
    request = MappingRequest(id=list(branch.table.path), version=version)
    if branch.name:
        request["branch"] = branch.name
    response: Any = client.describe_table_version(request)  # type: ignore[arg-type]  # as pylance itself calls it
    description = response["version"] if isinstance(response, dict) else response.version.to_dict()
    return str(description["manifest_path"])


def _send(
    client: upstream.LanceNamespace, send: Send, changes: StagedChanges, operations: list[upstream.CommitTableOperation]
) -> str | None:
    """Send the batch with retries under one idempotency key; return as `commit` does, and raise as it does."""
    request, key = upstream.BatchCommitTablesRequest(operations=operations), uuid4().hex
    pauses = iter(PAUSES)
    is_certain = True  # that no earlier attempt has been committed
    while True:
        try:
            transaction_id = send(request, key).transaction_id
        except Exception as error:
            if is_certain and is_refusal(error):
                _raise_conflict(client, changes, error)
                raise
            pause = next(pauses, None)
            if changes.operations and not isinstance(error, RETRYABLE_ERRORS):
                is_certain = False  # the next response may be about this attempt
                if _is_committed(client, changes):
                    _check_not_replaced(client, changes)
                    return None
            if pause is None and is_certain:
                raise
            if pause is None:
                raise PublishUncertainError(
                    "Whether the server published is not known: look at the tables before you run the block again."
                ) from error
        else:
            if not is_certain:
                _check_not_replaced(client, changes)
            return transaction_id
        time.sleep(pause)


def _raise_conflict(client: upstream.LanceNamespace, changes: StagedChanges, error: Exception) -> None:
    """Raise PublishConflictError if that is why a batch was refused."""
    conflicts = _find_conflicts_if_answered(client, changes)
    if conflicts or isinstance(error, ConcurrentModificationError):
        raise PublishConflictError(conflicts, str(error)) from error


def _find_conflicts_if_answered(client: upstream.LanceNamespace, changes: StagedChanges) -> list[Path]:
    """Find conflicting tables; none if the server does not answer: the caller gets its refusal then."""
    try:
        return _find_conflicts(client, changes)
    except Exception as error:  # noqa: BLE001  # see above
        log.warning("cannot tell which tables kept a publication from taking effect: %s", error)
        return []


def _find_conflicts(client: upstream.LanceNamespace, changes: StagedChanges) -> list[Path]:
    """Find the tables that others have changed since the block read them."""
    branches = [branch for branch in changes.branches() if branch.versions] + changes.read_branches()
    tables = {branch.table.path: branch.table for branch in branches}
    tables |= {table.path: table for table in changes.new_tables()}
    replaced = [path for path, table in tables.items() if _location(client, path) != _expected_location(table)]
    unreplaced = [branch for branch in branches if branch.table.path not in replaced]
    changed = [branch.table.path for branch in unreplaced if _is_behind(client, branch)]
    dropped = [path for path in changes.deregistered if _location(client, path) is None]
    return list(dict.fromkeys([*replaced, *changed, *dropped]))


def _expected_location(table: PublishedTable) -> str | None:
    """Return the location that a table must have for the batch to succeed; None if its name must be free."""
    return None if table.declared else table.location


def _location(client: upstream.LanceNamespace, path: Path) -> str | None:
    """Return a table's location; None if there is no table."""
    try:
        return client.describe_table(upstream.DescribeTableRequest(id=list(path))).location
    except (TableNotFoundError, NamespaceNotFoundError):
        return None


def _is_changed(client: upstream.LanceNamespace, branch: StagedBranch) -> bool:
    """Whether another writer committed to a branch after the block's base version, or replaced its table."""
    return _location(client, branch.table.path) != branch.table.location or _is_behind(client, branch)


def _is_behind(client: upstream.LanceNamespace, branch: StagedBranch) -> bool:
    """Whether another writer committed to a branch after the block's base version."""
    return not branch.table.declared and latest_version(client, branch) != branch.base_version


def latest_version(client: upstream.LanceNamespace, branch: StagedBranch) -> int:
    """Return the latest committed version of a branch; 0 without any. Raises TableNotFoundError."""
    try:
        latest = latest_entry(client, branch)
    except TableBranchNotFoundError:
        return 0
    return latest.version if latest else 0


def latest_entry(client: upstream.LanceNamespace, branch: StagedBranch) -> upstream.TableVersion | None:
    """Return the latest committed version of a branch. Raises TableNotFoundError, TableBranchNotFoundError."""
    request = upstream.ListTableVersionsRequest(
        id=list(branch.table.path), branch=branch.name, limit=1, descending=True
    )
    versions = client.list_table_versions(request).versions
    return versions[0] if versions else None


def _check_not_replaced(client: upstream.LanceNamespace, changes: StagedChanges) -> None:
    """Raise PublishUncertainError if a commit that bypassed the server has replaced a version that was committed."""
    if lost := _find_replaced(client, changes):
        names = ", ".join(map(display_id, lost))
        raise PublishUncertainError(
            f"The server published all but {names}: a commit that bypassed the server took its version at the same "
            "moment. Look at the tables before you run the block again."
        )


def _find_replaced(client: upstream.LanceNamespace, changes: StagedChanges) -> list[Path]:
    """Return the tables of which versions were replaced. Raises PublishUncertainError if the server does not answer.

    No other error: all is published, and its files stay.
    """
    pauses = iter(PAUSES)
    while True:
        try:
            return [branch.table.path for branch in changes.branches() if _is_replaced(client, branch)]
        except Exception as error:
            if (pause := next(pauses, None)) is None:
                raise PublishUncertainError(
                    "The server published, and does not say whether a commit that bypassed it has taken one of the "
                    "versions at the same moment: look at the tables before you run the block again."
                ) from error
        time.sleep(pause)


def _is_replaced(client: upstream.LanceNamespace, branch: StagedBranch) -> bool:
    """Whether other versions have the numbers of the block's versions; a version that is gone was committed."""
    for version, staged in branch.versions.items():
        with suppress(TableNotFoundError, TableBranchNotFoundError, TableVersionNotFoundError):
            if not branch.is_final(staged, _manifest(client, branch, version)):
                return True
    return False


def _is_committed(client: upstream.LanceNamespace, changes: StagedChanges) -> bool:
    """Whether the batch is known to be committed: one of its operations shows it for all.

    A declaration or a version is checked if there is one, which no other client can have made identically; that a table
    is deregistered proves less.
    """
    first = next(
        (operation for operation in changes.operations if operation.deregister_table is None), changes.operations[0]
    )
    try:
        if first.declare_table is not None:
            return _location(client, tuple(first.declare_table.id or ())) == first.declare_table.location
        if first.deregister_table is not None:
            return _location(client, tuple(first.deregister_table.id or ())) is None
        assert first.create_table_version is not None
        version = first.create_table_version
        branch = changes.known_branch(tuple(version.id or ()), version.branch)
        assert branch is not None
        staged = branch.versions[version.version]
        return branch.is_final(staged, _manifest(client, branch, version.version))
    except Exception as error:  # noqa: BLE001  # the server fails, or has no such version
        if not is_refusal(error):
            log.warning("cannot ask whether a publication is committed: %s", error)
        return False
