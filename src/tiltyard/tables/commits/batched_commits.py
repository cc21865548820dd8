"""CreateTableVersion for requests that wait at the same time: files are synced, and versions recorded, together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from msgspec import structs

from tiltyard.model.ids import table_id
from tiltyard.model.operations import map_successes
from tiltyard.model.spec import models
from tiltyard.storage.locations import is_local
from tiltyard.store import NewVersion, TableRecord, VersionRecord
from tiltyard.tables.commits.commit_requests import (
    create_version_response,
    validate_version,
)
from tiltyard.tables.commits.finalizing import MAX_THREADS, finalize_each
from tiltyard.tables.commits.recording import REFUSALS, record_each, record_independently
from tiltyard.tables.opening import find_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tiltyard.context import Context

_Calls: TypeAlias = "Sequence[tuple[Context, models.CreateTableVersionRequest]]"
_Tables: TypeAlias = "Mapping[tuple[str, ...], TableRecord]"
_Validated: TypeAlias = "tuple[TableRecord, NewVersion]"
_Recorded: TypeAlias = "tuple[TableRecord, NewVersion, VersionRecord]"


def create_table_versions(calls: _Calls) -> list[models.CreateTableVersionResponse | Exception]:
    """Run several CreateTableVersion requests: sync their files together, and record them in one transaction.

    Each succeeds or fails independently; return the response or the error of each.
    """
    ctx = calls[0][0]  # all have the same services
    outcomes = _record_known_tables(calls)
    if outcomes is None:
        outcomes = map_successes(_validate_all(calls, _find_tables(calls)), partial(_record_validated, ctx))
        for (call_ctx, request), outcome in zip(calls, outcomes, strict=True):
            if call_ctx.resolved is None and not isinstance(outcome, Exception):
                ctx.services.known_tables.add(table_id(request.id), outcome[0])
    return map_successes(outcomes, partial(_finalize_recorded, ctx))


def _record_known_tables(calls: _Calls) -> list[_Recorded | Exception] | None:
    """Record versions of tables that the process has cached (`KnownTables`), by one statement that also looks them up.

    None if a table is not cached, or anything is not as it should be: nothing was recorded then.
    """
    ctx = calls[0][0]
    if any(call_ctx.resolved is not None for call_ctx, _ in calls):
        return None
    tables = ctx.services.known_tables.get_all(tuple(request.id or ()) for _, request in calls)
    if tables is None:
        return None
    validated = [outcome for outcome in _validate_all(calls, tables) if not isinstance(outcome, Exception)]
    if len(validated) < len(calls):
        return None
    news = [structs.replace(new, expected_name=(table.namespace_id, table.name)) for table, new in validated]
    try:
        records = record_each(ctx, news)
    except REFUSALS:
        return None
    return _with_records(validated, records)


def _record_validated(ctx: Context, validated: Sequence[_Validated]) -> list[_Recorded | Exception]:
    return _with_records(validated, record_independently(ctx, [new for _, new in validated]))


def _with_records(
    validated: Sequence[_Validated], records: Sequence[VersionRecord | Exception]
) -> list[_Recorded | Exception]:
    return [
        record if isinstance(record, Exception) else (*pair, record)
        for pair, record in zip(validated, records, strict=True)
    ]


def _finalize_recorded(
    ctx: Context, recorded: Sequence[_Recorded]
) -> list[models.CreateTableVersionResponse | Exception]:
    commits = [(table, record) for table, _, record in recorded]
    final = finalize_each(ctx, commits, [new for _, new, _ in recorded])
    return [
        record if isinstance(record, Exception) else create_version_response(table, record)
        for (table, _), record in zip(commits, final, strict=True)
    ]


def _find_tables(calls: _Calls) -> _Tables:
    """Return the tables of the requests, by one query, but for those that authorization has looked up already."""
    paths = [tuple(request.id or ()) for ctx, request in calls if ctx.resolved is None and ctx.mounted is None]
    return calls[0][0].store.find_tables(paths) if len(paths) > 1 else {}


def _validate_all(calls: _Calls, tables: _Tables) -> list[_Validated | Exception]:
    locations = {table.location for table in tables.values()}
    if len(calls) < 2 or not locations or all(map(is_local, locations)):
        return [_validate(ctx, request, tables) for ctx, request in calls]
    with ThreadPoolExecutor(min(MAX_THREADS, len(calls))) as pool:
        return list(pool.map(lambda call: _validate(call[0], call[1], tables), calls))


def _validate(ctx: Context, request: models.CreateTableVersionRequest, tables: _Tables) -> _Validated | Exception:
    try:
        is_prefetched = ctx.resolved is None and ctx.mounted is None
        prefetched = tables.get(table_id(request.id)) if is_prefetched else None
        table = prefetched or find_table(ctx, request.id)
        return table, validate_version(ctx, table, request)
    except Exception as error:  # noqa: BLE001  # it is the outcome of this request alone
        return error
