"""The end of a block: one batch, or no trace."""

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
from tiltyard.publishing.changes import shown
from tiltyard.publishing.errors import PublishConflictError, PublishUncertainError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tiltyard.publishing.batch_call import Send
    from tiltyard.publishing.changes import Changes, Path
    from tiltyard.publishing.staged import Line, Table

log = logging.getLogger("tiltyard.publishing")

PAUSES = (0.1, 0.5, 2.0, 5.0)
"""Seconds before a batch is sent again, after an answer that did not say whether it is committed."""


class Asked(dict[str, Any]):
    """A request as pylance makes it for the calls that take mappings."""

    def model_dump(self) -> dict[str, Any]:
        """The same as a plain dict."""
        return dict(self)


def commit(client: upstream.LanceNamespace, send: Send, changes: Changes, renew: Callable[[Table], None]) -> str | None:
    """Send the batch; the id of its transaction, None if it changes nothing or its answer was lost.

    `renew` takes other credentials for a table where its own are about to end.
    Raises PublishConflictError, PublishUncertainError, and what else the server refuses the batch with.
    """
    if not changes.operations:
        return None
    replaced = [path for path, table in changes.deregistered.items() if _location(client, path) != table.location]
    if replaced:
        raise PublishConflictError(replaced)
    transaction = _sent(client, send, changes)
    for line in changes.lines():
        with _at_best(line.table):
            renew(line.table)
            line.forget_copies()
    return transaction


def roll_back(client: upstream.LanceNamespace, changes: Changes, renew: Callable[[Table], None]) -> None:
    """Delete what the block staged. What cannot be deleted is logged, and left to the garbage collection."""
    for line in changes.lines():
        if not line.table.declared:
            with _at_best(line.table):
                renew(line.table)
                _discard(client, line)
    for table in changes.new_tables():
        with _at_best(table):
            renew(table)
            if not _is_there(client, table):
                table.delete()


def _is_there(client: upstream.LanceNamespace, table: Table) -> bool:
    """Whether a new table is in the catalog after all: who does not answer has refused it, or has not heard of it."""
    try:
        return _location(client, table.path) == table.location
    except Exception as error:  # noqa: BLE001  # see above
        log.warning("cannot look for %s in the catalog: %s", table.location, error)
        return False


def _discard(client: upstream.LanceNamespace, line: Line) -> None:
    """Delete what was staged for a branch, and the files that came with it.

    The client knows the table by its name. By now that may be another's: then nobody can tell which files are older
    versions' as well, and only the commits themselves go. Raises what the client and the storage raise.
    """
    base, kept = _base_manifest(client, line), _others(client, line)
    is_known = (
        (base or not line.base) and kept is not None and _location(client, line.table.path) == line.table.location
    )
    line.discard(base, kept if is_known else None)


@contextmanager
def _at_best(table: Table) -> Iterator[None]:
    """Tidy up as far as the storage lets us: how the block ended is what its caller has to hear."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # see above
        log.warning("files of a publication are left in %s: %s", table.location, error)


def _base_manifest(client: upstream.LanceNamespace, line: Line) -> str | None:
    """The manifest of the version that a line begins behind, if it is still there."""
    try:
        return _manifest(client, line, line.base) if line.base else None
    except LanceNamespaceError:
        return None


def _others(client: upstream.LanceNamespace, line: Line) -> list[str] | None:
    """The manifests of all other versions whose files the block's own may name; None if they are not to be found.

    Those are the versions that were restored, and those that others have committed since: Lance finds them in storage,
    and what it staged on top of them names their files, too. Of one that is cleaned up by now nothing is needed.
    Raises what the client raises.
    """
    try:
        found = [_manifest(client, line, version) for version in line.restored() if version <= line.base]
        latest = latest_version(client, line)
    except (TableNotFoundError, TableVersionNotFoundError):
        return None
    for version in range(line.base + 1, latest + 1):
        with suppress(TableVersionNotFoundError):
            found.append(_manifest(client, line, version))
    return found


def _manifest(client: upstream.LanceNamespace, line: Line, version: int) -> str:
    """The path of a committed version's manifest. Raises TableVersionNotFoundError, TableNotFoundError."""
    asked = Asked(id=list(line.table.path), version=version)
    if line.branch:
        asked["branch"] = line.branch
    answer: Any = client.describe_table_version(asked)  # type: ignore[arg-type]  # as pylance itself calls it
    found = answer["version"] if isinstance(answer, dict) else answer.version.to_dict()
    return str(found["manifest_path"])


