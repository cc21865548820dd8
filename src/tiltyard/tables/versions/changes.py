"""What each version of a list did to its table, read from its transaction and kept: a version never changes."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from tiltyard.change_feed.version_change import ChangedVersion, RowCounts
from tiltyard.runtime.pool import run_together
from tiltyard.storage.caches.version_cache import VersionInfo, version_info
from tiltyard.storage.errors import lance_errors
from tiltyard.storage.locations import is_local

if TYPE_CHECKING:
    from collections.abc import Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.model.branches import Branch
    from tiltyard.model.spec import models

MAX_CHANGES = 100
"""Versions of a page that says what each of them did."""
_READERS = 16
"""Transactions on an object store that are read at the same time."""


def load_changes(
    ctx: Context, dataset: lance.LanceDataset, location: str, branch: Branch, versions: Sequence[models.TableVersion]
) -> None:
    """Add to the metadata of versions what each of them did (`VersionChange.texts`); one without the version before it
    among them says no more than its own transaction does.

    `dataset` is of any version of the branch. Raises what `lance_errors` raises.
    """
    counts = {version.version: _row_counts(version) for version in versions}

    def load(version: models.TableVersion) -> None:
        ctx.check_deadline()
        number = version.version
        before = counts.get(number - 1)

        def read() -> VersionInfo:
            with lance_errors(dataset):
                changed = ChangedVersion(copy(dataset), branch.lance_name, number, counts[number], before)
                return VersionInfo(version.timestamp_millis or 0, changed.describe().texts())

        key = (location, f"{version.manifest_path} after {before}", version.e_tag)
        version.metadata = (version.metadata or {}) | version_info(key, read).metadata

    run_together(load, versions, 1 if is_local(location) else _READERS)


def _row_counts(version: models.TableVersion) -> RowCounts:
    metadata = version.metadata or {}
    return RowCounts(int(metadata.get("total_rows", 0)), int(metadata.get("total_fragments", 0)))
