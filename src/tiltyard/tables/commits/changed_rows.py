"""What the event of a version says of its rows, where its commit knows that: from manifests, no data file is read.

A transaction has the fragments that it adds, and so an append its rows. A delete has as many fewer rows as the version
before it has more. What an update or a merge adds are rows that it changes and rows that it inserts: manifests do not
tell them apart, unless no row is gone. What is not known is left out.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lance_namespace.errors import LanceNamespaceError
from msgspec import structs

from tiltyard.model.branches import Branch
from tiltyard.storage.manifests.manifest_rows import committed_rows, count_fewer_rows
from tiltyard.tables.commits.staged_manifests import read_manifest

if TYPE_CHECKING:
    from tiltyard.context import Context
    from tiltyard.store import NewVersion, TableRecord


def with_changed_rows(ctx: Context, table: TableRecord, new: NewVersion, content: bytes) -> NewVersion:
    """Return a version with what is known of its rows, where this server keeps events; `content` is its manifest.

    Without content, or where that cannot be read, as it is: events do not refuse a commit.
    """
    settings = ctx.services.settings
    if not content or not (settings.events or settings.all_event_sinks):
        return new
    try:
        changed = _changed_rows(ctx, table, new, content)
    except LanceNamespaceError:  # not to be read, or storage is away
        return new
    return structs.replace(new, changed_rows=json.dumps(changed, separators=(",", ":"))) if changed else new


def _changed_rows(ctx: Context, table: TableRecord, new: NewVersion, content: bytes) -> dict[str, str | int]:
    committed = committed_rows(content)
    if committed.operation is None:
        return {}
    changed: dict[str, str | int] = {"operation": committed.operation}
    if committed.operation == "append" and committed.added is not None:
        return changed | {"rows_inserted": committed.added}
    if committed.operation not in ("delete", "update"):
        return changed
    before = read_manifest(ctx, table, Branch(new.branch), new.version - 1, new.naming_scheme)
    if before is None:
        return changed
    fewer = count_fewer_rows(before, content)
    if committed.operation == "delete":
        return changed | {"rows_deleted": fewer}
    if committed.added is None:
        return changed
    removed = committed.added + fewer
    return changed | (
        {"rows_inserted": committed.added}
        if not removed
        else {"rows_written": committed.added, "rows_removed": removed}
    )
