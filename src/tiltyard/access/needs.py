"""What operations may need, as they declare it: `@operation(needs=on_table(Privilege.READ))`.

Each of these is checked before the operation runs, never for administrators (`Handler.authorize`). An object that one may
not see is answered as one that is not there; `tests/access` runs every operation against this, and docs/security.md is
its table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lance_namespace.errors import NamespaceNotFoundError

from tiltyard.access.visibility import check_server, seen_namespace, seen_table
from tiltyard.model.ids import namespace_id, table_id
from tiltyard.model.modes import DropMode, parse_mode
from tiltyard.model.operations import Needs
from tiltyard.model.privileges import Privilege, privilege_names

if TYPE_CHECKING:
    from tiltyard.context import Context


def said(wanted: int) -> str:
    """Privileges as the documentation has them."""
    return ", ".join(f"`{word}`" for word in privilege_names(wanted))


def on_table(privileges: Privilege, *, narrowed: bool = False) -> Needs:
    """These privileges on the table that the request names.

    An operation that is `narrowed` keeps within the table's policies itself; any other is refused to those they bind.
    """
    wanted = int(privileges)

    def admit(ctx: Context, request: Any) -> Context:
        path = table_id(request.id)
        return ctx.with_resolved({path: seen_table(ctx, path, wanted, narrowed=narrowed)})

    return Needs(f"{said(wanted)} on the table", admit)


def on_namespace(privileges: Privilege) -> Needs:
    """These privileges on the namespace that the request names."""
    wanted = int(privileges)

    def admit(ctx: Context, request: Any) -> Context:
        path = namespace_id(request.id)
        return ctx.with_resolved({}, {path: seen_namespace(ctx, path, wanted)})

    return Needs(f"{said(wanted)} on the namespace", admit)


def on_server(privileges: Privilege) -> Needs:
    """These privileges on the whole server."""
    wanted = int(privileges)

    def admit(ctx: Context, request: Any) -> Context:
        check_server(ctx, wanted)
        return ctx

    return Needs(f"{said(wanted)} on the server", admit)


def _seeing(ctx: Context, request: Any) -> Context:
    seen_namespace(ctx, namespace_id(request.id), 0)
    return ctx


def _anybody(ctx: Context, request: Any) -> Context:
    return ctx


def _drop_namespace(ctx: Context, request: Any) -> Context:
    path = namespace_id(request.id)
    try:
        number = seen_namespace(ctx, path, Privilege.DROP.value)
    except NamespaceNotFoundError:
        if parse_mode(DropMode, request.mode, DropMode.FAIL) is not DropMode.SKIP:
            raise
        number = 0
    return ctx.with_resolved({}, {path: number})


SEEING_NAMESPACE = Needs("any privilege on the namespace, above it or below it", _seeing)
DROPPING = Needs("`drop` on the namespace, and so on all below it", _drop_namespace)
OWN = Needs("nothing for what is one's own; `administer` on the server for what is others'", _anybody)
"""The operation itself looks whose it is."""
ANYBODY = Needs("nothing: whoever is known may ask, and is told of what they may see", _anybody)
