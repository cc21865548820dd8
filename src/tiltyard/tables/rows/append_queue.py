"""Group commit of appends: all appends to one table that wait at the same time become one version.

A commit costs two to three milliseconds, whether it adds one row or a thousand; 32 grouped callers pay for one.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from lance.commit import CommitConflictError
from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError, TableNotFoundError
from msgspec import structs

from tiltyard.contracts.checked_rows import CheckedRows
from tiltyard.runtime.batcher import REGATHER_GAP_SECONDS, PendingItem
from tiltyard.storage.errors import lance_errors, may_have_committed
from tiltyard.storage.locks import LockKind, TooBusyError
from tiltyard.storage.writing import (
    ColumnsChangedError,
    UnopenedVersion,
    append_transaction,
    commit_append,
    commit_made_here,
    count_rows,
    discard,
    discard_after_error,
    write_and_commit_made_here,
    write_rows,
)
from tiltyard.store import AppendNotWaitingError, RequestClaim
from tiltyard.tables.commits.idempotency_marks import marks
from tiltyard.tables.contracts.incoming_rows import AppendContract
from tiltyard.tables.keys.checked_appends import check_append
from tiltyard.tables.rows.append_routes import (
    AppendRoute,
    find_made_manifest,
    log_route,
    why_not_at_once,
    why_not_made_here,
    why_not_queued,
)
from tiltyard.tables.rows.conflict_retry import ConflictRetry
from tiltyard.tables.rows.first_version import add_first_columns, create_first_version, standardize_map_names
from tiltyard.tables.rows.schema_adapter import SchemaAdapter, find_adapter
from tiltyard.tables.rows.shared_appends import QueuedRows, SharedQueue, decode_appends, encode_appends
from tiltyard.tables.rows.write_target import WriteBase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    import lance
    from lance.fragment import FragmentMetadata

    from tiltyard.storage.commit_route import CommitRoute
    from tiltyard.store import QueuedAppend
    from tiltyard.tables.contracts.incoming_rows import IncomingContract
    from tiltyard.tables.keys.checked_appends import CheckedAppend
    from tiltyard.tables.rows.write_target import OpenedVersion, WriteTarget

_SHARED_GAP_SECONDS = 0.015
"""How long a server waits for the next of its callers where others commit, too: a version takes longer there."""
_SHARED_SECONDS = 1.0
"""How long a commit of several servers' appends is retried after conflicts with other changes of the table."""


@dataclass(frozen=True, slots=True)
class Append:
    """The append of one request: rows in memory, or fragments already written against a version."""

    target: WriteTarget
    rows: pa.Table | None = None
    fragments: tuple[FragmentMetadata, ...] = ()
    read_version: int = 0
    contract: AppendContract | None = None

    @property
    def claims(self) -> tuple[RequestClaim, ...]:
        """Return the requests with a key that this append fulfils."""
        return self.target.ctx.claims

    @property
    def num_rows(self) -> int:
        """Return the number of rows to append, without those that the table's contract rejects."""
        if self.rows is None:
            return count_rows(self.fragments)
        rows: int = self.rows.num_rows
        return rows if self.contract is None else rows - self.contract.rejected


def append_rows(target: WriteTarget, rows: pa.Table, contract: AppendContract | None = None) -> Future[int]:
    """Queue rows to be appended to a table, in one commit with concurrent appends. The future has the new version.

    `contract` tells afterwards how many rows the table's contract has rejected.

    They may be the first rows of a declared table. The future raises TableSchemaValidationError,
    ConcurrentModificationError, InvalidTableStateError, TableBranchNotFoundError, ServiceUnavailableError.
    """
    is_contended = target.ctx.services.contention.is_contended(target.key)
    gap = _SHARED_GAP_SECONDS if is_contended else REGATHER_GAP_SECONDS
    if contract is None and target.record.contract is not None:
        contract = AppendContract()
    append = Append(target, rows, contract=contract)
    pending: Future[int] = target.ctx.storage.append_batcher.submit(target.key, append, _commit_group, gap)
    return pending


