"""Set the properties of a table, in the catalog that has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.context import Context
    from tiltyard.model.ids import Id
    from tiltyard.store import TableRecord


def set_properties(ctx: Context, path: Id, record: TableRecord, properties: Mapping[str, str]) -> TableRecord:
    """Replace a table's properties; return its record. Below a mount only what differs is sent to the other catalog.

    Raises TableNotFoundError; below a mount what the backend raises, UnsupportedOperationError where it has none.
    """
    mounted = ctx.services.mounts.find(path)
    if mounted is None:
        return ctx.store.set_table_properties(record.id, properties)
    changes: dict[str, str | None] = {
        key: value for key, value in properties.items() if record.properties.get(key) != value
    }
    changes |= {key: None for key in record.properties if key not in properties}
    if not changes:
        return record
    mount, below = mounted
    return structs.replace(record, properties=dict(mount.update_properties(below, changes)))
