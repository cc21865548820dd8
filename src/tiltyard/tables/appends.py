"""Appends to one table, gathered: whatever waits is written and committed as one version.

A commit costs two to three milliseconds, whether it brings one row or a thousand; gathered, 32 callers pay for one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from lance.commit import CommitConflictError
from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError

from tiltyard.storage.errors import lance_errors
from tiltyard.storage.writing import commit_append, count_rows, discard, discard_failed, write_rows
from tiltyard.tables.fitting import Fitting
from tiltyard.tables.marks import marks
from tiltyard.tables.target import Patience

if TYPE_CHECKING:
    from collections.abc import Sequence

    import lance
    from lance.fragment import FragmentMetadata

    from tiltyard.storage.gathering import Waiting
    from tiltyard.store import Claim
    from tiltyard.tables.target import Target


@dataclass(frozen=True, slots=True)
class Addition:
    """What one caller adds: rows in memory that fit `schema`, or fragments already written against a version."""

    rows: pa.Table | None = None
    schema: pa.Schema | None = None
    fragments: tuple[FragmentMetadata, ...] = ()
    read_version: int = 0
    claims: tuple[Claim, ...] = ()

    @property
    def num_rows(self) -> int:
        """How many rows it brings."""
        return count_rows(self.fragments) if self.rows is None else self.rows.num_rows


def append_rows(target: Target, rows: pa.Table, schema: pa.Schema) -> int:
    """Append rows that fit a table's schema, together with whoever appends now. Returns the version that has them.

    Raises TableSchemaValidationError, ConcurrentModificationError, InvalidTableStateError, ServiceUnavailableError.
    """
    return _submit(target, Addition(rows=rows, schema=schema, claims=target.ctx.claims))


def append_fragments(
    target: Target, dataset: lance.LanceDataset, fragments: Sequence[FragmentMetadata], read_version: int
) -> int:
    """Append fragments that lie in the table's folder already; they are deleted if that fails.

    Raises as `append_rows` does; ConcurrentModificationError, too, if the table was overwritten after `read_version`.
    """
    try:
        target.ctx.confirm()
    except BaseException:
        discard(target.ctx.storage, dataset.uri, fragments)
        raise
    try:
        return _submit(target, Addition(None, None, tuple(fragments), read_version, target.ctx.claims))
    except BaseException as error:
        discard_failed(target.ctx.storage, dataset.uri, fragments, error)
        raise


def _submit(target: Target, addition: Addition) -> int:
    version: int = target.ctx.storage.appends.submit(target.key, addition, partial(_run, target))
    return version


def _run(target: Target, group: Sequence[Waiting[Addition]]) -> None:
    """Commit a group; if that fails, its halves, until what is wrong fails alone."""
    patience = Patience(target.ctx.settings.conflict_timeout)
    parts = [list(group)]
    while parts:
        part = parts.pop()
        try:
            dataset = _append(target, [member.item for member in part], patience)
        except LanceNamespaceError as error:
            if len(part) > 1 and not isinstance(error, ServiceUnavailableError):
                middle = len(part) // 2
                parts += [part[middle:], part[:middle]]
                continue
            for member in part:
                member.error = error
        else:
            version = target.committed(dataset, plain=True)
            for member in part:
                member.outcome = version


def _append(target: Target, additions: Sequence[Addition], patience: Patience) -> lance.LanceDataset:
    """One commit of several additions, tried again after a conflict that goes away."""
    brought = [fragment for addition in additions for fragment in addition.fragments]
    versions = [addition.read_version for addition in additions if addition.fragments]
    claims = tuple(claim for addition in additions for claim in addition.claims)
    target = replace(target, ctx=replace(target.ctx, claims=claims))
    properties = marks({claim.id: addition.num_rows for addition in additions for claim in addition.claims})
    while True:
        dataset = target.dataset()
        with lance_errors(dataset):
            written = _write(target, additions, dataset)
            try:
                read_version = min([dataset.version, *versions])
                fragments = [*brought, *written]
                return commit_append(dataset, fragments, read_version, patience.left, properties, target.road)
            except BaseException as error:
                discard_failed(target.ctx.storage, dataset.uri, written, error)
                if brought and isinstance(error, CommitConflictError) and not error.retryable:
                    raise  # the table was overwritten: fragments of the old one cannot join it
                patience.or_raise(error)


def _write(target: Target, additions: Sequence[Addition], dataset: lance.LanceDataset) -> list[FragmentMetadata]:
    """Write the rows in memory: one fragment for all that look alike."""
    schema = dataset.schema
    alike: list[list[pa.Table]] = []
    for addition in additions:
        if addition.rows is None:
            continue
        rows = _fitted(addition, schema)
        for tables in alike:
            if tables[0].schema.equals(rows.schema, check_metadata=True):
                tables.append(rows)
                break
        else:
            alike.append([rows])
    written: list[FragmentMetadata] = []
    try:
        for tables in alike:
            written += write_rows(pa.concat_tables(tables).combine_chunks().unify_dictionaries(), dataset)
    except BaseException:
        discard(target.ctx.storage, dataset.uri, written)
        raise
    return written


def _fitted(addition: Addition, schema: pa.Schema) -> pa.Table:
    """The rows, fitted again if the table's schema moved on since the caller did it."""
    rows: pa.Table = addition.rows
    if addition.schema is not None and addition.schema.equals(schema, check_metadata=True):
        return rows
    return Fitting(rows.schema, schema).table(rows)
