"""Deleted versions of tables, recorded as ranges of their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tiltyard.store.repository import Repository, reads, writes

Range: TypeAlias = tuple[int, int]
"""Half-open: versions from the first number to before the second."""

ADD = """
    INSERT INTO deleted_versions (table_id, branch, first, beyond, deleted_at) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (table_id, branch, first) DO UPDATE SET beyond =
        CASE WHEN deleted_versions.beyond > excluded.beyond THEN deleted_versions.beyond ELSE excluded.beyond END
"""
LIST = "SELECT first, beyond, deleted_at FROM deleted_versions WHERE table_id = ? AND branch = ? ORDER BY first"
IS_DELETED = "SELECT 1 FROM deleted_versions WHERE table_id = ? AND branch = ? AND first <= ? AND beyond > ?"
RECORDED = "SELECT version FROM table_versions WHERE table_id = ? AND branch = ? AND version >= ? AND version < ?"
PRUNE = "DELETE FROM deleted_versions WHERE table_id = ? AND branch = ? AND beyond <= ?"
TRUNCATE = "UPDATE deleted_versions SET beyond = ? WHERE table_id = ? AND branch = ? AND beyond > ?"
DELETE_FROM = "DELETE FROM deleted_versions WHERE table_id = ? AND branch = ? AND first >= ?"


@dataclass(frozen=True, slots=True)
class DeletedRange:
    """Versions from `first` to before `end` that were deleted together, at `deleted_at` (ms since 1970)."""

    first: int
    end: int
    deleted_at: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version < self.end


class DeletedVersions(Repository):
    """The methods for deleted versions. The branch '' is main."""

    __slots__ = ()

    @writes
    def add_deleted_versions(self, table_id: int, branch: str, ranges: Iterable[Range]) -> list[Range]:
        """Record versions as deleted; return the ranges of those that were not before."""
        deleted_before = [(deleted.first, deleted.end) for deleted in self._list(table_id, branch)]
        added = list(subtract(ranges, deleted_before))
        now = self._clock()
        for first, end in added:
            self.connection.change(ADD, table_id, branch, first, end, now)
        return added

    @reads
    def deleted_versions(self, table_id: int, branch: str = "") -> list[DeletedRange]:
        """Return the deleted ranges of a branch in ascending order; they do not overlap."""
        return self._list(table_id, branch)

    @reads
    def is_deleted_version(self, table_id: int, branch: str, version: int) -> bool:
        """Return whether a version is recorded as deleted."""
        return self.connection.row(IS_DELETED, table_id, branch, version, version) is not None

    @reads
    def recorded_versions(self, table_id: int, branch: str, ranges: Iterable[Range]) -> set[int]:
        """Return the versions in the ranges that have a commit record."""
        rows = (row for start, end in ranges for row in self.connection.rows(RECORDED, table_id, branch, start, end))
        return {row[0] for row in rows}

    @writes
    def prune_deleted_versions(self, table_id: int, branch: str, before: int) -> None:
        """Delete the ranges that end before a version, once nothing is left of their versions."""
        self.connection.change(PRUNE, table_id, branch, before)

    @writes
    def truncate_deleted_versions(self, table_id: int, branch: str, first: int) -> None:
        """Remove versions from `first` on from the ranges, so that new commits can take their numbers."""
        self.connection.change(DELETE_FROM, table_id, branch, first)
        self.connection.change(TRUNCATE, first, table_id, branch, first)

    def _list(self, table_id: int, branch: str) -> list[DeletedRange]:
        return [DeletedRange(*row) for row in self.connection.rows(LIST, table_id, branch)]


def subtract(ranges: Iterable[Range], subtrahend: Iterable[Range]) -> Iterator[Range]:
    """Yield the versions in `ranges` that are not in `subtrahend`, in ascending ranges without overlaps."""
    cuts = iter(_merge_ranges(subtrahend))
    cut = next(cuts, None)
    for first, end in _merge_ranges(ranges):
        start = first
        while cut is not None and cut[0] < end:
            if start < cut[0]:
                yield start, cut[0]
            start = max(start, cut[1])
            if cut[1] > end:
                break
            cut = next(cuts, None)
        if start < end:
            yield start, end


def _merge_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Return the same versions in ascending ranges that neither overlap nor touch."""
    merged: list[Range] = []
    for first, end in sorted(pair for pair in ranges if pair[0] < pair[1]):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((first, end))
    return merged
