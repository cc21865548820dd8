"""Securables, the objects that privileges are granted on: the server, namespaces and tables; needs of their grants."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

from tiltyard.access.authorization import authorize_namespace, authorize_server, authorize_table
from tiltyard.access.caller import caller_rights
from tiltyard.access.rights import Rights
from tiltyard.model.ids import Id, display, namespace_id, table_id
from tiltyard.model.modes import parse_mode
from tiltyard.model.operations import Needs
from tiltyard.model.privileges import ALL, Privilege

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context


class ObjectKind(StrEnum):
    """The kinds of securables."""

    SERVER = "server"
    NAMESPACE = "namespace"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Securable:
    """An existing object: its id, and for a table that of its namespace, else 0."""

    kind: ObjectKind
    id: int
    parent_id: int
    path: Id

    def privileges(self, rights: Rights) -> int:
        """Return the privileges on it in these rights, as bits."""
        if self.kind is ObjectKind.TABLE:
            return rights.on_table(self.id, self.parent_id)
        return rights.on_namespace(self.id) if self.kind is ObjectKind.NAMESPACE else rights.server

    def __str__(self) -> str:
        return "the server" if self.kind is ObjectKind.SERVER else f"the {self.kind} {display(self.path)}"


def find_securable(ctx: Context, kind: str | None, names: Sequence[str] | None) -> Securable:
    """Return the object that an authorized request names. Raises InvalidInputError, …NotFoundError."""
    match parse_mode(ObjectKind, kind, ObjectKind.SERVER, "kind of object"):
        case ObjectKind.TABLE:
            table = ctx.find_table(table_id(names))
            return Securable(ObjectKind.TABLE, table.id, table.namespace_id, table_id(names))
        case ObjectKind.NAMESPACE:
            path = namespace_id(names)
            resolved_id = ctx.resolved_namespace_id(path)
            return Securable(ObjectKind.NAMESPACE, resolved_id or ctx.store.describe_namespace(path).id, 0, path)
        case ObjectKind.SERVER if names:
            raise InvalidInputError("The server has no id: leave it out, or set the kind to table or namespace.")
        case _:
            return Securable(ObjectKind.SERVER, 0, 0, ())


def caller_privileges(ctx: Context, securable: Securable) -> int:
    """Return the caller's privileges on an object, as bits."""
    return ALL if ctx.principal.administrator else securable.privileges(caller_rights(ctx))


def _authorize(ctx: Context, request: Any, required: int) -> Context:
    match parse_mode(ObjectKind, request.object_kind, ObjectKind.SERVER, "kind of object"):
        case ObjectKind.TABLE:
            path = table_id(request.id)
            record = authorize_table(ctx, path, required, enforces_policies=True)  # grants show no rows
            return ctx.with_resolved({path: record})
        case ObjectKind.NAMESPACE:
            path = namespace_id(request.id)
            return ctx.with_resolved({}, {path: authorize_namespace(ctx, path, required)})
        case ObjectKind.SERVER if required:
            authorize_server(ctx, required)
    return ctx


def _manage_grants(ctx: Context, request: Any) -> Context:
    return _authorize(ctx, request, Privilege.MANAGE_GRANTS.value)


def _list_grants(ctx: Context, request: Any) -> Context:
    is_about_caller = request.object_kind is None and not request.id and request.grantee == ctx.principal.name
    if is_about_caller and request.grantee_kind in (None, "principal"):
        return ctx
    return _authorize(ctx, request, Privilege.MANAGE_GRANTS.value)


def _check_privileges(ctx: Context, request: Any) -> Context:
    is_about_others = request.grantee or request.grantee_kind or request.groups
    return _authorize(ctx, request, Privilege.MANAGE_GRANTS.value if is_about_others else 0)


MANAGE_GRANTS = Needs("`manage_grants` on the object, and there what is granted", _manage_grants)
LIST_GRANTS = Needs("`manage_grants` on the object, or on the server; nothing for the caller's own", _list_grants)
CHECK_PRIVILEGES = Needs("to see the object; about others, `manage_grants` on it", _check_privileges)
