"""What requests on several tables need: all their entries are checked before any of them is begun."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.access.create_checks import check_new_table
from tiltyard.access.visibility import seen_table
from tiltyard.model.ids import Id, table_id
from tiltyard.model.operations import Needs
from tiltyard.model.privileges import Privilege

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context
    from tiltyard.model.spec import models
    from tiltyard.store import TableRecord


def _commit(ctx: Context, request: models.BatchCommitTablesRequest) -> Context:
    declared: set[Id] = set()
    tables: dict[Id, TableRecord | None] = {}
    spaces: dict[Id, int] = {}

    def check(names: Sequence[str] | None, wanted: Privilege) -> None:
        """What is done to a table that this very batch declares is done by its owner."""
        path = table_id(names)
        if path not in declared:
            tables[path] = seen_table(ctx, path, wanted.value)

    for entry in request.operations:
        if entry.declare_table is not None:
            path, location = table_id(entry.declare_table.id), entry.declare_table.location
            if location and ctx.store.is_location_reserved(location, ctx.principal.name):
                location = None  # the server has chosen it, for this very principal
            spaces.update(check_new_table(ctx, path, location))
            declared.add(path)
        if entry.create_table_version is not None:
            check(entry.create_table_version.id, Privilege.WRITE)
        if entry.delete_table_versions is not None:
            check(entry.delete_table_versions.id, Privilege.WRITE)
        if entry.deregister_table is not None:
            check(entry.deregister_table.id, Privilege.DROP)
    return ctx.with_resolved(tables, spaces)


def _create_versions(ctx: Context, request: models.BatchCreateTableVersionsRequest) -> Context:
    paths = [table_id(entry.id) for entry in request.entries]
    return ctx.with_resolved({path: seen_table(ctx, path, Privilege.WRITE.value) for path in paths})


COMMITTING = Needs(
    "for each entry: to declare `create` on the namespace (with a location that no batch of one's own has reserved "
    "`administer` on the server), to create or delete versions `write`, to deregister `drop` on the table",
    _commit,
)
BATCH_CREATE_VERSIONS = Needs("`write` on each table", _create_versions)
