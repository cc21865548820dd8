"""A version of a table as changes are found in it: its fragments, their deleted rows, and its names of columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from tiltyard.change_feed.deletions import read_deletions
from tiltyard.change_feed.groups import RowSelection
from tiltyard.change_feed.table_history import get_fragment

if TYPE_CHECKING:
    import lance
    from numpy.typing import NDArray

    Positions = NDArray[np.uint32]
    FragmentOffsets: TypeAlias = tuple[int, Positions | None]
    """A fragment, and the offsets of rows in it, deleted ones counted; None are all that are not deleted."""


@dataclass
class VersionRows:
    """One version; `names` are those that the columns of the feed have in it, None for one that it lacks."""

    dataset: lance.LanceDataset
    branch: str | None
    names: tuple[str | None, ...]
    _deletions: dict[int, Positions] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """Return the version's number."""
        return int(self.dataset.version)

    @cached_property
    def time(self) -> datetime:
        """Return when the version was made."""
        time = self.dataset.get_version()["timestamp"]
        assert isinstance(time, datetime)
        return time.astimezone(UTC)

    @cached_property
    def fragments(self) -> dict[int, lance.LanceFragment]:
        """Return the fragments by id."""
        return {fragment.fragment_id: fragment for fragment in self.dataset.get_fragments()}

    def deletions(self, fragment: int) -> Positions:
        """Return the offsets of the deleted rows of a fragment, sorted."""
        if fragment not in self._deletions:
            self._deletions[fragment] = read_deletions(self.dataset, self.fragments[fragment], self.branch)
        return self._deletions[fragment]

    def live_offsets(self, fragment: int) -> Positions:
        """Return the offsets of the rows of a fragment that are not deleted."""
        is_live = np.ones(self.fragments[fragment].physical_rows, bool)
        is_live[self.deletions(fragment)] = False
        return np.flatnonzero(is_live).astype(np.uint32)

    def positions(self, fragment: int, offsets: Positions) -> Positions:
        """Return the positions of rows of a fragment among those that are not deleted, as pylance takes them."""
        return (offsets - np.searchsorted(self.deletions(fragment), offsets)).astype(np.uint32)

    def select(self, fragment: int, offsets: Positions | None) -> RowSelection:
        """Return a selection of rows of a fragment, by offsets."""
        count = self.fragments[fragment].metadata.num_rows
        if offsets is None:
            return RowSelection(self.number, fragment, self.names, None, count)
        positions = self.positions(fragment, offsets)
        is_all = len(positions) == count and bool((positions == np.arange(count)).all())
        data = None if is_all else positions.tobytes()
        return RowSelection(self.number, fragment, self.names, data, len(positions))


def take_addresses(version: VersionRows, columns: Sequence[str], addresses: NDArray[np.int64]) -> pa.Table:
    """Read rows of a version by their addresses, of which there is one at least and which are in order."""
    parts = np.split(addresses, np.flatnonzero(np.diff(addresses >> 32)) + 1)
    return pa.concat_tables(
        take_rows(
            version.dataset,
            int(part[0] >> 32),
            columns,
            version.positions(int(part[0] >> 32), (part & 0xFFFF_FFFF).astype(np.uint32)),
        )
        for part in parts
    )


def take_rows(dataset: lance.LanceDataset, fragment: int, columns: Sequence[str], positions: Positions) -> pa.Table:
    """Read rows of a fragment by their positions among those that are not deleted, in any order."""
    order = np.argsort(positions)  # pylance takes them in the order of the file alone
    rows = get_fragment(dataset, fragment).take(positions[order].tolist(), columns=list(columns))
    return rows if bool((order[1:] > order[:-1]).all()) else rows.take(pa.array(np.argsort(order)))
