"""Appends to one table, gathered: whatever waits is written and committed as one version.

A commit costs two to three milliseconds, whether it brings one row or a thousand; gathered, 32 callers pay for one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from lance.commit import CommitConflictError
from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError, TableNotFoundError
from msgspec import structs

from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locks import TooBusyError
from tiltyard.storage.writing import (
    OvertakenError,
    commit_append,
    count_rows,
    discard,
    discard_failed,
    write_rows,
)
from tiltyard.tables.commits.idempotency_marks import marks
from tiltyard.tables.rows.first_version import add_first_columns, begin, standardize_maps
from tiltyard.tables.rows.schema_adapter import SchemaAdapter
from tiltyard.tables.rows.write_target import ConflictRetry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future

    import lance
    from lance.fragment import FragmentMetadata

    from tiltyard.storage.group_commit import Waiting
    from tiltyard.store import Claim
    from tiltyard.tables.rows.write_target import WriteTarget


@dataclass(frozen=True, slots=True)
class Addition:
    """What one caller adds: rows in memory, or fragments already written against a version."""

    target: WriteTarget
    rows: pa.Table | None = None
    fragments: tuple[FragmentMetadata, ...] = ()
    read_version: int = 0

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The requests that it fulfils."""
        return self.target.ctx.claims

    @property
    def num_rows(self) -> int:
        """How many rows it brings."""
        return count_rows(self.fragments) if self.rows is None else self.rows.num_rows


def append_rows(target: WriteTarget, rows: pa.Table) -> Future[int]:
    """Append rows to a table, together with whoever appends now. The future has the version that has them.

    They may be the first rows of a declared table. It raises TableSchemaValidationError, ConcurrentModificationError,
    InvalidTableStateError, TableBranchNotFoundError, ServiceUnavailableError.
    """
    return target.ctx.storage.appends.submit(target.key, Addition(target, rows), _run)


def append_fragments(
    target: WriteTarget, dataset: lance.LanceDataset, fragments: Sequence[FragmentMetadata], read_version: int
) -> int:
    """Append fragments that lie in the table's folder already; they are deleted if that fails.

    Raises as `append_rows` does; ConcurrentModificationError, too, if the table was overwritten after `read_version`.
    """
    try:
        target.ctx.before_commit()
    except BaseException:
        discard(target.ctx.storage, dataset.uri, fragments)
        raise
    addition = Addition(target, None, tuple(fragments), read_version)
    try:
        version: int = target.ctx.storage.appends.submit(target.key, addition, _run).result()
    except BaseException as error:
        discard_failed(target.ctx.storage, dataset.uri, fragments, error)
        raise
    return version


def _run(group: Sequence[Waiting[Addition]]) -> None:
    """Commit a group; if that fails, its halves, until what is wrong fails alone."""
    target = group[0].item.target
    retry = ConflictRetry(target.ctx.settings.conflict_timeout)
    parts = [list(group)]
    while parts:
        part = parts.pop()
        try:
            with target.cleanup_on_error():
                part = _after_the_first(part)
                _append(part, retry)
        except LanceNamespaceError as error:
            if len(part) > 1 and not _for_all(error, part):
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
                continue
            for member in part:
                member.error = error


def _for_all(error: LanceNamespaceError, part: Sequence[Waiting[Addition]]) -> bool:
    """Whether each of a group would fail like this: their storage does not answer, or the table of all is gone."""
    if isinstance(error, TableNotFoundError):
        return len({member.item.target.record.id for member in part}) == 1
    return isinstance(error, ServiceUnavailableError | TooBusyError)


def _after_the_first(part: list[Waiting[Addition]]) -> list[Waiting[Addition]]:
    """What is left to append once a table that was only declared has its first version."""
    first = part[0]
    target = first.item.target
    if target.record.declared and first.item.rows is not None and target.dataset_if_written() is None:
        with lance_errors():
            first.outcome = begin(target, first.item.rows)
        if first.outcome is not None:
            return part[1:]
    return part


