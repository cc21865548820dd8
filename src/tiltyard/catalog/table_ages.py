"""Operations on how old tables may be, and the scheduler's look at which of them are older.

The age of a table is the time since its last commit, by whomever; of a materialized view it is the time since its last
refresh, and none while no commit has come to its sources since.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.access.authorization import are_allowed_outside, authorize_table, caller_rights
from tiltyard.access.needs import on_table
from tiltyard.model.ids import DEFAULT_DELIMITER, Id, parse_id, table_id
from tiltyard.model.operations import Needs, operation
from tiltyard.model.principals import Privilege
from tiltyard.model.schedules import format_duration
from tiltyard.model.spec import models
from tiltyard.store.access.grants import TABLE
from tiltyard.tables.opening import find_table

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import TableAge

log = logging.getLogger("tiltyard.ages")

MIN_MAX_AGE_SECONDS, MAX_MAX_AGE_SECONDS = 10.0, 3660 * 86_400.0
"""What a table may say of how old it may be."""


@operation(needs=on_table(Privilege.ALTER))
def set_table_max_age(ctx: Context, request: models.SetTableMaxAgeRequest) -> models.SetTableMaxAgeResponse:
    """Set how old a table or a view may be; without `max_age_seconds`, as old as it is.

    Raises TableNotFoundError, InvalidInputError (out of bounds, or a table whose commits are not recorded here).
    """
    record, seconds = find_table(ctx, request.id), request.max_age_seconds
    if seconds is not None and not MIN_MAX_AGE_SECONDS <= seconds <= MAX_MAX_AGE_SECONDS:
        raise InvalidInputError(
            f"A table may be {MIN_MAX_AGE_SECONDS:g} to {MAX_MAX_AGE_SECONDS:g} seconds old, not {seconds:g}."
        )
    if seconds is not None and not record.managed:
        raise InvalidInputError(
            "The age of this table is not known: its commits are not recorded in the catalog (it is not managed)."
        )
    ctx.store.set_max_age(record.id, None if seconds is None else int(seconds * 1000))
    return models.SetTableMaxAgeResponse()


def _see_table(ctx: Context, request: models.ListTableAgesRequest) -> Context:
    """Check that the caller sees the table that is asked for. Raises TableNotFoundError, NamespaceNotFoundError."""
    if request.table is None:
        return ctx
    path = table_id(parse_id(request.table))
    return ctx.with_resolved({path: authorize_table(ctx, path, 0, enforces_policies=True)})


LIST_AGES = Needs("nothing: the tables on which the caller has `use`", _see_table)


@operation(needs=LIST_AGES, changes=False)
def list_table_ages(ctx: Context, request: models.ListTableAgesRequest) -> models.ListTableAgesResponse:
    """List the tables that say how old they may be, and that the caller can use: all, one `table`, or the `stale` ones.

    Raises TableNotFoundError, InvalidInputError.
    """
    if request.table is None:
        ages = ctx.store.list_table_ages()
    else:
        found = find_table(ctx, table_id(parse_id(request.table, DEFAULT_DELIMITER)))
        age = ctx.store.find_table_age(found.id)
        ages = [] if age is None else [age]
    now = ctx.clock()
    wanted = [age for age in ages if _can_use(ctx, age) and request.stale in (None, age.is_stale(now))]
    allowed = are_allowed_outside(ctx, TABLE, [age.table_id for age in wanted])
    wanted = [age for age, is_allowed in zip(wanted, allowed, strict=True) if is_allowed]
    entries = [_to_entry(Id(path), age, now) for age in wanted if (path := ctx.store.object_path(TABLE, age.table_id))]
    return models.ListTableAgesResponse(tables=sorted(entries, key=lambda entry: entry.id))


def _can_use(ctx: Context, age: TableAge) -> bool:
    return ctx.principal.administrator or bool(
        caller_rights(ctx).on_table(age.table_id, age.namespace_id) & Privilege.USE
    )


def _to_entry(path: Id, age: TableAge, now: int) -> models.TableAgeEntry:
    return models.TableAgeEntry(
        id=list(path),
        max_age_seconds=age.max_age_ms / 1000,
        age_seconds=age.age_ms(now) / 1000,
        stale=age.is_stale(now),
    )


def note_stale_tables(ctx: Context) -> None:
    """Record which tables are older than they may be, and log what has changed: one server of all does so each time.

    Raises ServiceUnavailableError.
    """
    now = ctx.clock()
    for age in ctx.store.list_table_ages():
        is_stale = age.is_stale(now)
        if is_stale == (age.stale_since is not None) or not ctx.store.note_staleness(age.table_id, is_stale=is_stale):
            continue
        path = Id(ctx.store.object_path(TABLE, age.table_id) or ())
        limit = format_duration(age.max_age_ms / 1000)
        if is_stale:
            log.warning("table %s is stale: it is older than %s", path, limit)
        else:
            log.info("table %s is stale no more: it is younger than %s again", path, limit)
