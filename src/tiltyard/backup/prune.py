"""Remove old backups from a target, and the files that no other backup needs."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tiltyard.backup.create import PRUNING, running
from tiltyard.backup.points import fetch_part, list_points, read_point, read_tables
from tiltyard.storage.errors import lance_errors

if TYPE_CHECKING:
    from tiltyard.backup.target import BackupTarget


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed, and how many backups stay."""

    kept: int
    points: list[str]
    files: int
    size: int


def prune_points(
    target: BackupTarget, keep: int | None = None, *, expired_at: int | None = None, force: bool = False
) -> Pruned:
    """Remove backups, then files that no other one needs: those of killed backups, too. The latest one always stays.

    With `keep`, all but so many of the latest are removed; with `expired_at` (ms since 1970), those that have expired
    by then. With `force`, the marks of backups and removals that were killed are removed first. Raises
    InvalidInputError while a backup is being taken, for a damaged backup among those that stay, and what the storage
    raises.
    """
    with lance_errors(target.location):
        if force:
            target.delete([entry.path for entry in target.walk("running")])
        with running(target, PRUNING), tempfile.TemporaryDirectory(prefix="tiltyard-prune-") as folder:
            ids = list_points(target)
            kept = [read_point(target, point_id) for point_id in (ids if keep is None else ids[-keep:])]
            if expired_at is not None:
                kept = [point for point in kept if point is kept[-1] or not 0 < point.expires_at <= expired_at]
            needed = {f"points/{point.id}" for point in kept}
            for point in kept:
                lists = fetch_part(target, point, "files", Path(folder))
                needed |= {file.key(table.folder) for table in read_tables(lists) for file in table.files}
            removed = [point_id for point_id in ids if f"points/{point_id}" not in needed]
            target.delete([f"points/{point_id}/point.json" for point_id in removed])
            garbage = [
                entry
                for entry in [*target.walk("points"), *target.walk("files"), *target.walk("contents")]
                if entry.path not in needed and entry.path.rpartition("/")[0] not in needed
            ]
            target.delete([entry.path for entry in garbage])
            return Pruned(len(kept), removed, len(garbage), sum(entry.size for entry in garbage))
