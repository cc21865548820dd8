"""Which events a caller may see, at the moment when they are sent: those of what it sees then, by names that it sees.

What was dropped is judged by the grants that are left on it, in the trash, and on the namespaces above: not by what has
its name now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import PermissionDeniedError, TableNotFoundError
from msgspec import structs

from tiltyard.access.authorization import allowed_outside, caller_rights, is_administrator
from tiltyard.model.principals import Privilege
from tiltyard.store.access.grants import NAMESPACE, TABLE
from tiltyard.store.repository import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tiltyard.access.rights import Rights
    from tiltyard.context import Context
    from tiltyard.store.events.outbox import EventRecord

_OF_ACCESS = ("grant.", "policy.", "approval.", "erasure.", "secret.", "quota.")
"""Beginnings of the types that take `manage_grants` on their object."""
_OLD_ID = "old_id"


def visible_events(ctx: Context, events: Iterable[EventRecord]) -> list[EventRecord]:
    """Return the events that the caller may see, as it may see them. Raises ServiceUnavailableError."""
    seen = [each for event in events if (each := _visible_event(ctx, event)) is not None]
    if ctx.services.decisions is None:
        return seen
    hidden: set[int] = set()
    for kind in (NAMESPACE, TABLE):
        named = [each for each in seen if each.path and _named_kind(each) == kind]
        allowed = allowed_outside(ctx, kind, [each.path or () for each in named])
        hidden.update(each.position for each, is_allowed in zip(named, allowed, strict=True) if not is_allowed)
    return [each for each in seen if each.position not in hidden]


def _named_kind(event: EventRecord) -> str:
    """Return the kind of the object that an event has the path of: that of a job is its table's."""
    return NAMESPACE if event.kind == "namespace" else TABLE


def _visible_event(ctx: Context, event: EventRecord) -> EventRecord | None:
    """Return an event as the caller's rights let it see it; None for one that they do not."""
    if is_administrator(ctx):
        return event
    rights = caller_rights(ctx)
    if event.kind == "job":
        return _visible_job(ctx, rights, event)
    if event.kind not in ("table", "namespace") or not _can_see_object(ctx, rights, event):
        return None
    if event.type.startswith(_OF_ACCESS) and not _bits_on(ctx, rights, event) & Privilege.MANAGE_GRANTS:
        return None
    if event.other_namespace_id is not None and not _can_see_namespace(ctx, rights, event.other_namespace_id):
        return structs.replace(event, data={name: value for name, value in event.data.items() if name != _OLD_ID})
    return event


def _can_see_object(ctx: Context, rights: Rights, event: EventRecord) -> bool:
    if event.kind == "namespace":
        return _can_see_namespace(ctx, rights, event.object_id)
    return bool(_bits_on(ctx, rights, event)) and _can_see_namespace(ctx, rights, event.namespace_id)


def _bits_on(ctx: Context, rights: Rights, event: EventRecord) -> int:
    """Return the privileges on an event's object, where it is now or was last."""
    if event.object_id is None or event.namespace_id is None:
        return 0
    if event.kind == "namespace":
        return rights.on_namespace(event.object_id)
    try:
        namespace_id = ctx.store.table_by_id(event.object_id).namespace_id
    except TableNotFoundError:
        namespace_id = event.namespace_id
    return rights.on_table(event.object_id, namespace_id)


def _can_see_namespace(ctx: Context, rights: Rights, namespace_id: int | None) -> bool:
    """Return whether the caller sees a namespace; one that was dropped, by privileges on it or above it alone."""
    if namespace_id is None or namespace_id == ROOT:
        return namespace_id == ROOT
    if rights.on_namespace(namespace_id):
        return True
    is_there = ctx.store.object_path(NAMESPACE, namespace_id) is not None
    return is_there and ctx.store.has_grant_at_or_below(namespace_id, rights.grantees)


def _visible_job(ctx: Context, rights: Rights, event: EventRecord) -> EventRecord | None:
    """Return an event of the caller's own job, without a table that it cannot see, or of one on a table that it can use
    and whose policies do not bind it.
    """
    if _can_see_object(ctx, rights, event) and not _is_bound(rights, event.object_id):
        return event
    is_own = event.data.get("requested_by") == ctx.principal.name
    return structs.replace(event, path=None, object_id=None) if is_own else None


def _is_bound(rights: Rights, table_id: int | None) -> bool:
    try:
        return table_id is not None and rights.effective_policy(table_id) is not None
    except PermissionDeniedError:  # a policy that cannot be read binds
        return True
