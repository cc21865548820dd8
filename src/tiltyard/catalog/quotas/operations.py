"""Quotas: set them on a principal or on a namespace with all below it, drop and list them; tell who has used what.

Administrators alone set them: a quota that whoever it binds could lift would be none.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from tiltyard.access.authorization import are_allowed_outside, caller_rights, is_administrator
from tiltyard.access.needs import ADMINISTRATORS, ANY_CALLER
from tiltyard.model.ids import Id, namespace_id
from tiltyard.model.modes import parse_mode
from tiltyard.model.operations import operation
from tiltyard.model.quotas import DAY_SECONDS, Resource, window_start
from tiltyard.model.spec import models
from tiltyard.store import Quota, QuotaUse
from tiltyard.store.access.grants import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tiltyard.context import Context

MAX_LIMIT = 1 << 62
"""The largest limit of a quota."""
MAX_DAYS = 92
"""The days of which usage is told at once."""
MAX_PRINCIPAL_CHARACTERS = 500
"""The longest name of a principal that has a quota."""


@operation(needs=ADMINISTRATORS, while_read_only=True, unlimited=True)
def set_quota(ctx: Context, request: models.SetQuotaRequest) -> models.SetQuotaResponse:
    """Set what a principal, or a namespace with all below it, may use of a resource; a limit left out is none.

    The principal need not exist yet. What is used already stays. Raises NamespaceNotFoundError, InvalidInputError (no
    such resource, both or none of principal and namespace, a limit below 0, a soft one above the hard one).
    """
    resource, principal, place = _find(ctx, request)
    soft, hard = request.soft, request.hard
    if soft is None and hard is None:
        raise InvalidInputError("Give a soft limit, which is warned of, or a hard one, which is kept, or both.")
    for limit in (soft, hard):
        if limit is not None and not 0 <= limit <= MAX_LIMIT:
            raise InvalidInputError(f"A limit is between 0 and {MAX_LIMIT}, not {limit}.")
    if soft is not None and hard is not None and soft > hard:
        raise InvalidInputError(f"The soft limit is below the hard one: {soft} is above {hard}.")
    ctx.store.set_quota(Quota(principal, place, resource.value, soft, hard, ctx.principal.name, 0))
    ctx.services.quotas.refresh_next()
    [use] = [use for use in ctx.store.list_quotas() if _key(use) == (principal, place, resource.value)]
    return models.SetQuotaResponse(quota=_to_entry(ctx, use))


@operation(needs=ADMINISTRATORS, while_read_only=True, unlimited=True)
def drop_quota(ctx: Context, request: models.DropQuotaRequest) -> models.DropQuotaResponse:
    """Drop a quota. Raises NamespaceNotFoundError, InvalidInputError (there is none of this resource)."""
    resource, principal, place = _find(ctx, request)
    if not ctx.store.drop_quota(principal, place, resource.value):
        raise InvalidInputError(
            f"There is no quota of {resource.value} here: `tiltyard quota list` has those that are."
        )
    ctx.services.quotas.refresh_next()
    return models.DropQuotaResponse()


@operation(needs=ANY_CALLER, changes=False, unlimited=True)
def list_quotas(ctx: Context, request: models.ListQuotasRequest) -> models.ListQuotasResponse:
    """List quotas with what is used of them: the caller's own, and those of namespaces on which it has a privilege.

    Raises PermissionDeniedError for the `whole` of them, which administrators alone are shown.
    """
    if request.whole and not is_administrator(ctx):
        raise PermissionDeniedError("Only administrators are shown all quotas.")
    uses = ctx.store.list_quotas()
    visible = _visible_namespaces(ctx, {use.quota.namespace_id for use in uses if use.quota.namespace_id})
    is_all = is_administrator(ctx)
    return models.ListQuotasResponse(
        quotas=[
            _to_entry(ctx, use)
            for use in uses
            if is_all or use.quota.namespace_id in visible or use.quota.principal == ctx.principal.name
        ]
    )


@operation(needs=ANY_CALLER, changes=False)
def list_usage(ctx: Context, request: models.ListUsageRequest) -> models.ListUsageResponse:
    """Tell what was used on each of the last `days` (UTC), and what is stored, by principal and namespace.

    Administrators are told of all, or of one `principal`; others of themselves, without names of namespaces on which
    they have no privilege. Raises InvalidInputError, PermissionDeniedError (of another, for who is no administrator).
    """
    days = 1 if request.days is None else request.days
    if not 1 <= days <= MAX_DAYS:
        raise InvalidInputError(f"Usage is told of 1 to {MAX_DAYS} days, not {days}.")
    is_all = is_administrator(ctx)
    whose = request.principal or (None if is_all else ctx.principal.name)
    if whose != ctx.principal.name and not is_all:
        raise PermissionDeniedError("Only administrators are told what others have used.")
    since = window_start(ctx.clock(), DAY_SECONDS) - (days - 1) * DAY_SECONDS * 1000
    counts, stored = ctx.store.list_usage(since, whose), ctx.store.list_stored_usage(whose)
    ids = {*(each.namespace_id for each in counts), *(each.namespace_id for each in stored)} - {0}
    visible = _visible_namespaces(ctx, ids)
    paths = {number: ctx.store.object_path(NAMESPACE, number) for number in visible}

    def path_of(number: int) -> list[str] | None:
        path = paths.get(number)
        return None if path is None else list(path)

    return models.ListUsageResponse(
        days=[
            models.UsageEntry(
                day=datetime.fromtimestamp(each.started_at / 1000, UTC).date().isoformat(),
                principal=each.principal,
                namespace=path_of(each.namespace_id),
                requests=each.requests,
                rows_written=each.rows_written,
            )
            for each in counts
        ],
        stored=[
            models.StoredUsageEntry(
                principal=each.principal or None,
                namespace=path_of(each.namespace_id),
                tables=each.tables,
                bytes=each.bytes,
            )
            for each in stored
        ],
    )


def _find(ctx: Context, request: models.SetQuotaRequest | models.DropQuotaRequest) -> tuple[Resource, str, int]:
    """Return what a request limits: the resource, and the principal, or the id of the namespace."""
    resource = parse_mode(Resource, request.resource, Resource.BYTES, "resource")
    if bool(request.principal) == (request.namespace is not None):
        raise InvalidInputError("A quota is of a principal or of a namespace: name one of them.")
    if request.principal:
        if len(request.principal) > MAX_PRINCIPAL_CHARACTERS or "\0" in request.principal:
            raise InvalidInputError(f"The name of a principal has {MAX_PRINCIPAL_CHARACTERS} characters at most.")
        return resource, request.principal, 0
    if resource is Resource.SQL_MEMORY:
        raise InvalidInputError("An SQL query reads tables of several namespaces: its memory is a principal's.")
    return resource, "", ctx.find_namespace(_path(request.namespace)).id


def _path(names: Sequence[str] | None) -> Id:
    return namespace_id(list(names or ()))


def _visible_namespaces(ctx: Context, ids: Iterable[int]) -> set[int]:
    """Return the namespaces on which the caller has a privilege, or all where it has all."""
    if is_administrator(ctx):
        return set(ids)
    rights = caller_rights(ctx)
    own = [number for number in sorted(ids) if rights.on_namespace(number)]
    allowed = are_allowed_outside(ctx, NAMESPACE, own)
    return {number for number, is_allowed in zip(own, allowed, strict=True) if is_allowed}


def _key(use: QuotaUse) -> tuple[str, int, str]:
    return use.quota.principal, use.quota.namespace_id, use.quota.resource


def _to_entry(ctx: Context, use: QuotaUse) -> models.QuotaEntry:
    """Convert a quota for a response; its state says which limit is reached."""
    quota, used = use.quota, use.used
    if quota.resource == Resource.SQL_MEMORY and (processes := ctx.services.sql_processes) is not None:
        used = processes.used_by(quota.principal)
    state = "ok"
    if quota.soft is not None and used >= quota.soft:
        state = "soft"
    if quota.hard is not None and used >= quota.hard:
        state = "hard"
    return models.QuotaEntry(
        principal=quota.principal or None,
        namespace=None if quota.principal else list(use.path),
        resource=quota.resource,
        used=used,
        soft=quota.soft,
        hard=quota.hard,
        state=state,
        set_by=quota.set_by,
        set_at_millis=quota.set_at,
    )