def append_fragments(
    target: WriteTarget,
    dataset: lance.LanceDataset,
    fragments: Sequence[FragmentMetadata],
    read_version: int,
    contract: IncomingContract | None = None,
) -> int:
    """Append fragments that are in the table's folder already; return the version. On failure they are deleted.

    `contract` is what their rows were checked by.

    Raises as `append_rows` does; also ConcurrentModificationError if the table was overwritten after `read_version`.
    """
    try:
        target.ctx.before_commit()
    except BaseException:
        discard(target.ctx.storage, target.base, fragments)
        raise
    checked = None if contract is None else AppendContract(contract)
    append = Append(target, None, tuple(fragments), read_version, checked)
    try:
        version: int = target.ctx.storage.append_batcher.submit(target.key, append, _commit_group).result()
    except BaseException as error:
        discard_after_error(target.ctx.storage, target.base, fragments, error)
        raise
    return version


def _commit_group(group: Sequence[PendingItem[Append]]) -> None:
    """Commit a group; if that fails, commit its halves, until only the faulty appends fail."""
    target = group[0].item.target
    retry = ConflictRetry(target.ctx.settings.conflict_timeout)
    parts = [list(group)]
    while parts:
        part = parts.pop()
        try:
            with target.cleanup_on_error():
                part = _create_version_if_declared(part)
                part = _commit_with_other_servers(part, retry)
                _append_with_retry(part, retry)
        except LanceNamespaceError as error:
            if len(part) > 1 and not _fails_for_all(error, part):
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
                continue
            for member in part:
                member.error = error


def _fails_for_all(error: LanceNamespaceError, part: Sequence[PendingItem[Append]]) -> bool:
    """Return whether an error concerns every append of a group: storage does not respond, or their table is gone."""
    if isinstance(error, TableNotFoundError):
        return len({member.item.target.record.id for member in part}) == 1
    return isinstance(error, ServiceUnavailableError | TooBusyError)


def _create_version_if_declared(part: list[PendingItem[Append]]) -> list[PendingItem[Append]]:
    """Create the first version of a declared table from the first append; return the appends that remain."""
    first = part[0]
    target = first.item.target
    if target.record.declared and first.item.rows is not None and target.dataset_if_written() is None:
        with lance_errors():
            first.outcome = create_first_version(target, first.item.rows)
        if first.outcome is not None:
            return part[1:]
    return part


def _commit_with_other_servers(part: list[PendingItem[Append]], retry: ConflictRetry) -> list[PendingItem[Append]]:
    """Commit small appends together with those of other servers, where these write to the table, too.

    Sets their outcomes and errors; returns the appends that are left for this server to commit alone. Raises
    TableNotFoundError, ServiceUnavailableError.
    """
    if not part:
        return part
    target = part[0].item.target
    rows, tables = [member.item.rows for member in part], {member.item.target.record.id for member in part}
    if (obstacle := why_not_queued(target, rows, tables)) is not None:
        log_route(target, AppendRoute.QUEUED, obstacle)
        return part
    dataset = target.open_to_append().dataset
    if not dataset.schema.names:
        return part
    with lance_errors(dataset):
        adapted, members = _adapt_rows(part, dataset.schema)
    queued = [
        QueuedRows(table, member.item.claims)
        for table, member in zip(adapted, members, strict=True)
        if table is not None
    ]
    if not queued:
        return members

    def commit(turn: str, appends: Sequence[QueuedAppend]) -> int:
        return _commit_queued(target, turn, appends)

    queue = SharedQueue(target.ctx, target.record.id, target.branch.key, commit)
    committed = queue.append(encode_appends(queued), retry.remaining_seconds)
    if committed is None:
        return members
    if committed.has_others:
        target.ctx.services.contention.extend(target.key)
    log_route(target, AppendRoute.QUEUED)
    version = target.mark_written(committed.version)
    _set_outcomes(target, members, version)
    return []


def _commit_queued(target: WriteTarget, turn: str, appends: Sequence[QueuedAppend]) -> int:
    """Commit queued appends of any servers as one version, all of them or none; return it.

    Raises AppendNotWaitingError, and what a commit raises.
    """
    part = [
        PendingItem(_unqueue(target, rows), _commit_group)
        for append in appends
        for rows in decode_appends(append.content)
    ]
    _append_with_retry(part, ConflictRetry(_SHARED_SECONDS), (turn, [append.id for append in appends]))
    return int(part[0].outcome)


def _unqueue(target: WriteTarget, queued: QueuedRows) -> Append:
    ctx = structs.replace(target.ctx, claims=queued.claims)
    return Append(replace(target, ctx=ctx), queued.rows)


