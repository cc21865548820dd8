"""Maintain a table's data, in this process or in a child process.

    python -m tiltyard.runtime.lazy_imports tiltyard.tables.upkeep.maintainer

The child's request is a `MaintenanceRequest`; how it talks with its parent is in `tables.commits.child_commits`.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import LanceNamespaceError, ServiceUnavailableError

from tiltyard.storage.errors import is_conflict, lance_errors
from tiltyard.tables.commits.child_commits import Parent, open_in_child, run_in_child
from tiltyard.upkeep.compaction import compact, plan_compaction
from tiltyard.upkeep.indexing import IndexState, extend_index, index_states

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import lance

log = logging.getLogger("tiltyard.upkeep")

COMMAND = (sys.executable, "-m", "tiltyard.runtime.lazy_imports", "tiltyard.tables.upkeep.maintainer")
"""The child's command; see `tables.indexes.build_process`."""
MAX_ROUNDS = 16
"""Compactions of one run, of a gibibyte each."""


@dataclass(frozen=True, slots=True)
class MaintenanceRequest:
    """The request that the child gets: `table_id` is the table's id in the parent's commit calls, None for a table
    whose commits go straight to storage; `small_fragments` None: compact nothing.
    """

    location: str
    storage_options: dict[str, str]
    table_id: list[str] | None
    small_fragments: int | None


@dataclass(slots=True)
class _Figures:
    """What was done so far."""

    report: Callable[[Mapping[str, Any]], None]
    rows_indexed: int = 0
    fragments_removed: int = 0
    fragments_added: int = 0
    notes: list[str] = field(default_factory=list)

    def tell(self, stage: str) -> None:
        numbers = {
            "rows_indexed": self.rows_indexed,
            "fragments_removed": self.fragments_removed,
            "fragments_added": self.fragments_added,
        }
        notes = {"notes": " ".join(self.notes)} if self.notes else {}
        self.report({"stage": stage, **{name: str(number) for name, number in numbers.items()}, **notes})


def maintain(
    dataset: lance.LanceDataset, small_fragments: int | None, report: Callable[[Mapping[str, Any]], None]
) -> None:
    """Add rows to the indexes that lack some, then compact; `report` gets the figures after each commit.

    First the indexes: Lance joins only fragments that the same segments of them cover. Where a writer commits meanwhile
    what contradicts, the writer's commit stands, and the rest is left to the next run. An index that cannot be extended
    is noted, and keeps no other from it.
    """
    figures = _Figures(report)
    _extend_indexes(dataset, figures)
    if small_fragments is None:
        return
    for _ in range(MAX_ROUNDS):
        with lance_errors(dataset):
            planned = plan_compaction(dataset, small_fragments)
        if planned is None:
            break
        figures.tell("compaction")
        try:
            with lance_errors(dataset):
                removed, added = compact(dataset, planned, extends_indexes=True)
        except LanceNamespaceError as error:
            if not is_conflict(error):
                raise
            figures.notes.append("A writer changed fragments while they were compacted: they were left.")
            figures.tell("compaction")
            return
        figures.fragments_removed += removed
        figures.fragments_added += added
        figures.tell("compaction")
    if figures.fragments_removed:  # some indexes have not followed the compaction
        _extend_indexes(dataset, figures)


def _extend_indexes(dataset: lance.LanceDataset, figures: _Figures) -> None:
    for state in read_index_states(dataset):
        if not state.missing:
            continue
        figures.tell("indexes")
        try:
            with lance_errors(dataset):
                extend_index(dataset, state)
        except ServiceUnavailableError:
            raise
        except (LanceNamespaceError, OSError, RuntimeError, ValueError) as error:
            log.warning("the index %s at %s cannot be extended: %s", state.name, dataset.uri, error)
            figures.notes.append(f"The index {state.name} was not extended: {error}")
            continue
        now = next((each for each in read_index_states(dataset) if each.name == state.name), None)
        figures.rows_indexed += max(0, state.missing - now.missing) if now else 0
        figures.tell("indexes")


def read_index_states(dataset: lance.LanceDataset) -> list[IndexState]:
    """Return the state of each index of users. Raises what `lance_errors` makes of Lance's."""
    with lance_errors(dataset):
        return index_states(dataset)


def _run(fields: dict[str, Any], parent: Parent) -> None:
    request = MaintenanceRequest(**fields)
    dataset = open_in_child(request.location, request.storage_options, request.table_id, parent.commits)
    maintain(dataset, request.small_fragments, parent.report)


if __name__ == "__main__":
    run_in_child(_run)
