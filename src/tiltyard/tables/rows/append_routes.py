"""Choose how appends are committed, and say why: the one place that knows all the ways.

- **queued**: as one version with the appends of other servers that write to the table, too (`shared_appends`): the one
  whose turn it is commits it in one of the other ways;
- **at once**: this process has made the latest manifest, and from that it makes the data files and the next manifest,
  and puts all of them at the same time: two round trips to an object store, with that of the final name;
- **made here**: the rows are written while the latest manifest is read, and then this process makes the next manifest
  from it, and puts that with one request: three round trips;
- **Lance**: `lance.LanceDataset.commit`, which lists versions and reads what it has written, and can do all there is.

They are tried in this order, and the first without an obstacle commits. At the level debug the log `tiltyard.appends`
says for each commit which way it was, and what was in the way of those before; /metrics counts them.
"""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import TYPE_CHECKING

from tiltyard.runtime.cache import lasting_facts
from tiltyard.storage.locations import is_local
from tiltyard.storage.writing import manifest_key
from tiltyard.tables.versions.records import recorded_latest

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from tiltyard.tables.rows.write_target import WriteTarget

log = logging.getLogger("tiltyard.appends")

MAX_AT_ONCE_BYTES = 4 << 20
"""Bytes of rows whose files are made in memory: of more, a round trip is a small part of the time that they take."""
MAX_QUEUED_BYTES = 256 << 10
"""Bytes of rows that go through the catalog: larger appends are committed by their own server."""


class AppendRoute(StrEnum):
    """A way to commit appends."""

    QUEUED = "queued"
    AT_ONCE = "at_once"
    MADE_HERE = "made_here"
    LANCE = "lance"


def log_route(target: WriteTarget, route: AppendRoute, obstacle: str | None = None) -> None:
    """Log and count that appends to a table were committed in a way, or log what is in its way."""
    log.debug("appends to %s, way '%s': %s", target.key, route, obstacle or "committed")
    if obstacle is None:
        target.ctx.services.append_counts.add(route)


def why_not_queued(target: WriteTarget, rows: Sequence[pa.Table | None], tables: set[int]) -> str | None:
    """Return why appends are not queued with those of other servers; None if they are.

    `rows` are those of each append, None where they are in files; `tables` are the ids of the tables they are for.
    """
    record = target.record
    if not target.ctx.services.contention.is_contended(target.key):
        return "no other server writes to the table"
    if not record.managed:
        return "the table's commits go straight to storage"
    if record.declared:
        return "it has no version yet"
    if record.primary_key is not None:
        return "its key is checked here"
    if record.contract is not None:
        return "its contract is checked here"
    if record.mount_id is not None:
        return "it is below a mount"
    if tables != {record.id}:
        return "another table got its name"
    sizes = [int(table.nbytes) for table in rows if table is not None]
    if len(sizes) < len(rows):
        return "rows are in files already"
    return f"rows have more than {MAX_QUEUED_BYTES} bytes" if sum(sizes) > MAX_QUEUED_BYTES else None


def find_made_manifest(target: WriteTarget, version: int) -> bytes | None:
    """Return the manifest of a version, if it is the latest and this process has made it."""
    recorded = recorded_latest(target.ctx, target.record, target.branch)
    if recorded is None or recorded.version != version:
        return None
    made: bytes | None = lasting_facts.get(manifest_key(recorded.staged_path))
    return made


def why_not_at_once(target: WriteTarget, rows: Sequence[pa.Table | None]) -> str | None:
    """Return why the files and the manifest of appends are not put at the same time; None if they may be.

    `rows` are those of each append, None where they are in files. Reads nothing: `find_made_manifest` does, after it.
    """
    if (obstacle := _why_not_by_hand(target)) is not None:
        return obstacle
    sizes = [int(table.nbytes) for table in rows if table is not None]
    if len(sizes) < len(rows):
        return "rows are in files already"
    return f"rows have more than {MAX_AT_ONCE_BYTES} bytes" if sum(sizes) > MAX_AT_ONCE_BYTES else None


def _why_not_by_hand(target: WriteTarget) -> str | None:
    """Return why Lance commits to a table, or a branch, whatever the appends are; None if it need not."""
    if not target.record.managed:
        return "the table's commits go straight to storage"
    if is_local(target.location):
        return "the table is on a disk, where Lance's requests cost nothing"
    return None if target.branch.is_main else "it is on a branch"


def why_not_made_here(target: WriteTarget, version: int, read_version: int, manifest: bytes | None) -> str | None:
    """Return why the manifest after `version` is not made here; None if it is tried.

    `manifest` is that of the version, if it was read; `read_version` is the first that fragments were written on.
    """
    if (obstacle := _why_not_by_hand(target)) is not None:
        return obstacle
    if manifest is None:
        return "the latest manifest is large, of an older naming scheme, or names files of others"
    if read_version != version:
        return "rows were written on an earlier version"
    recorded = recorded_latest(target.ctx, target.record, target.branch)
    return None if recorded is not None and recorded.version == version else "another commit came meanwhile"