def _append_with_retry(
    part: list[PendingItem[Append]], retry: ConflictRetry, queued: tuple[str, list[str]] | None = None
) -> None:
    """Commit several appends as one version, with retries after transient conflicts. Sets their outcomes and errors.

    With a turn and `queued` appends, these are recorded as committed, and the error of one is raised for all.

    Processes of this machine commit one after the other under a lock, since commits that conflict are retried, which
    takes far longer. They write the rows, which takes longest, concurrently. Queued appends need no lock: they have the
    turn, which a process that hangs loses.
    """
    while part:
        target = part[0].item.target
        base = _open_with_columns(target, part)
        with lance_errors(base.dataset):
            rows, members = _adapt_rows(part, base.dataset.schema)
            rows, members = _check_contract(rows, members)
            if queued is not None and (failed := next((member.error for member in part if member.error), None)):
                raise failed
            rows, members, checked = _check_keys(target, base.version, rows, members)
            appends = [member.item for member in members]
            claims = tuple(claim for append in appends for claim in append.claims)
            ctx = structs.replace(target.ctx, claims=claims, checked_rows=_found_by_contract(target, appends))
            target = replace(target, ctx=ctx)
            lock = partial(_hold_commits, target, retry, queued)
            written: list[FragmentMetadata] = []
            try:
                at_once = _commit_at_once(target, base, appends, rows, lock, checked, queued)
                if at_once is None:
                    with target.looking_up(base) as opened:
                        written = _write_rows(target, _group_by_schema(rows), base.dataset)
                    if not _is_in_storage(target, opened, written):
                        continue
                    with lock():
                        committed = _commit_fragments(
                            target, base, appends, written, retry, checked, opened.manifest, queued
                        )
                else:
                    committed, written = at_once
            except AppendNotWaitingError:
                discard(target.ctx.storage, target.base, written)
                raise
            except BaseException as error:
                discard_after_error(target.ctx.storage, target.base, written, error)
                if not may_have_committed(error):
                    _unpark(appends)
                if _uploaded(appends) and _is_permanent(error):
                    raise
                retry.wait_or_raise(error)
                continue
        if committed is not None:
            target.ctx.services.contention.add_commit(target.key, int(base.version), int(committed.version))
            _share(target, base, committed, checked, written)
        is_new = committed is not None
        version = target.mark_written(base.version if committed is None else int(committed.version), is_new=is_new)
        _set_outcomes(target, members, version, is_new=is_new)
        return


def _set_outcomes(
    target: WriteTarget, members: Sequence[PendingItem[Append]], version: int, *, is_new: bool = True
) -> None:
    """Tell appends the version that has brought them, and quotas how many of its rows are whose.

    Of one that was committed for several servers, each tells of its own: the last word of a server counts.
    """
    rows: Counter[str] = Counter()
    for member in members:
        member.outcome = version
        rows[member.item.target.ctx.principal.name] += member.item.num_rows
    if is_new:
        target.ctx.services.quotas.note_version(target.record.id, target.branch.key, version, rows)


def _share(
    target: WriteTarget,
    base: WriteBase,
    committed: lance.LanceDataset | UnopenedVersion,
    checked: CheckedAppend | None,
    written: Sequence[FragmentMetadata],
) -> None:
    """Share the handle of a committed version, at once if its keys are to be remembered."""
    if isinstance(committed, UnopenedVersion):
        if checked is None:
            target.share_when_open(base, committed)
            return
        committed = committed.open()
    snapshot = target.share(committed)
    if checked is not None:
        checked.remember(target.ctx, snapshot, written)


def _is_permanent(error: BaseException) -> bool:
    """Return whether fragments can never join the table: it was overwritten, or its columns have changed."""
    return isinstance(error, ColumnsChangedError) or (isinstance(error, CommitConflictError) and not error.retryable)


def _is_in_storage(target: WriteTarget, opened: OpenedVersion, written: Sequence[FragmentMetadata]) -> bool:
    """Return whether storage has the version that rows were written on; else delete them: the folder was restored."""
    is_in_storage = False
    try:
        is_in_storage = opened.is_in_storage
    finally:
        if not is_in_storage:
            discard(target.ctx.storage, target.base, written)
    return is_in_storage


