"""What giving things another name or place needs: rights on both sides.

A table inherits from the namespace it is in, so moving it changes who may do what with it: that needs `manage_grants`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lance_namespace.errors import NamespaceNotFoundError, TableNotFoundError

from tiltyard.access.visibility import rights_of, seen_namespace, seen_table
from tiltyard.model.ids import namespace_id, table_id
from tiltyard.model.operations import Needs
from tiltyard.model.privileges import Privilege
from tiltyard.store.paths import display_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context
    from tiltyard.model.ids import Id

MOVING = Privilege.DROP | Privilege.MANAGE_GRANTS


def new_home(path: Id, new_namespace: Sequence[str] | None) -> Id:
    """The namespace that a table is to be in: the one it is in, unless another is named. Raises InvalidInputError."""
    return path[:-1] if new_namespace is None else namespace_id(new_namespace)


def _rename(ctx: Context, request: Any) -> Context:
    path = table_id(request.id)
    home = new_home(path, request.new_namespace_id)
    record = seen_table(ctx, path, int(MOVING) if home != path[:-1] else Privilege.ALTER.value)
    return ctx.with_resolved({path: record}, {home: seen_namespace(ctx, home, Privilege.CREATE.value)})


def _undrop_table(ctx: Context, request: Any) -> Context:
    path = table_id(request.id)
    home = new_home(path, request.new_namespace_id)
    removed = ctx.store.find_removed_table(path, request.dropped_id)
    wanted = MOVING if home != path[:-1] else Privilege.DROP
    bits = rights_of(ctx).on_table(removed.id, removed.namespace_id)
    if bits & wanted != wanted:
        raise TableNotFoundError(f"No dropped table is kept under the name {display_path(path)}")
    request.dropped_id = removed.id  # what was checked, whatever is dropped meanwhile
    return ctx.with_resolved({}, {home: seen_namespace(ctx, home, Privilege.CREATE.value)})


def _undrop_namespace(ctx: Context, request: Any) -> Context:
    path = namespace_id(request.id)
    home = (path if request.new_namespace_id is None else namespace_id(request.new_namespace_id))[:-1]
    if not path:
        return ctx  # which is refused as what it is
    removed = ctx.store.find_removed_namespace(path, request.dropped_id)
    wanted = MOVING if home != path[:-1] else Privilege.DROP
    if rights_of(ctx).on_namespace(removed.id) & wanted != wanted:
        raise NamespaceNotFoundError(f"No dropped namespace is kept under the name {display_path(path)}")
    request.dropped_id = removed.id
    return ctx.with_resolved({}, {home: seen_namespace(ctx, home, Privilege.CREATE.value)})


RENAME_TABLE = Needs(
    "`alter` on the table and `create` on its namespace; into another namespace, `drop` and `manage_grants` on the "
    "table and `create` on that one",
    _rename,
)
UNDROP_TABLE = Needs(
    "`drop` on what was the table (into another namespace `manage_grants` too), `create` on the namespace",
    _undrop_table,
)
UNDROP_NAMESPACE = Needs(
    "`drop` on what was the namespace (to another place `manage_grants` too), `create` on the one above",
    _undrop_namespace,
)
