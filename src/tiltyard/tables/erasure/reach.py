"""Which tables were made from a table, directly and in several steps, as lineage and the catalog's clones have it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError, LanceNamespaceError, TableNotFoundError

from tiltyard.model.branches import MAIN
from tiltyard.model.ids import Id
from tiltyard.model.views.definitions import ViewDefinition, ViewKind, reads_tables_once
from tiltyard.store.access.grants import TABLE
from tiltyard.tables.erasure.conditions import derive_condition, open_main

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.context import Context
    from tiltyard.store import RemovedTable, TableRecord
    from tiltyard.store.tables.lineage import LineageRecord

MAX_DOWNSTREAM = 1_000
"""Tables that lineage is followed through from one erasure."""
_COMMITS = 200
"""Commits of lineage that are read of one branch of a table."""


@dataclass(slots=True)
class _Table:
    """A table that was made from others; `record` is None where it is dropped, has no data, or is below a mount.

    `sources` are the ids of those from which it was made, of what was reached.
    """

    location: str
    record: TableRecord | None
    sources: set[int] = field(default_factory=set)


class Reach:
    """What was made from a table. `clones` has the table that each shallow clone is of, by ids.

    `clone_locations` has it by the folders of clones, dropped ones included. `is_cut` says that there are more than
    MAX_DOWNSTREAM tables.
    """

    def __init__(self, ctx: Context, start: TableRecord, removed: Mapping[int, RemovedTable]) -> None:
        """Follow what was made from a table. Raises ServiceUnavailableError."""
        self._ctx, self._start, self._removed = ctx, start.id, removed
        self._tables = {start.id: _Table(start.location, start)}
        self.clones: dict[int, int] = {}
        self.clone_locations: dict[str, int] = {}
        self.is_cut = False
        waiting = deque([start.id])
        while waiting:
            number = waiting.popleft()
            for other in dict.fromkeys([*self._clones_of(number), *self._made_from(number)]):
                if other not in self._tables and len(self._tables) >= MAX_DOWNSTREAM:
                    self.is_cut = True
                    continue
                if other not in self._tables:
                    self._tables[other] = self._find(other)
                    waiting.append(other)
                self._tables[other].sources.add(number)

    def _find(self, number: int) -> _Table:
        try:
            found = self._ctx.store.table_by_id(number)
        except TableNotFoundError:
            removed = self._removed.get(number)
            return _Table("" if removed is None else removed.location, None)
        return _Table(found.location, None if found.declared or found.mount_id is not None else found)

    def _clones_of(self, number: int) -> list[int]:
        """Return the shallow clones that use files of a table; note where all of them are, dropped ones, too."""
        each = self._tables[number]
        if each.record is None:
            return []
        found = self._ctx.store.clone_locations(each.location)
        tables = [self._ctx.store.table_at(location) for location in found]
        clones = [table.id for table in tables if table is not None and table.id != number]
        for location in found:
            self.clone_locations.setdefault(location, number)
        for clone in clones:
            self.clones.setdefault(clone, number)
        return clones

    def _made_from(self, number: int) -> list[int]:
        """Return the tables that commits made directly from a table, as lineage has them, each once."""
        store = self._ctx.store
        branches = {MAIN.key, *store.recorded_branches(number)}
        made = (each for branch in sorted(branches) for each in store.lineage_from_table(number, branch, _COMMITS))
        return list(dict.fromkeys(each.table_id for each in made if each.table_id != number))

    @cached_property
    def order(self) -> list[int]:
        """The ids of what was made, each after its sources; without those that are made from each other in a circle."""
        found = [self._start]
        waiting = [number for number in sorted(self._tables) if number != self._start]
        while ready := [number for number in waiting if self._tables[number].sources <= set(found)]:
            found += ready
            waiting = [number for number in waiting if number not in ready]
        return found[1:]

    @property
    def ids(self) -> set[int]:
        """The ids of the table and of all that was made from it."""
        return set(self._tables)

    def record_of(self, number: int) -> TableRecord | None:
        """Return a table that can be erased from; None for one that is dropped, has no data, or is below a mount."""
        return self._tables[number].record

    def sources_of(self, number: int) -> set[int]:
        """Return the ids of what a table was made from, of what was reached."""
        return self._tables[number].sources

    def derive_condition(self, number: int, conditions: Mapping[int, str]) -> str | None:
        """Return what selects the rows in a table, by the conditions on its sources; None where it cannot be told.

        Raises ServiceUnavailableError.
        """
        made, clone_of = self._tables[number], self.clones.get(number)
        if not made.location or not made.sources <= conditions.keys() or not self._is_made_row_by_row(made):
            return None
        records = self._commits_of(number)
        if records is None or (clone_of is None and not all(made.sources & {*each.source_ids} for each in records)):
            return None  # it has rows from elsewhere, too
        parts = [] if clone_of is None else [conditions[clone_of]]
        for source in sorted(made.sources - {clone_of}):
            read = [each for each in records if source in each.source_ids]
            place = source, self._tables[source].location
            part = derive_condition(self._ctx, place, read, made.location, conditions[source]) if read else None
            if part is None:
                return None
            parts.append(part)
        different = list(dict.fromkeys(parts))
        return different[0] if len(different) == 1 else " OR ".join(f"({each})" for each in different)

    def _commits_of(self, number: int) -> list[LineageRecord] | None:
        """Return the commits of all branches that a table has rows of, its own columns' apart; None of too many."""
        store = self._ctx.store
        found: list[LineageRecord] = []
        for branch in sorted({MAIN.key, *store.recorded_branches(number)}):
            records = store.lineage_of(number, branch, None, _COMMITS)
            if len(records) >= _COMMITS:
                return None
            found += [each for each in records if set(each.source_ids) != {number}]
        return found

    def _is_made_row_by_row(self, made: _Table) -> bool:
        """Return whether nothing says that rows of a table are made of several rows of a source: a view's query may."""
        definition = self._definition_of(made)
        if definition is None or definition.kind is ViewKind.SELECT:
            return True
        try:
            return definition.kind is not ViewKind.UDTF and reads_tables_once(definition.query)
        except InvalidInputError:
            return False

    def _definition_of(self, made: _Table) -> ViewDefinition | None:
        try:
            return ViewDefinition.from_metadata(open_main(self._ctx, made.location).schema.metadata)
        except LanceNamespaceError:
            return None

    def is_view(self, number: int) -> bool:
        """Return whether a table is a materialized view, as it was created, that can be computed anew."""
        made, recorded = self._tables[number], self._ctx.store.describe_view(number)
        definition = self._definition_of(made)
        is_whole = definition is not None and recorded is not None and recorded.definition == definition.digest
        return is_whole and made.record is not None and number not in self.clones

    def describe(self, number: int) -> str:
        """Return a sentence about a table that is not erased from, with what to do; "" for one that is gone."""
        path = self._ctx.store.object_path(TABLE, number)
        if path is None:
            return ""
        if self._tables[number].record is None:
            return f"{Id(path)} was made from these tables, and is below a mount or has no data: look at it by hand."
        if number in self.clones:
            return (
                f"{Id(path)} is a clone of a table in which the condition cannot be told: drop it, or erase from it by "
                "a condition of its own."
            )
        return (
            f"{Id(path)} was made from these tables, and lineage does not say which of its rows from which of theirs: "
            "erase from it by a condition of its own, or make it again (tiltyard rebuild) and erase its old versions."
        )
