"""What the columns of a plain view are made from: each read runs its query, so no commit has recorded it.

Of a query that selects columns and expressions of one table, it is known column by column. Of any other one it is known
which tables it reads: any of its columns may be made from any of theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    NamespaceNotFoundError,
    PermissionDeniedError,
    TableNotFoundError,
    UnsupportedOperationError,
)

from tiltyard.model.branches import MAIN
from tiltyard.model.columns.lineage import WHOLE_COPY, ColumnOrigin, sql_inputs
from tiltyard.model.ids import Id
from tiltyard.model.lineage import CommitLineage, LineageSource
from tiltyard.model.views.plain_views import PlainView
from tiltyard.store.tables.lineage import LineageRecord
from tiltyard.tables.lance_sql.select_queries import parse_select
from tiltyard.tables.opening import open_for_reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context
    from tiltyard.model.columns.lineage import Origins
    from tiltyard.store import TableRecord

_UNREADABLE = (
    PermissionDeniedError,
    TableNotFoundError,
    NamespaceNotFoundError,
    InvalidInputError,
    InvalidTableStateError,
    UnsupportedOperationError,
)
"""Why a table of a query is not known: the caller may not read it, or it is gone; nor can the view be read then."""
KIND = "view"
"""The kind of the lineage of a plain view, which no job has made."""


def lineage_of_plain_view(ctx: Context, table_id: int) -> tuple[LineageRecord, ...]:
    """Return the lineage of a plain view, as if it were a commit; nothing for a table, or where no source is there.

    Which tables a query reads that is more than a projection is known to who may read them. Raises
    ServiceUnavailableError.
    """
    try:
        view = PlainView.from_properties(ctx.store.table_by_id(table_id).properties)
    except TableNotFoundError:
        return ()
    if view is None:
        return ()
    records, origins = _sources(ctx, view)
    if not records:
        return ()
    sources = tuple(LineageSource(each.name, each.location) for each in records)
    lineage = CommitLineage(KIND, KIND, sources, columns=origins)
    ids = tuple(each.id for each in records)
    return (LineageRecord.of(lineage, table_id, MAIN.key, 1, replaces=True, source_ids=ids, principal=""),)


def _sources(ctx: Context, view: PlainView) -> tuple[list[TableRecord], Origins | None]:
    """Return the tables that a view's query reads, and what its columns are made from; None where it is not known."""
    try:
        query = parse_select(view.query)
    except (InvalidInputError, UnsupportedOperationError):
        return _tables(ctx, _named(ctx, view)), None
    path = Id((*view.database, *query.source))
    records = _tables(ctx, [path])
    if not records or query.columns is None:
        return records, WHOLE_COPY
    source = PlainView.from_properties(records[0].properties)
    try:
        schema = open_for_reading(ctx, path).dataset.schema if source is None else source.schema
    except InvalidTableStateError:  # it is only declared
        return records, None
    return records, tuple(ColumnOrigin(name, sql_inputs(text, schema.names)) for name, text in query.columns.items())


def _named(ctx: Context, view: PlainView) -> Sequence[Id]:
    from tiltyard.sql.engine import named_tables  # noqa: PLC0415  # the engine reads tables by this package

    try:
        return named_tables(msgspec.structs.replace(ctx, resolved=None), view.query, view.database)
    except _UNREADABLE:
        return []


def _tables(ctx: Context, paths: Sequence[Id]) -> list[TableRecord]:
    """Return the tables of these names that are there."""
    found = []
    for path in paths:
        try:
            found.append(ctx.look_up_table(path))
        except _UNREADABLE:
            continue
    return found
