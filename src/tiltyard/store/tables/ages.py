"""How old tables may be, and how old they are: since their last commit, or of a view since its last refresh."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.store.repository import Record, Repository, reads, writes

if TYPE_CHECKING:
    pass

MAX_AGED_TABLES = 1_000
"""The greatest number of tables of a catalog that say how old they may be."""


class TableAge(Record, frozen=True):
    """How old a table may be, and what its age is counted from (ms since 1970).

    `refreshed_at` is when the last refresh of a view that has succeeded was queued, `sources_at` the last commit to one
    of the tables that it was made from; None where there is none.
    """

    table_id: int
    namespace_id: int
    max_age_ms: int
    stale_since: int | None
    committed_at: int
    refreshed_at: int | None
    sources_at: int | None

    def age_ms(self, now: int) -> int:
        """Return the age: 0 for a view that has all that its sources have."""
        if self.refreshed_at is None:
            return max(0, now - self.committed_at)
        is_complete = self.sources_at is not None and self.sources_at <= self.refreshed_at
        return 0 if is_complete else max(0, now - self.refreshed_at)

    def is_stale(self, now: int) -> bool:
        """Return whether it is older than it may be."""
        return self.age_ms(now) > self.max_age_ms


_LAST_COMMIT = """
    (SELECT created_at FROM table_versions WHERE table_versions.table_id = {table} AND branch = ''
        ORDER BY version DESC LIMIT 1)
"""
AGES = f"""
    SELECT max_ages.table_id, tables.namespace_id, max_age_ms, stale_since,
        COALESCE({_LAST_COMMIT.format(table="tables.id")}, tables.updated_at),
        (SELECT MAX(created_at) FROM transactions WHERE transactions.table_id = tables.id AND status = 'Succeeded'
            AND kind IN ('refresh', 'refresh_view')),
        (SELECT MAX({_LAST_COMMIT.format(table="lineage_sources.table_id")})
            FROM lineage JOIN lineage_sources ON lineage_sources.lineage_id = lineage.id
            WHERE lineage.table_id = tables.id AND lineage.branch = '')
    FROM max_ages JOIN tables ON tables.id = max_ages.table_id
"""
LIST = f"{AGES} ORDER BY max_ages.table_id LIMIT {MAX_AGED_TABLES}"
FIND = f"{AGES} WHERE max_ages.table_id = ?"
COUNT = "SELECT count(*) FROM max_ages"
SET = """
    INSERT INTO max_ages (table_id, max_age_ms, stale_since) VALUES (?, ?, NULL)
    ON CONFLICT (table_id) DO UPDATE SET max_age_ms = excluded.max_age_ms
"""
DELETE = "DELETE FROM max_ages WHERE table_id = ?"
BECOME_STALE = "UPDATE max_ages SET stale_since = ? WHERE table_id = ? AND stale_since IS NULL"
BECOME_FRESH = "UPDATE max_ages SET stale_since = NULL WHERE table_id = ? AND stale_since IS NOT NULL"


class TableAges(Repository):
    """The methods for the ages of tables."""

    __slots__ = ()

    @writes
    def set_max_age(self, table_id: int, max_age_ms: int | None) -> None:
        """Set how old a table may be; None for as old as it is. Raises InvalidInputError where too many say that."""
        if max_age_ms is None:
            self.connection.change(DELETE, table_id)
        elif self.connection.row(FIND, table_id) or int(self.connection.rows(COUNT)[0][0]) < MAX_AGED_TABLES:
            self.connection.change(SET, table_id, max_age_ms)
        else:
            raise InvalidInputError(f"{MAX_AGED_TABLES} tables say how old they may be: that is the most.")

    @reads
    def list_table_ages(self) -> list[TableAge]:
        """Return the ages of all tables that say how old they may be."""
        return [TableAge.of(row) for row in self.connection.rows(LIST)]

    @reads
    def find_table_age(self, table_id: int) -> TableAge | None:
        """Return the age of a table; None for one that does not say how old it may be."""
        row = self.connection.row(FIND, table_id)
        return TableAge.of(row) if row else None

    @writes
    def note_staleness(self, table_id: int, *, is_stale: bool) -> bool:
        """Record that a table is older than it may be, or is not any more; return whether that is news."""
        if is_stale:
            return self.connection.change(BECOME_STALE, self._clock(), table_id) == 1
        return self.connection.change(BECOME_FRESH, table_id) == 1
