"""Protections: set them on the server, a namespace or a table, lift and list them. What they do is `store/protections`.

A protection is lifted where it was set: whoever may do so below that cannot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, TableNotFoundError

from tiltyard.access.approvals import check_approvable, removes_object, using_approval
from tiltyard.access.authorization import (
    authorize_namespace,
    authorize_server,
    authorize_table,
    caller_rights,
    missing_privileges,
    require_decision,
)
from tiltyard.catalog.grants import ObjectKind, Securable, find_securable
from tiltyard.model.ids import Id, namespace_id, table_id
from tiltyard.model.modes import ProtectionKind, parse_mode
from tiltyard.model.operations import Needs, operation
from tiltyard.model.principals import Privilege
from tiltyard.model.spec import models
from tiltyard.store import Protection
from tiltyard.store.access.grants import TABLE
from tiltyard.store.repository import ROOT, display_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context

MAX_REASON_CHARACTERS = 2_000
"""The longest reason of a protection."""


def _parse_kind(text: str) -> ProtectionKind:
    return parse_mode(ProtectionKind, text, ProtectionKind.DELETION, "kind of protection")


def _authorize(ctx: Context, request: Any, required: int) -> Context:
    """Check that the caller has all `required` privileges on the object; with 0, that it sees it."""
    kind = parse_mode(ObjectKind, request.object_kind, ObjectKind.SERVER, "kind of object")
    if getattr(request, "dropped_id", None) is not None:
        path = table_id(request.id)
        removed = ctx.store.find_removed_table(path, request.dropped_id)
        bits = caller_rights(ctx).on_table(removed.id, removed.namespace_id)
        if not bits:
            raise TableNotFoundError(f"No dropped table is kept under the name {display_path(path)}")
        if required & ~bits:
            raise missing_privileges(required & ~bits, f"the dropped table {path}")
        require_decision(ctx, TABLE, path, required)
        return ctx
    match kind:
        case ObjectKind.TABLE:
            path = table_id(request.id)
            return ctx.with_resolved({path: authorize_table(ctx, path, required, enforces_policies=True)})
        case ObjectKind.NAMESPACE:
            path = namespace_id(request.id)
            return ctx.with_resolved({}, {path: authorize_namespace(ctx, path, required)})
        case ObjectKind.SERVER if required:
            authorize_server(ctx, Privilege.ADMINISTER.value)
    return ctx


def _change(ctx: Context, request: Any) -> Context:
    is_hold = _parse_kind(request.kind) is ProtectionKind.HOLD
    return _authorize(ctx, request, (Privilege.LEGAL_HOLD if is_hold else Privilege.MANAGE_GRANTS).value)


def _list(ctx: Context, request: Any) -> Context:
    return _authorize(ctx, request, Privilege.USE.value if request.object_kind else Privilege.ADMINISTER.value)


CHANGE_PROTECTION = Needs(
    "`manage_grants` on the object, for a legal hold `legal_hold`; on the server `administer`", _change
)
LIST_PROTECTIONS = Needs("`use` on the object; without one, `administer` on the server", _list)


def _find(ctx: Context, request: Any) -> Securable:
    """Return the object that an authorized request names. Raises InvalidInputError, …NotFoundError."""
    if request.dropped_id is None:
        return find_securable(ctx, request.object_kind, request.id)
    path = table_id(request.id)
    if parse_mode(ObjectKind, request.object_kind, ObjectKind.SERVER, "kind of object") is not ObjectKind.TABLE:
        raise InvalidInputError("dropped_id is of a dropped table: set object_kind to table, or leave it out.")
    removed = ctx.store.find_removed_table(path, request.dropped_id)
    return Securable(ObjectKind.TABLE, removed.id, removed.namespace_id, path)


@operation(needs=CHANGE_PROTECTION, while_read_only=True)
def set_protection(ctx: Context, request: models.SetProtectionRequest) -> models.SetProtectionResponse:
    """Protect the server, a namespace with all below it, or a table: from deletion, by a legal hold, from changes, or
    by the approval of a second principal that `operations` need.

    A protection that is set already gets the new reason. With `dropped_id`, the object is a dropped table that can be
    restored. Returns all that holds for the object. Raises NamespaceNotFoundError, TableNotFoundError,
    InvalidInputError (no such kind; a legal hold without a reason).
    """
    kind, securable = _parse_kind(request.kind), _find(ctx, request)
    reason = (request.reason or "").strip()
    if kind is ProtectionKind.HOLD and not reason:
        raise InvalidInputError("A legal hold needs a reason: say why nothing of this may be removed.")
    if len(reason) > MAX_REASON_CHARACTERS:
        raise InvalidInputError(f"A reason has {MAX_REASON_CHARACTERS} characters at most: this one has {len(reason)}.")
    for name in _parse_operations(kind, request.operations):
        place = securable.kind.value, securable.id, kind.value
        removes = bool(name) and removes_object(name)
        ctx.store.set_protection(Protection(*place, name, reason, ctx.principal.name, 0, removes))
    ctx.services.protections.refresh_next()
    return models.SetProtectionResponse(protections=_entries(ctx, securable))


@operation(needs=CHANGE_PROTECTION, while_read_only=True)
def lift_protection(ctx: Context, request: models.LiftProtectionRequest) -> models.LiftProtectionResponse:
    """Lift a protection from the very object that it was set on; return what still holds for that.

    To lift the need of an approval needs one itself. Raises NamespaceNotFoundError, TableNotFoundError,
    InvalidInputError (none of this kind is set on it).
    """
    kind, securable = _parse_kind(request.kind), _find(ctx, request)
    if kind is ProtectionKind.APPROVAL:
        namespace = securable.parent_id if securable.kind is ObjectKind.TABLE else securable.id or ROOT
        with using_approval(ctx, "LiftProtection", securable.kind.value, namespace, securable.id, request):
            _lift(ctx, securable, kind, request)
    else:
        _lift(ctx, securable, kind, request)
    ctx.services.protections.refresh_next()
    return models.LiftProtectionResponse(protections=_entries(ctx, securable))


def _lift(ctx: Context, securable: Securable, kind: ProtectionKind, request: models.LiftProtectionRequest) -> None:
    for name in _parse_operations(kind, request.operations):
        if not ctx.store.lift_protection(securable.kind.value, securable.id, kind.value, name):
            what = f"{kind} of {name}" if name else kind.value
            raise InvalidInputError(
                f"No protection '{what}' is set on {securable} itself: {_say_inherited(ctx, securable)}"
            )


def _parse_operations(kind: ProtectionKind, names: Sequence[str] | None) -> Sequence[str]:
    """Return the operations that need approval; [""] for another kind. Raises InvalidInputError."""
    if kind is not ProtectionKind.APPROVAL:
        if names:
            raise InvalidInputError("Only approvals name operations: leave them out, or set the kind to approval.")
        return [""]
    if not names:
        raise InvalidInputError("Name the operations that need approval.")
    return [check_approvable(name) for name in names]


def _say_inherited(ctx: Context, securable: Securable) -> str:
    places = {ctx.store.describe_protected(each) for each in _protections_of(ctx, securable)}
    return f"it inherits some from {', '.join(sorted(places))}." if places else "it has none, and inherits none."


@operation(needs=LIST_PROTECTIONS, changes=False)
def list_protections(ctx: Context, request: models.ListProtectionsRequest) -> models.ListProtectionsResponse:
    """List what protects an object, its own protections first, then those that it inherits; or all of the catalog.

    Raises NamespaceNotFoundError, TableNotFoundError, InvalidInputError.
    """
    if request.object_kind:
        if request.limit is not None or request.page_token is not None:
            raise InvalidInputError("The protections of one object are no pages: leave limit and page_token out.")
        return models.ListProtectionsResponse(protections=_entries(ctx, _find(ctx, request)))
    if request.id or request.dropped_id is not None:
        raise InvalidInputError("Set object_kind to table or namespace, or leave the id out.")
    records, token = ctx.paging.fetch_page(
        "protections",
        request.page_token,
        request.limit,
        ctx.store.list_protections,
        lambda each: (each.object_kind, each.object_id, each.kind, each.operation),
    )
    return models.ListProtectionsResponse(protections=[_to_entry(ctx, each) for each in records], page_token=token)


def _protections_of(ctx: Context, securable: Securable) -> Sequence[Protection]:
    match securable.kind:
        case ObjectKind.TABLE:
            return ctx.store.protections_of(securable.parent_id, securable.id)
        case ObjectKind.NAMESPACE:
            return ctx.store.protections_of(securable.id)
        case _:
            return [each for each in ctx.store.protections_of(ROOT) if each.object_kind == ObjectKind.SERVER]


def _entries(ctx: Context, securable: Securable) -> list[models.ProtectionEntry]:
    return [_to_entry(ctx, protection) for protection in _protections_of(ctx, securable)]


def _to_entry(ctx: Context, protection: Protection) -> models.ProtectionEntry:
    """Convert a protection for a response; without an id where the object was dropped, and can be restored."""
    path = ctx.store.object_path(protection.object_kind, protection.object_id)
    return models.ProtectionEntry(
        object_kind=protection.object_kind,
        id=None if path is None or protection.object_kind == ObjectKind.SERVER else list(Id(path)),
        kind=protection.kind,
        operation=protection.operation or None,
        reason=protection.reason or None,
        set_by=protection.set_by,
        set_at_millis=protection.set_at,
    )