def _append(part: list[Waiting[Addition]], retry: ConflictRetry) -> None:
    """One commit of several additions, tried again after a conflict that goes away. Sets their outcomes and errors.

    Processes of this machine commit one after the other, since commits that meet are tried again, which takes far
    longer. What takes longest, to write the rows, they do beside each other.
    """
    while part:
        target = part[0].item.target
        dataset = _with_columns(target, part)
        with lance_errors(dataset):
            alike, members = _fitted(part, dataset.schema)
            additions = [member.item for member in members]
            claims = tuple(claim for addition in additions for claim in addition.claims)
            target = replace(target, ctx=structs.replace(target.ctx, claims=claims))
            written = _write(target, alike, dataset)
            try:
                with target.ctx.storage.locks.hold(f"{target.key}+", retry.left):
                    committed = _commit(target, dataset, additions, written, retry)
            except BaseException as error:
                discard_failed(target.ctx.storage, dataset.uri, written, error)
                if _brought(additions) and _for_good(error):
                    raise
                retry.wait_or_raise(error)
                continue
        version = target.finish_commit(committed, plain=True)
        for member in members:
            member.outcome = version
        return


def _for_good(error: BaseException) -> bool:
    """Whether fragments can no more join a table: it was overwritten, or its columns are others now."""
    return isinstance(error, OvertakenError) or (isinstance(error, CommitConflictError) and not error.retryable)


def _with_columns(target: WriteTarget, part: Sequence[Waiting[Addition]]) -> lance.LanceDataset:
    """The table's latest version; one without columns gets those of the first rows."""
    dataset = target.dataset()
    rows = part[0].item.rows
    if rows is None:
        return dataset
    return standardize_maps(target, dataset) if dataset.schema.names else add_first_columns(target, rows.schema)


def _fitted(
    part: Sequence[Waiting[Addition]], schema: pa.Schema
) -> tuple[list[list[pa.Table]], list[Waiting[Addition]]]:
    """The rows in memory as the table has them, those that look alike together, and whose they are.

    What does not fit fails alone.
    """
    alike: list[tuple[pa.Schema, list[pa.Table]]] = []
    fittings: list[tuple[pa.Schema, SchemaAdapter]] = []
    members = []
    for member in part:
        member.error = None
        rows = member.item.rows
        if rows is not None:
            try:
                rows = _fitting(fittings, rows.schema, schema).table(rows)
            except LanceNamespaceError as error:
                member.error = error
                continue
            same = next((tables for seen, tables in alike if seen.equals(rows.schema, check_metadata=True)), None)
            if same is None:
                alike.append((rows.schema, [rows]))
            else:
                same.append(rows)
        members.append(member)
    return [tables for _, tables in alike], members


def _fitting(known: list[tuple[pa.Schema, SchemaAdapter]], source: pa.Schema, table: pa.Schema) -> SchemaAdapter:
    """From one schema to the table's: callers who add at once mostly send the same."""
    for seen, adapter in known:
        if seen.equals(source, check_metadata=True):
            return adapter
    adapter = SchemaAdapter(source, table)
    known.append((source, adapter))
    return adapter


def _write(target: WriteTarget, alike: Iterable[list[pa.Table]], dataset: lance.LanceDataset) -> list[FragmentMetadata]:
    """Write the rows in memory: one fragment for all that look alike."""
    written: list[FragmentMetadata] = []
    try:
        for tables in alike:
            rows = pa.concat_tables(tables)
            if rows.num_rows:
                written += write_rows(target.ctx.storage, rows.combine_chunks().unify_dictionaries(), dataset)
    except BaseException:
        discard(target.ctx.storage, dataset.uri, written)
        raise
    return written


def _commit(
    target: WriteTarget,
    dataset: lance.LanceDataset,
    additions: Sequence[Addition],
    written: Sequence[FragmentMetadata],
    retry: ConflictRetry,
) -> lance.LanceDataset:
    """Commit what was written and what was brought; no row at all is in the version that is there."""
    fragments = [*_brought(additions), *written]
    if not fragments:
        return dataset
    read_version = min([dataset.version, *(addition.read_version for addition in additions if addition.fragments)])
    properties = marks({claim.id: addition.num_rows for addition in additions for claim in addition.claims})
    return commit_append(dataset, fragments, read_version, retry.left, properties, target.road)


def _brought(additions: Iterable[Addition]) -> list[FragmentMetadata]:
    return [fragment for addition in additions for fragment in addition.fragments]