def _open_with_columns(target: WriteTarget, part: Sequence[PendingItem[Append]]) -> WriteBase:
    """Open the latest version to append to, with the columns of the first rows if it had none."""
    base = target.open_to_append()
    rows = part[0].item.rows
    if rows is None:
        return base
    if not base.dataset.schema.names:
        return WriteBase.of(add_first_columns(target, rows.schema))
    standardized = standardize_map_names(target, base.dataset)
    return base if standardized is base.dataset else WriteBase.of(standardized)


def _adapt_rows(
    part: Sequence[PendingItem[Append]], schema: pa.Schema
) -> tuple[list[pa.Table | None], list[PendingItem[Append]]]:
    """Adapt in-memory rows to the table's schema; return the members to commit, and the rows of each, if in memory.

    Rows that do not fit set the error of their member alone, which is left out.
    """
    adapters: list[tuple[pa.Schema, SchemaAdapter]] = []
    adapted: list[pa.Table | None] = []
    members = []
    for member in part:
        member.error = None
        rows = member.item.rows
        if rows is not None:
            try:
                rows = find_adapter(adapters, rows.schema, schema).adapt_table(rows)
            except LanceNamespaceError as error:
                member.error = error
                continue
        adapted.append(rows)
        members.append(member)
    return adapted, members


def _check_keys(
    target: WriteTarget, version: int, rows: list[pa.Table | None], members: list[PendingItem[Append]]
) -> tuple[list[pa.Table | None], list[PendingItem[Append]], CheckedAppend | None]:
    """Check the table's primary key, before rows in memory are written; return what remains, and the check.

    Rows that break the key set the error of their member alone, which is left out. Members whose fragments are written
    already are checked when they are committed, and with them all others.
    """
    tables = [table for table in rows if table is not None]
    if target.record.primary_key is None or len(tables) < len(rows):
        return rows, members, None
    checked, errors = check_append(target, version, tables)
    for position, error in errors.items():
        members[position].error = error
    left = [position for position in range(len(members)) if position not in errors]
    return [rows[position] for position in left], [members[position] for position in left], checked


def _check_contract(
    rows: list[pa.Table | None], members: list[PendingItem[Append]]
) -> tuple[list[pa.Table | None], list[PendingItem[Append]]]:
    """Check rows in memory by the table's contract, before they are written; return what remains.

    Rows that are refused set the error of their member alone, which is left out; rejected ones are parked.
    """
    if all(member.item.contract is None for member in members):
        return rows, members
    left: list[tuple[pa.Table | None, PendingItem[Append]]] = []
    for table, member in zip(rows, members, strict=True):
        if table is None or member.item.contract is None:
            left.append((table, member))
            continue
        try:
            left.append((member.item.contract.take(member.item.target, table), member))
        except LanceNamespaceError as error:
            member.error = error
    return [table for table, _ in left], [member for _, member in left]


def _unpark(appends: Iterable[Append]) -> None:
    """Delete the files of rows that were rejected, of appends that are not committed."""
    for append in appends:
        if append.rows is not None and append.contract is not None and append.contract.incoming is not None:
            append.contract.incoming.unpark()


def _found_by_contract(target: WriteTarget, appends: Sequence[Append]) -> CheckedRows | None:
    """Return what was found of the rows of a commit; None where its table has no contract."""
    contract = target.record.contract
    if contract is None:
        return None
    found = [each.contract.incoming.found for each in appends if each.contract and each.contract.incoming]
    is_complete = len(found) == len(appends) and all(part.covers(contract) for part in found)
    return CheckedRows.together(contract, found, is_complete=is_complete)


def _group_by_schema(rows: Iterable[pa.Table | None]) -> list[list[pa.Table]]:
    """Return in-memory rows grouped by equal schemas."""
    groups: list[tuple[pa.Schema, list[pa.Table]]] = []
    for table in rows:
        if table is None:
            continue
        group = next((tables for schema, tables in groups if schema.equals(table.schema, check_metadata=True)), None)
        if group is None:
            groups.append((table.schema, [table]))
        else:
            group.append(table)
    return [tables for _, tables in groups]


def _join_rows(groups: Iterable[list[pa.Table]]) -> Iterator[pa.Table]:
    """Yield the rows of each group that has any as one table, as Lance writes them."""
    for tables in groups:
        rows = pa.concat_tables(tables)
        if rows.num_rows:
            yield rows.combine_chunks().unify_dictionaries()


