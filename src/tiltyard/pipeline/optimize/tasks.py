"""Tasks of an optimize: compact some fragments into one, add new rows to an index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lance.optimize import CompactionTask, RewriteResult

from tiltyard.pipeline.table_location import TableLocation
from tiltyard.upkeep.indexing import extend_index, index_states

if TYPE_CHECKING:
    import lance


@dataclass(frozen=True, slots=True)
class CompactFragments:
    """A task: compact some fragments. `indexes` are the ids of all index segments at the time it was planned."""

    location: TableLocation
    task: CompactionTask
    indexes: tuple[str, ...]

    def __call__(self) -> RewriteResult:
        """Return what the driver commits."""
        result = self.task.execute(self.location.open(self.task.read_version))
        new_files = (f"data/{file.path}" for fragment in result.new_fragments for file in fragment.files)
        self.location.make_durable(new_files)
        return result


@dataclass(frozen=True, slots=True)
class ExtendIndex:
    """A task: add the rows that an index lacks. It commits by itself, and is idempotent.

    It is the one task whose worker needs the namespace client, in `open_table`: Lance extends and commits in one call.
    """

    open_table: Callable[[], lance.LanceDataset]
    index: str
    small_segment_rows: int

    def __call__(self) -> int:
        """Return the version of the commit."""
        dataset = self.open_table()
        for state in index_states(dataset):
            if state.name == self.index and state.missing:
                extend_index(dataset, state, self.small_segment_rows)
        return int(dataset.version)
