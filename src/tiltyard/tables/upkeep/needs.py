"""What upkeep a table needs, by its manifest, and whether something that is under way has to come first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiltyard.model.jobs import PIPELINE_JOBS
from tiltyard.model.modes import TransactionStatus
from tiltyard.storage.errors import lance_errors
from tiltyard.store.upkeep import UPKEEP
from tiltyard.tables.indexes.build_job import CREATE_INDEX
from tiltyard.tables.maintenance.garbage import COLLECT_TABLE_GARBAGE
from tiltyard.tables.schema.expression_refresh import REFRESH_COLUMN
from tiltyard.tables.upkeep.compaction import plan_compaction
from tiltyard.tables.upkeep.indexing import index_states

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.store import TableRecord
    from tiltyard.tables.upkeep.options import UpkeepOptions

_BLOCKS = "_publishing-"
"""Prefix of the folders that exist while the block of a publication is open (`publishing.staged`)."""
_CHANGING = {CREATE_INDEX, COLLECT_TABLE_GARBAGE, REFRESH_COLUMN, *PIPELINE_JOBS} - {"export"}


@dataclass(frozen=True, slots=True)
class Needs:
    """Why a table needs upkeep now; none of it: `reasons` is empty. `has_rest`: an index lacks a few rows."""

    reasons: Sequence[str]
    has_rest: bool


def find_needs(
    dataset: lance.LanceDataset, options: UpkeepOptions, stuck: Mapping[str, int], *, is_idle: bool
) -> Needs:
    """Return what a table needs. Reads manifests alone.

    `stuck` has the indexes that could not be extended the last time, with the rows that they lacked then: only more
    rows than those count. A table that `is_idle` gets its last rows into the indexes, too, however few.
    """
    reasons, has_rest = [], False
    for state in index_states(dataset):
        new = state.missing - stuck.get(state.name, 0)
        if new >= options.unindexed_rows or (is_idle and new > 0):
            reasons.append(f"the index {state.name} lacks {state.missing} rows")
        else:
            has_rest = has_rest or new > 0
    with lance_errors(dataset):
        planned = plan_compaction(dataset, options.small_fragments)
    if planned is not None:
        reasons.append(f"{planned.fragments} fragments are small, or have many deleted rows")
    return Needs(reasons, has_rest)


def work_under_way(ctx: Context, table: TableRecord) -> str:
    """Return what is under way on a table that upkeep would disturb; "" if nothing is."""
    for record in ctx.store.unfinished_transactions(table.id):
        if record.kind == UPKEEP:
            return f"upkeep {record.id}"
        is_waiting = record.status is TransactionStatus.QUEUED and record.kind != CREATE_INDEX
        if record.kind in _CHANGING and not is_waiting:
            return f"{record.kind} {record.id}"
    with lance_errors():
        folders = ctx.storage.files(table.location).list_folders(table.location)
    return next((f"a publication ({name})" for name in folders if name.startswith(_BLOCKS)), "")
