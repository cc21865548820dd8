"""CreateTableVersion for calls that wait at the same time: what is slow is done once for all of them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from lance_namespace.errors import ConcurrentModificationError, InvalidInputError, TableNotFoundError
from msgspec import structs

from tiltyard.model.ids import Id, table_id
from tiltyard.model.outcomes import go_on
from tiltyard.model.spec import models
from tiltyard.runtime.failpoints import Point, reach
from tiltyard.store import NewVersion, TableRecord, VersionRecord
from tiltyard.tables.commits.commit_requests import check_same, created, not_kept, staged_version
from tiltyard.tables.commits.finalizing import finalize_each
from tiltyard.tables.opening import find_table
from tiltyard.tables.versions.lost_versions import make_way

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tiltyard.context import Context

_REFUSALS = (TableNotFoundError, InvalidInputError, ConcurrentModificationError)

_Calls: TypeAlias = "Sequence[tuple[Context, models.CreateTableVersionRequest]]"
_Planned: TypeAlias = "tuple[TableRecord, NewVersion]"
_Recorded: TypeAlias = "tuple[TableRecord, NewVersion, VersionRecord]"


def create_table_versions(calls: _Calls) -> list[models.CreateTableVersionResponse | Exception]:
    """CreateTableVersion for calls that wait at the same time: their files are synced together, and recorded in one
    transaction. Each succeeds or fails by itself.
    """
    ctx = calls[0][0]  # they share their services
    found = _recorded_where_known(calls)
    if found is None:
        found = go_on(_planned_all(calls, _tables_of(calls)), partial(_recorded, ctx))
        for (one, request), outcome in zip(calls, found, strict=True):
            if one.resolved is None and not isinstance(outcome, Exception):
                ctx.services.known_tables.keep(table_id(request.id), outcome[0])
    return go_on(found, partial(_finalized, ctx))


def _recorded_where_known(calls: _Calls) -> list[_Recorded | Exception] | None:
    """The versions of tables that commits were made to before: they are looked for by the statement that records.

    None if one is not known, or anything is not as it should be: nothing was recorded then.
    """
    ctx = calls[0][0]
    if any(one.resolved is not None for one, _ in calls):
        return None
    tables = ctx.services.known_tables.all_of(tuple(request.id or ()) for _, request in calls)
    if tables is None:
        return None
    planned = [one for one in _planned_all(calls, tables) if not isinstance(one, Exception)]
    if len(planned) < len(calls):
        return None
    news = [structs.replace(new, place=(table.namespace_id, table.name)) for table, new in planned]
    try:
        records = _record_each(ctx, news)
    except _REFUSALS:
        return None
    return _with_records(planned, records)


def _recorded(ctx: Context, planned: Sequence[_Planned]) -> list[_Recorded | Exception]:
    return _with_records(planned, recorded_apart(ctx, [new for _, new in planned]))


def _with_records(
    planned: Sequence[_Planned], records: Sequence[VersionRecord | Exception]
) -> list[_Recorded | Exception]:
    return [
        record if isinstance(record, Exception) else (*one, record)
        for one, record in zip(planned, records, strict=True)
    ]


def _finalized(ctx: Context, recorded: Sequence[_Recorded]) -> list[models.CreateTableVersionResponse | Exception]:
    commits = [(table, record) for table, _, record in recorded]
    final = finalize_each(ctx, commits, [new for _, new, _ in recorded])
    return [
        record if isinstance(record, Exception) else created(table, record)
        for (table, _), record in zip(commits, final, strict=True)
    ]


def _tables_of(calls: _Calls) -> Mapping[Id, TableRecord]:
    """The tables that are there, in one look, but for those that the check of the grants has found already."""
    wanted = [tuple(request.id or ()) for ctx, request in calls if ctx.resolved is None]
    return calls[0][0].store.find_tables(wanted) if len(wanted) > 1 else {}


def _planned_all(calls: _Calls, tables: Mapping[Id, TableRecord]) -> list[_Planned | Exception]:
    return [_planned(ctx, request, tables) for ctx, request in calls]


def _planned(
    ctx: Context, request: models.CreateTableVersionRequest, tables: Mapping[Id, TableRecord]
) -> _Planned | Exception:
    try:
        known = tables.get(table_id(request.id)) if ctx.resolved is None else None
        table = known or find_table(ctx, request.id)
        return table, staged_version(ctx, table, request)
    except Exception as error:  # noqa: BLE001  # it is its own caller's, who is told
        return error


def recorded_apart(ctx: Context, news: Sequence[NewVersion]) -> list[VersionRecord | Exception]:
    """Record versions in one transaction. One that the catalog refuses does no harm to the others."""
    try:
        return _record_each(ctx, news)
    except _REFUSALS as error:
        if len(news) == 1:
            return [error]
        return [record for new in news for record in recorded_apart(ctx, [new])]


def _record_each(ctx: Context, news: Sequence[NewVersion]) -> list[VersionRecord | Exception]:
    """Record versions; each may be lost to somebody else. Raises _REFUSALS."""
    reach(Point.BEFORE_RECORD)
    with ctx.storage.syncing(not_kept(news)):
        pairs = ctx.store.record_versions(news)
        taken = [new for new, (record, inserted) in zip(news, pairs, strict=True) if not inserted and record.finalized]
        if taken and make_way(ctx, taken):
            pairs = ctx.store.record_versions(news)
    return [_same_or_error(new, *pair) for new, pair in zip(news, pairs, strict=True)]


def _same_or_error(new: NewVersion, record: VersionRecord, inserted: bool) -> VersionRecord | Exception:
    try:
        return check_same(new, record, inserted)
    except ConcurrentModificationError as error:
        return error
