"""Versions that were taken out of the history of a table, as ranges of their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from tiltyard.store.connection_scope import Scope, reads, writes

Range: TypeAlias = tuple[int, int]
"""Versions from the first number to before the second."""

ADD = """
    INSERT INTO deleted_versions (table_id, branch, first, beyond, deleted_at) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (table_id, branch, first) DO UPDATE SET beyond =
        CASE WHEN deleted_versions.beyond > excluded.beyond THEN deleted_versions.beyond ELSE excluded.beyond END
"""
LIST = "SELECT first, beyond, deleted_at FROM deleted_versions WHERE table_id = ? AND branch = ? ORDER BY first"
FIND = "SELECT 1 FROM deleted_versions WHERE table_id = ? AND branch = ? AND first <= ? AND beyond > ?"
RECORDED = "SELECT version FROM table_versions WHERE table_id = ? AND branch = ? AND version >= ? AND version < ?"
FORGET = "DELETE FROM deleted_versions WHERE table_id = ? AND branch = ? AND beyond <= ?"
CLIP = "UPDATE deleted_versions SET beyond = ? WHERE table_id = ? AND branch = ? AND beyond > ?"
CLIP_AWAY = "DELETE FROM deleted_versions WHERE table_id = ? AND branch = ? AND first >= ?"


@dataclass(frozen=True, slots=True)
class DeletedRange:
    """Versions that were deleted at one time (milliseconds since 1970): from `first` to before `beyond`."""

    first: int
    beyond: int
    deleted_at: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version < self.beyond


class DeletedVersions(Scope):
    """The methods for deleted versions. A branch is '' for main."""

    __slots__ = ()

    @writes
    def add_deleted_versions(self, table_id: int, branch: str, ranges: Iterable[Range]) -> list[Range]:
        """Note that versions are deleted; return those ranges of them that were not before."""
        known = [(one.first, one.beyond) for one in self._list(table_id, branch)]
        added = list(subtract(ranges, known))
        now = self._clock()
        for first, beyond in added:
            self.connection.change(ADD, table_id, branch, first, beyond, now)
        return added

    @reads
    def deleted_versions(self, table_id: int, branch: str = "") -> list[DeletedRange]:
        """Return the deleted ranges of a branch, upwards; they do not overlap."""
        return self._list(table_id, branch)

    @reads
    def is_deleted_version(self, table_id: int, branch: str, version: int) -> bool:
        """Return whether a version was deleted."""
        return self.connection.row(FIND, table_id, branch, version, version) is not None

    @reads
    def recorded_versions(self, table_id: int, branch: str, ranges: Iterable[Range]) -> set[int]:
        """Return the numbers of those versions in the ranges that have a record."""
        rows = (row for start, end in ranges for row in self.connection.rows(RECORDED, table_id, branch, start, end))
        return {row[0] for row in rows}

    @writes
    def prune_deleted_versions(self, table_id: int, branch: str, before: int) -> None:
        """Forget the ranges that end before a version: nothing is left of what they name."""
        self.connection.change(FORGET, table_id, branch, before)

    @writes
    def truncate_deleted_versions(self, table_id: int, branch: str, first: int) -> None:
        """Let no version from `first` on be deleted: other commits get these numbers."""
        self.connection.change(CLIP_AWAY, table_id, branch, first)
        self.connection.change(CLIP, first, table_id, branch, first)

    def _list(self, table_id: int, branch: str) -> list[DeletedRange]:
        return [DeletedRange(*row) for row in self.connection.rows(LIST, table_id, branch)]


def subtract(ranges: Iterable[Range], taken: Iterable[Range]) -> Iterator[Range]:
    """Yield what is in `ranges` and not in `taken`, upwards, without overlaps."""
    cuts = iter(_merged(taken))
    cut = next(cuts, None)
    for first, beyond in _merged(ranges):
        at = first
        while cut is not None and cut[0] < beyond:
            if at < cut[0]:
                yield at, cut[0]
            at = max(at, cut[1])
            if cut[1] > beyond:
                break
            cut = next(cuts, None)
        if at < beyond:
            yield at, beyond


def _merged(ranges: Iterable[Range]) -> list[Range]:
    """The same versions as ranges that neither overlap nor touch, upwards."""
    merged: list[Range] = []
    for first, beyond in sorted(one for one in ranges if one[0] < one[1]):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], beyond)
        else:
            merged.append((first, beyond))
    return merged
