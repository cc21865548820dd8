"""Remove versions that nobody may read any more: by when they stopped being the latest, not by when they were made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiltyard.config import DAY_MS
from tiltyard.storage.errors import lance_errors
from tiltyard.store.tables.upkeep import UPKEEP
from tiltyard.tables.upkeep.garbage import CLOCK_SKEW_MS, Collection, CollectOptions, collect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tiltyard.context import Context
    from tiltyard.store import TableRecord


def remove_old_versions(
    ctx: Context, table: TableRecord, keep_days: float, progress: Callable[[int], None]
) -> Collection:
    """Collect a table's garbage with the versions of main that have not been the latest for `keep_days`.

    What was the latest at any time since stays, and so does what was since the oldest unfinished job of the catalog
    began, which may read this table, or within the memory for repeated requests. Tags keep theirs, as in every
    collection. Raises what `collect` raises.
    """
    now = ctx.clock()
    starts = [ctx.store.oldest_work(), ctx.store.oldest_unfinished_work(table.id, UPKEEP)]
    limits = [now - int(keep_days * DAY_MS), now - ctx.settings.repeat_memory * 1000]
    limits += [start - CLOCK_SKEW_MS for start in starts if start is not None]
    storage = ctx.storage
    dataset = storage.datasets.open_for_writing(table.location, storage.options(table.location))
    with lance_errors(dataset):
        versions: list[Any] = dataset.versions()
    times = [int(version["timestamp"].timestamp() * 1000) for version in versions]
    before = first_time_to_keep(times, min(limits))
    keep_versions_days = None if before is None else max(0.0, (now - before + CLOCK_SKEW_MS) / DAY_MS)
    return collect(ctx, table, CollectOptions(keep_versions_days=keep_versions_days), progress)


def first_time_to_keep(times: Iterable[int], limit: int) -> int | None:
    """Return the time (ms) before which versions may be removed that were committed at `times`, in their order.

    The last one of `limit` or before was the latest at that time, so it stays, with all after it: also those that the
    clock of their writer dates earlier. None if there is nothing to remove.
    """
    times = list(times)
    last = max((index for index, time in enumerate(times) if time <= limit), default=0)
    return min(times[last:]) if last else None
