"""Row filters and column masks, of tables and by classifications, each a policy document.

Every change counts the generation `grants` up. The store keeps a policy as opaque text.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from tiltyard.store.repository import GRANTS_GENERATION, Record, Repository, count_up, reads, writes


class PolicyRecord(Record, frozen=True):
    """One policy of a table, or one by a classification; `set_by` is who set it last, `set_at` counts ms since
    1970.
    """

    name: str
    document: str
    set_by: str
    set_at: int


SET = """
    INSERT INTO policies (table_id, name, document, set_by, set_at) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (table_id, name) DO UPDATE SET document = excluded.document, set_by = excluded.set_by,
        set_at = excluded.set_at
"""
DROP = "DELETE FROM policies WHERE table_id = ? AND name = ?"
LIST = f"SELECT {PolicyRecord.COLUMNS} FROM policies WHERE table_id = ? ORDER BY name"

SET_CLASSIFIED = """
    INSERT INTO classification_policies (name, document, set_by, set_at) VALUES (?, ?, ?, ?)
    ON CONFLICT (name) DO UPDATE SET document = excluded.document, set_by = excluded.set_by, set_at = excluded.set_at
"""
DROP_CLASSIFIED = "DELETE FROM classification_policies WHERE name = ?"
LIST_CLASSIFIED = f"SELECT {PolicyRecord.COLUMNS} FROM classification_policies ORDER BY name"


class Policies(Repository):
    """The methods for policies."""

    __slots__ = ()

    @writes
    def set_policy(self, table_id: int, name: str, document: str, by: str) -> None:
        """Set a policy of a table, replacing one of the same name."""
        self.connection.change(SET, table_id, name, document, by, self._clock())
        count_up(self.connection, GRANTS_GENERATION)

    @writes
    def drop_policy(self, table_id: int, name: str) -> bool:
        """Drop a policy of a table; return whether there was one."""
        existed = self.connection.change(DROP, table_id, name) == 1
        count_up(self.connection, GRANTS_GENERATION)
        return existed

    @reads
    def policies(self, table_id: int) -> list[PolicyRecord]:
        """Return the policies of a table, by name."""
        return [PolicyRecord.of(row) for row in self.connection.rows(LIST, table_id)]

    @writes
    def set_classification_policy(self, name: str, document: str, by: str) -> None:
        """Set a policy by a classification, replacing one of the same name."""
        self.connection.change(SET_CLASSIFIED, name, document, by, self._clock())
        count_up(self.connection, GRANTS_GENERATION)

    @writes
    def drop_classification_policy(self, name: str) -> bool:
        """Drop a policy by a classification; return whether there was one."""
        existed = self.connection.change(DROP_CLASSIFIED, name) == 1
        count_up(self.connection, GRANTS_GENERATION)
        return existed

    @reads
    def classification_policies(self) -> list[PolicyRecord]:
        """Return the policies by classifications, by name."""
        return [PolicyRecord.of(row) for row in self.connection.rows(LIST_CLASSIFIED)]
