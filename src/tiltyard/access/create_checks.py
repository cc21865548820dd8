"""What creating needs: `create` in the namespace; a name that is taken already needs what is done to the object there.

A place on storage that the one who asks has chosen is no table's yet, so nothing was granted on it: that is for those
who administer the server. Whoever creates an object owns it (OWNED).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, NamespaceNotFoundError, PermissionDeniedError, TableNotFoundError

from tiltyard.access.policies import refusal
from tiltyard.access.visibility import check_record, check_server, rights_of, seen_namespace, seen_table
from tiltyard.model.ids import Id, namespace_id, table_id
from tiltyard.model.modes import CreateMode, parse_mode
from tiltyard.model.operations import Needs
from tiltyard.model.privileges import ALL, Privilege
from tiltyard.store import Creator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.context import Context
    from tiltyard.store import TableRecord

OWNED = ALL & ~(Privilege.RUN_UDFS | Privilege.ADMINISTER)
"""What creators have. Not to run code over it: jobs run as the worker does, and read what it can."""
OWN_LOCATION = "the server to name a location"


def owner(ctx: Context, parent: Id) -> Creator | None:
    """Who is given what creators have on what this request creates in a namespace: nobody who has it there already.

    Raises NamespaceNotFoundError, ServiceUnavailableError.
    """
    if ctx.principal.administrator:
        return None
    if rights_of(ctx).on_namespace(ctx.store.describe_namespace(parent).id) & OWNED == OWNED:
        return None
    return Creator(ctx.principal.name, OWNED)


def check_new_table(ctx: Context, path: Id, location: str | None) -> Mapping[Id, int]:
    """What a new table needs; answers the id of its namespace. Raises NamespaceNotFoundError, PermissionDeniedError."""
    home = seen_namespace(ctx, path[:-1], Privilege.CREATE.value)
    if location:
        check_server(ctx, Privilege.ADMINISTER.value, OWN_LOCATION)
    return {path[:-1]: home}


def _namespace(ctx: Context, request: Any) -> Context:
    path = namespace_id(request.id)
    wanted = Privilege.CREATE.value
    if parse_mode(CreateMode, request.mode, CreateMode.CREATE) is CreateMode.OVERWRITE:
        wanted |= Privilege.DROP.value
    return ctx.with_resolved({}, {path[:-1]: seen_namespace(ctx, path[:-1], wanted)})


def _declared(ctx: Context, request: Any) -> Context:
    return ctx.with_resolved({}, check_new_table(ctx, table_id(request.id), request.location))


def _registered(ctx: Context, request: Any) -> Context:
    return ctx.with_resolved({}, check_new_table(ctx, table_id(request.id), request.location or OWN_LOCATION))


def _table(ctx: Context, request: Any) -> Context:
    mode = parse_mode(CreateMode, request.mode, CreateMode.CREATE)
    return check_table(ctx, table_id(request.id), mode, request.location)


def check_table(ctx: Context, path: Id, mode: CreateMode, location: str | None) -> Context:
    """What it needs to create a table with data, by what has its name. Raises …NotFoundError, PermissionDeniedError."""
    record = _there(ctx, path)
    if record is None:
        return ctx.with_resolved({path: None}, check_new_table(ctx, path, location))
    if mode is CreateMode.OVERWRITE:
        check_record(ctx, path, record, Privilege.WRITE | Privilege.ALTER)
    elif record.declared:
        check_record(ctx, path, record, Privilege.WRITE.value)
    return ctx.with_resolved({path: record})


def _there(ctx: Context, path: Id) -> TableRecord | None:
    """The table that has the name already, if one may see it: who may create in a namespace sees all that is in it."""
    with suppress(TableNotFoundError, NamespaceNotFoundError):
        return seen_table(ctx, path, Privilege.USE.value, narrowed=True)  # that it is there is no row
    return None


def _clone(ctx: Context, request: Any) -> Context:
    ctx = ctx.with_resolved({}, check_new_table(ctx, table_id(request.id), None))
    rights = rights_of(ctx)
    if not rights.server & Privilege.ADMINISTER:
        try:
            source = ctx.store.table_at(ctx.storage.check_location(request.source_location))
        except InvalidInputError:
            source = None  # what is there is not told to those who may not read it
        if source is None or not rights.allow(source, Privilege.READ.value):
            raise PermissionDeniedError("This needs read on the table at source_location: ask who may grant it.")
        if rights.narrowing(source.id) is not None:
            raise refusal("the table at source_location")
    return ctx


CREATE_NAMESPACE = Needs("`create` on the namespace above; to overwrite, `drop` on it too", _namespace)
DECLARE_TABLE = Needs("`create` on the namespace; with a location, `administer` on the server", _declared)
REGISTER_TABLE = Needs("`create` on the namespace, `administer` on the server", _registered)
CREATE_TABLE = Needs(
    "`create` on the namespace, with a location `administer` on the server; where the table is there, `use` of it to "
    "hear so, `write` on it if it is only declared, `write` and `alter` to overwrite",
    _table,
)
CLONE_TABLE = Needs("`create` on the namespace, `read` on the table at `source_location`", _clone)
