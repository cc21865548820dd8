"""Tasks of a delete: the rows of some fragments that match a condition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiltyard.change_feed.table_history import get_fragment

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata

    from tiltyard.pipeline.table_location import TableLocation


@dataclass(frozen=True, slots=True)
class DeleteRows:
    """A task: delete the rows that match a condition from some fragments of a version; nothing is committed."""

    location: TableLocation
    version: int
    fragments: tuple[int, ...]
    where: str

    def __call__(self) -> list[ChangedFragment]:
        """Return the fragments that have such rows."""
        dataset = self.location.open(self.version)
        changed = []
        for number in self.fragments:
            part = get_fragment(dataset, number)
            remaining = part.delete(self.where)
            rows = part.count_rows() - (remaining.num_rows if remaining else 0)
            if rows:
                changed.append(ChangedFragment(number, rows, remaining))
        return changed


@dataclass(frozen=True, slots=True)
class ChangedFragment:
    """A fragment without its `rows` deleted rows; `remaining` is None if all are deleted."""

    fragment_id: int
    rows: int
    remaining: FragmentMetadata | None
