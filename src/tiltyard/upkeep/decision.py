"""Decide what upkeep a table needs: the one place, for what a server sees of a manifest and a client of the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tiltyard.model.jobs import PIPELINE_JOBS
from tiltyard.upkeep.compaction import plan_compaction
from tiltyard.upkeep.indexing import index_states

if TYPE_CHECKING:
    import lance

    from tiltyard.upkeep.thresholds import UpkeepOptions

CHANGING_JOBS = frozenset(PIPELINE_JOBS) - {"export", "optimize"}
"""The pipeline's jobs beside which a table is not compacted: what they computed for a fragment would be done again."""


@dataclass(frozen=True, slots=True)
class UpkeepState:
    """A table as far as its upkeep depends on it: small fragments, whether fragments have many deleted rows, and how
    many rows each index lacks, by its name.
    """

    small_fragments: int
    has_worn_fragments: bool
    unindexed: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UpkeepDecision:
    """Why a table needs upkeep now; none of it: `reasons` is empty. `has_rest`: an index lacks a few rows."""

    reasons: Sequence[str]
    has_rest: bool


def read_state(dataset: lance.LanceDataset, options: UpkeepOptions) -> UpkeepState:
    """Return the state of a table by its manifest. Raises what Lance raises.

    Of its small fragments those count that the next compaction joins (`compaction.plan_compaction`).
    """
    planned = plan_compaction(dataset, options.small_fragments)
    small, is_worn = (0, False) if planned is None else (planned.fragments, planned.is_of_worn)
    return UpkeepState(0 if is_worn else small, is_worn, {state.name: state.missing for state in index_states(dataset)})


def decide_upkeep(
    state: UpkeepState, options: UpkeepOptions, stuck: Mapping[str, int] | None = None, *, is_idle: bool = False
) -> UpkeepDecision:
    """Return what a table needs.

    `stuck` has the indexes that could not be extended the last time, with the rows that they lacked then: only more
    rows than those count. A table that `is_idle` gets its last rows into the indexes, too, however few.
    """
    reasons, has_rest = [], False
    for name, missing in state.unindexed.items():
        new = missing - (stuck or {}).get(name, 0)
        if new >= options.unindexed_rows or (is_idle and new > 0):
            reasons.append(f"the index {name} lacks {missing} rows")
        else:
            has_rest = has_rest or new > 0
    if state.small_fragments >= options.small_fragments:
        reasons.append(f"{state.small_fragments} small fragments")
    if state.has_worn_fragments:
        reasons.append("fragments with many deleted rows")
    return UpkeepDecision(reasons, has_rest)
