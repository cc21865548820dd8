"""What privileges are granted on, as requests name it: the server, a namespace, or a table."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError

from tiltyard.access.rights import Rights
from tiltyard.access.visibility import check_server, rights_of, seen_namespace, seen_table
from tiltyard.model.ids import Id, display, namespace_id, table_id
from tiltyard.model.modes import parse_mode
from tiltyard.model.operations import Needs
from tiltyard.model.privileges import ALL, Privilege

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context


class ObjectKind(StrEnum):
    """What an object is."""

    SERVER = "server"
    NAMESPACE = "namespace"
    TABLE = "table"


@dataclass(frozen=True, slots=True)
class Target:
    """An object that is there; `home` is the namespace that a table is in."""

    kind: ObjectKind
    number: int
    home: int
    path: Id

    def privileges(self, rights: Rights) -> int:
        """What somebody may do with it, as bits."""
        if self.kind is ObjectKind.TABLE:
            return rights.on_table(self.number, self.home)
        return rights.on_namespace(self.number) if self.kind is ObjectKind.NAMESPACE else rights.server

    def __str__(self) -> str:
        return "the server" if self.kind is ObjectKind.SERVER else f"the {self.kind} {display(self.path)}"


def find_object(ctx: Context, kind: str | None, names: Sequence[str] | None) -> Target:
    """The object that a request names, for whoever may ask for it. Raises InvalidInputError, …NotFoundError."""
    match parse_mode(ObjectKind, kind, ObjectKind.SERVER, "kind of object"):
        case ObjectKind.TABLE:
            table = ctx.find_table(table_id(names))
            return Target(ObjectKind.TABLE, table.id, table.namespace_id, table_id(names))
        case ObjectKind.NAMESPACE:
            path = namespace_id(names)
            number = ctx.resolved_namespace_id(path)
            return Target(ObjectKind.NAMESPACE, number or ctx.store.describe_namespace(path).id, 0, path)
        case ObjectKind.SERVER if names:
            raise InvalidInputError("The server has no id: leave it out, or say that it is a table or a namespace.")
        case _:
            return Target(ObjectKind.SERVER, 0, 0, ())


def own_privileges(ctx: Context, target: Target) -> int:
    """What the one who asks may do with an object, as bits."""
    return ALL if ctx.principal.administrator else target.privileges(rights_of(ctx))


def _checked(ctx: Context, request: Any, wanted: int) -> Context:
    match parse_mode(ObjectKind, request.object_kind, ObjectKind.SERVER, "kind of object"):
        case ObjectKind.TABLE:
            path = table_id(request.id)
            return ctx.with_resolved(
                {path: seen_table(ctx, path, wanted, narrowed=True)}
            )  # grants tell nothing of rows
        case ObjectKind.NAMESPACE:
            path = namespace_id(request.id)
            return ctx.with_resolved({}, {path: seen_namespace(ctx, path, wanted)})
        case ObjectKind.SERVER if wanted:
            check_server(ctx, wanted)
    return ctx


def _managing(ctx: Context, request: Any) -> Context:
    return _checked(ctx, request, Privilege.MANAGE_GRANTS.value)


def _listing(ctx: Context, request: Any) -> Context:
    itself = request.object_kind is None and not request.id and request.grantee == ctx.principal.name
    if itself and request.grantee_kind in (None, "principal"):
        return ctx
    return _checked(ctx, request, Privilege.MANAGE_GRANTS.value)


def _asking(ctx: Context, request: Any) -> Context:
    about_others = request.grantee or request.grantee_kind or request.groups
    return _checked(ctx, request, Privilege.MANAGE_GRANTS.value if about_others else 0)


MANAGING_GRANTS = Needs("`manage_grants` on the object, and there what is granted", _managing)
LISTING_GRANTS = Needs("`manage_grants` on the object, or on the server; nothing for one's own", _listing)
ASKING = Needs("to see the object; about others, `manage_grants` on it", _asking)
