"""Materialized views: who made each, and of which definition. The definition itself is in the table's metadata."""

from __future__ import annotations

from dataclasses import dataclass

from tiltyard.store.connection_scope import Scope, reads, writes


@dataclass(frozen=True, slots=True)
class ViewRecord:
    """A view: `definition` is a digest, `definer` a principal as text, which is not the store's business."""

    definition: str
    definer: str


SET = """
    INSERT INTO views (table_id, definition, definer) VALUES (?, ?, ?)
    ON CONFLICT (table_id) DO UPDATE SET definition = excluded.definition, definer = excluded.definer
"""
DESCRIBE = "SELECT definition, definer FROM views WHERE table_id = ?"


class Views(Scope):
    """The methods for views."""

    __slots__ = ()

    @writes
    def set_view(self, table_id: int, view: ViewRecord) -> None:
        """Remember what makes a table a view."""
        self.connection.change(SET, table_id, view.definition, view.definer)

    @reads
    def describe_view(self, table_id: int) -> ViewRecord | None:
        """Return what makes a table a view, or None if nothing does."""
        row = self.connection.row(DESCRIBE, table_id)
        return ViewRecord(*row) if row else None
