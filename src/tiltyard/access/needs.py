"""What operations need of the caller, as they declare it: `@operation(needs=on_table(Privilege.READ))`.

It is checked before the operation runs, never for administrators (`Handler.authorize`). An object that the caller
cannot see is reported as missing; `tests/access` checks every operation, and docs/security.md has the table of all
needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lance_namespace.errors import NamespaceNotFoundError

from tiltyard.access.authorization import authorize_namespace, authorize_server, authorize_table
from tiltyard.model.ids import namespace_id, table_id
from tiltyard.model.modes import DropMode, parse_mode
from tiltyard.model.operations import Needs
from tiltyard.model.privileges import Privilege, privilege_names

if TYPE_CHECKING:
    from tiltyard.context import Context


def _format_privileges(privileges: int) -> str:
    """Format privileges for the documentation."""
    return ", ".join(f"`{name}`" for name in privilege_names(privileges))


def on_table(privileges: Privilege, *, enforces_policies: bool = False) -> Needs:
    """Need these privileges on the table that the request names.

    An operation that `enforces_policies` applies the table's policies itself; any other is denied to callers whom
    policies of the table bind.
    """
    required = int(privileges)

    def authorize(ctx: Context, request: Any) -> Context:
        path = table_id(request.id)
        return ctx.with_resolved({path: authorize_table(ctx, path, required, enforces_policies=enforces_policies)})

    return Needs(f"{_format_privileges(required)} on the table", authorize)


def on_namespace(privileges: Privilege) -> Needs:
    """Need these privileges on the namespace that the request names."""
    required = int(privileges)

    def authorize(ctx: Context, request: Any) -> Context:
        path = namespace_id(request.id)
        return ctx.with_resolved({}, {path: authorize_namespace(ctx, path, required)})

    return Needs(f"{_format_privileges(required)} on the namespace", authorize)


def on_server(privileges: Privilege) -> Needs:
    """Need these privileges on the whole server."""
    required = int(privileges)

    def authorize(ctx: Context, request: Any) -> Context:
        authorize_server(ctx, required)
        return ctx

    return Needs(f"{_format_privileges(required)} on the server", authorize)


def _see_namespace(ctx: Context, request: Any) -> Context:
    authorize_namespace(ctx, namespace_id(request.id), 0)
    return ctx


def _allow(ctx: Context, request: Any) -> Context:
    return ctx


def _drop_namespace(ctx: Context, request: Any) -> Context:
    path = namespace_id(request.id)
    try:
        resolved_id = authorize_namespace(ctx, path, Privilege.DROP.value)
    except NamespaceNotFoundError:
        if parse_mode(DropMode, request.mode, DropMode.FAIL) is not DropMode.SKIP:
            raise
        resolved_id = 0
    return ctx.with_resolved({}, {path: resolved_id})


SEE_NAMESPACE = Needs("any privilege on the namespace, above it or below it", _see_namespace)
DROP_NAMESPACE = Needs("`drop` on the namespace, and so on all below it", _drop_namespace)
OWNER_OR_ADMINISTRATOR = Needs("nothing for the caller's own; `administer` on the server for others'", _allow)
"""The operation itself checks whose object it is."""
ANY_CALLER = Needs("nothing: any authenticated caller; the response has what the caller can see", _allow)