def _hold_commits(
    target: WriteTarget, retry: ConflictRetry, queued: tuple[str, list[str]] | None
) -> AbstractContextManager[None]:
    """Hold the lock of commits to the table on this machine; queued appends need none."""
    if queued is not None:
        return nullcontext()
    return target.ctx.storage.locks.hold(LockKind.COMMITS, target.key, retry.remaining_seconds)


def _route_of(
    target: WriteTarget, checked: CheckedAppend | None, queued: tuple[str, list[str]] | None
) -> CommitRoute | None:
    """Return the route of a commit, with what it has to know of the appends."""
    route = target.commit_route
    if checked is not None and route is not None:
        route.checked_appends.append(checked)
    if queued is not None and route is not None:
        route.queued_appends.append(queued)
    return route


def _marks_of(appends: Iterable[Append]) -> dict[str, str]:
    """Return the transaction properties of a commit, which name the requests that it fulfils."""
    return marks({claim.id: append.num_rows for append in appends for claim in append.claims})


def _commit_at_once(
    target: WriteTarget,
    base: WriteBase,
    appends: Sequence[Append],
    rows: Sequence[pa.Table | None],
    lock: Callable[[], AbstractContextManager[None]],
    checked: CheckedAppend | None,
    queued: tuple[str, list[str]] | None,
) -> tuple[UnopenedVersion, list[FragmentMetadata]] | None:
    """Put rows and the next manifest at the same time; return the version and its fragments, or None: nothing is left.

    Raises what a commit raises.
    """
    if (obstacle := why_not_at_once(target, rows)) is not None:
        log_route(target, AppendRoute.AT_ONCE, obstacle)
        return None
    with lock():
        manifest = find_made_manifest(target, base.version)
        route = _route_of(target, checked, queued)
        if manifest is None or route is None:
            log_route(target, AppendRoute.AT_ONCE, "this process has not made the latest manifest")
            return None
        groups = list(_join_rows(_group_by_schema(rows)))
        if not groups:
            return None
        committed = write_and_commit_made_here(
            target.ctx.storage,
            target.location,
            manifest,
            base.version,
            groups,
            _marks_of(appends),
            route,
            target.look_for(base),
        )
    log_route(target, AppendRoute.AT_ONCE, None if committed else "another commit came first, or Lance has to make it")
    return committed


def _write_rows(
    target: WriteTarget, groups: Iterable[list[pa.Table]], dataset: lance.LanceDataset
) -> list[FragmentMetadata]:
    """Write in-memory rows: one fragment for all that have the same schema."""
    written: list[FragmentMetadata] = []
    try:
        for rows in _join_rows(groups):
            written += write_rows(target.ctx.storage, rows, dataset, target.base)
    except BaseException:
        discard(target.ctx.storage, target.base, written)
        raise
    return written


def _commit_fragments(
    target: WriteTarget,
    base: WriteBase,
    appends: Sequence[Append],
    written: Sequence[FragmentMetadata],
    retry: ConflictRetry,
    checked: CheckedAppend | None,
    manifest: bytes | None,
    queued: tuple[str, list[str]] | None,
) -> lance.LanceDataset | UnopenedVersion | None:
    """Commit written and uploaded fragments; return their version, None where there is not one row.

    `manifest` is that of the version they were written on, if it was read.
    """
    fragments = [*_uploaded(appends), *written]
    if not fragments:
        return None
    read_version = min([base.version, *(append.read_version for append in appends if append.fragments)])
    properties, route = _marks_of(appends), _route_of(target, checked, queued)
    obstacle = why_not_made_here(target, base.version, read_version, manifest)
    if obstacle is None and route is not None and manifest is not None:
        transaction = append_transaction(fragments, read_version, properties)
        made = commit_made_here(target.ctx.storage, target.location, {read_version: manifest}, transaction, route)
        if made is not None:
            log_route(target, AppendRoute.MADE_HERE)
            return made
        obstacle = "another commit came first, or only Lance can make this one"
    log_route(target, AppendRoute.MADE_HERE, obstacle)
    dataset = base.dataset if base.dataset.version == base.version else target.dataset()
    committed = commit_append(dataset, fragments, read_version, retry.remaining_seconds, properties, route)
    log_route(target, AppendRoute.LANCE)
    return committed


def _uploaded(appends: Iterable[Append]) -> list[FragmentMetadata]:
    return [fragment for append in appends for fragment in append.fragments]
