"""Change the properties of a table, in the catalog that has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.context import Context
    from tiltyard.model.ids import Id
    from tiltyard.store import TableRecord


def change_properties(ctx: Context, path: Id, record: TableRecord, changes: Mapping[str, str | None]) -> TableRecord:
    """Set some of a table's properties, and remove those whose value is None; return its record.

    Below a mount only what differs is sent to the other catalog. Raises TableNotFoundError; below a mount what the
    backend raises, UnsupportedOperationError where it has none.
    """
    mounted = ctx.services.mounts.find(path)
    if mounted is None:
        return ctx.store.change_table_properties(record.id, changes)
    changes = {key: value for key, value in changes.items() if record.properties.get(key) != value}
    if not changes:
        return record
    mount, below = mounted
    return structs.replace(record, properties=dict(mount.update_properties(below, changes)))
