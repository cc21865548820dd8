"""Tables that commits were made to, so that the next commit need not look for them first.

What is known here may be out of date at any moment: it is acted on only where the very statement that records a commit
looks whether the table still is where it was (`NewVersion.place`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tiltyard.model.ids import Id
    from tiltyard.store import TableRecord

MOST = 10_000
"""Tables that are remembered, before all are forgotten."""


class KnownTables:
    """What one process knows. Safe to use from several threads."""

    def __init__(self) -> None:
        self._tables: dict[Id, TableRecord] = {}

    def all_of(self, paths: Iterable[Id]) -> dict[Id, TableRecord] | None:
        """The tables of these paths; None unless each is known."""
        found = {path: self._tables.get(path) for path in paths}
        known = {path: table for path, table in found.items() if table is not None}
        return known if len(known) == len(found) else None

    def keep(self, path: Id, table: TableRecord) -> None:
        """Remember a table; not one without data, which will soon have some."""
        if table.declared:
            return
        if len(self._tables) >= MOST:
            self._tables = {}
        self._tables[path] = table