def _sent(client: upstream.LanceNamespace, send: Send, changes: Changes) -> str | None:
    request, key = upstream.BatchCommitTablesRequest(operations=changes.operations), uuid4().hex
    pauses = iter(PAUSES)
    certain = True
    while True:
        try:
            transaction = send(request, key).transaction_id
        except Exception as error:
            if certain and is_refusal(error):
                _raise_conflict(client, changes, error)
                raise
            pause = next(pauses, None)
            if not isinstance(error, RETRYABLE_ERRORS):
                certain = False  # what it says the next time may be about this one
                if _is_committed(client, changes):
                    _check_whole(client, changes)
                    return None
            if pause is None and certain:
                raise
            if pause is None:
                raise PublishUncertainError(
                    "The server did not say whether it published: look at the tables before you run the block again."
                ) from error
        else:
            if not certain:
                _check_whole(client, changes)
            return transaction
        time.sleep(pause)


def _raise_conflict(client: upstream.LanceNamespace, changes: Changes, error: Exception) -> None:
    """Raise PublishConflictError if that is why a batch was refused."""
    tables = _conflicting_as_far_as_told(client, changes)
    if tables or isinstance(error, ConcurrentModificationError):
        raise PublishConflictError(tables) from error


def _conflicting_as_far_as_told(client: upstream.LanceNamespace, changes: Changes) -> list[Path]:
    """Those tables, or none when nobody answers: that the batch was refused is what its caller has to hear."""
    try:
        return _conflicting(client, changes)
    except Exception as error:  # noqa: BLE001  # see above
        log.warning("cannot tell which tables kept a publication from taking effect: %s", error)
        return []


def _conflicting(client: upstream.LanceNamespace, changes: Changes) -> list[Path]:
    """The tables that are not as the block found them."""
    lines = changes.lines()
    tables = {line.table.path: line.table for line in lines if line.staged}
    tables |= {table.path: table for table in changes.new_tables()}
    found = [path for path, table in tables.items() if _location(client, path) != _expected(table)]
    moved = [line.table.path for line in lines if line.table.path not in found and _is_behind(client, line)]
    gone = [path for path in changes.deregistered if _location(client, path) is None]
    return list(dict.fromkeys([*found, *moved, *gone]))


def _expected(table: Table) -> str | None:
    """Where a table should lie for the batch to succeed; None if its name has to be free."""
    return None if table.declared else table.location


def _location(client: upstream.LanceNamespace, path: Path) -> str | None:
    """Where a table lies; None if there is none."""
    try:
        return client.describe_table(upstream.DescribeTableRequest(id=list(path))).location
    except (TableNotFoundError, NamespaceNotFoundError):
        return None


def _is_behind(client: upstream.LanceNamespace, line: Line) -> bool:
    """Whether somebody else committed to a branch after the version that the block's own begin behind."""
    return bool(line.staged) and not line.table.declared and latest_version(client, line) != line.base


def latest_version(client: upstream.LanceNamespace, line: Line) -> int:
    """The latest version of a branch for all but the block; 0 without any. Raises TableNotFoundError."""
    request = upstream.ListTableVersionsRequest(id=list(line.table.path), branch=line.branch, limit=1, descending=True)
    try:
        found = client.list_table_versions(request).versions
    except TableBranchNotFoundError:
        return 0
    return found[0].version if found else 0


def _check_whole(client: upstream.LanceNamespace, changes: Changes) -> None:
    """Raise PublishUncertainError if a commit round the server took the place of a version that was committed."""
    lost = [line.table.path for line in changes.lines() if _is_replaced(client, line)]
    if lost:
        names = ", ".join(map(shown, lost))
        raise PublishUncertainError(
            f"The server published all but {names}: a commit round the server was there at the same moment. "
            "Look at the tables before you run the block again."
        )


def _is_replaced(client: upstream.LanceNamespace, line: Line) -> bool:
    """Whether other versions have the places of the block's own; what is gone by now was there."""
    for version, staged in line.staged.items():
        with suppress(TableNotFoundError, TableBranchNotFoundError, TableVersionNotFoundError):
            if not line.is_final(staged, _manifest(client, line, version)):
                return True
    return False


def _is_committed(client: upstream.LanceNamespace, changes: Changes) -> bool:
    """Whether the batch took effect; as far as it is known, which one of its operations tells.

    That a table is gone tells less than the others, of which nobody else can have made the same.
    """
    first = next((one for one in changes.operations if one.deregister_table is None), changes.operations[0])
    try:
        if first.declare_table is not None:
            return _location(client, tuple(first.declare_table.id or ())) == first.declare_table.location
        if first.deregister_table is not None:
            return _location(client, tuple(first.deregister_table.id or ())) is None
        assert first.create_table_version is not None
        line = changes.changed_line(tuple(first.create_table_version.id or ()), first.create_table_version.branch)
        assert line is not None
        staged = line.staged[first.create_table_version.version]
        return line.is_final(staged, _manifest(client, line, staged.request.version))
    except Exception as error:  # noqa: BLE001  # the server does not answer well, or has no such version
        if not is_refusal(error):
            log.warning("cannot ask whether a publication is committed: %s", error)
        return False
