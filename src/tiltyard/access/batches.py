"""What requests on several tables need: all their entries are checked before any of them is begun."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.access.creating import check_new_table
from tiltyard.access.privileges import Privilege
from tiltyard.access.seeing import seen_table
from tiltyard.ids import Id, table_id
from tiltyard.operations import Needs

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.spec import models


def _commit(ctx: Context, request: models.BatchCommitTablesRequest) -> Context:
    declared: set[Id] = set()
    for entry in request.operations:
        if entry.declare_table is not None:
            path = table_id(entry.declare_table.id)
            check_new_table(ctx, path, entry.declare_table.location)
            declared.add(path)
        if entry.create_table_version is not None:
            _check(ctx, table_id(entry.create_table_version.id), Privilege.WRITE, declared)
        if entry.delete_table_versions is not None:
            _check(ctx, table_id(entry.delete_table_versions.id), Privilege.WRITE, declared)
        if entry.deregister_table is not None:
            _check(ctx, table_id(entry.deregister_table.id), Privilege.DROP, declared)
    return ctx


def _check(ctx: Context, path: Id, wanted: Privilege, declared: set[Id]) -> None:
    """What is done to a table that this very batch declares is done by its owner."""
    if path not in declared:
        seen_table(ctx, path, wanted.value)


def _create_versions(ctx: Context, request: models.BatchCreateTableVersionsRequest) -> Context:
    for entry in request.entries:
        seen_table(ctx, table_id(entry.id), Privilege.WRITE.value)
    return ctx


COMMITTING = Needs(
    "for each entry: to declare `create` on the namespace (with a location `administer` on the server), to create or "
    "delete versions `write`, to deregister `drop` on the table",
    _commit,
)
BATCH_CREATE_VERSIONS = Needs("`write` on each table", _create_versions)
