"""Queries for the maintenance of storage: locations in use, unfinished work, shallow clones, ended transactions."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

import json

from tiltyard.store.records import Path
from tiltyard.store.repository import Repository, reads, writes

# The folders of all tables, of those that can be restored, and those scheduled for deletion.
LOCATIONS = (
    "SELECT location FROM tables UNION SELECT location FROM doomed_folders UNION SELECT location FROM removed_tables"
)
# A failed job can be resumed, and then uses the parts that it has saved.
UNFINISHED_OR_RESUMABLE = """
    (status IN ('Queued', 'Running') AND kind <> ?
        OR status IN ('Failed', 'Lost') AND EXISTS (SELECT 1 FROM job_parts WHERE transaction_id = transactions.id))
"""
OLDEST_WORK = f"""
    SELECT MIN(since) FROM (
        SELECT created_at AS since FROM transactions WHERE table_id = ? AND {UNFINISHED_OR_RESUMABLE}
        UNION ALL SELECT created_at FROM uploads WHERE table_id = ?
    ) work
"""
JOBS_BY_NAME = f"SELECT created_at, payload FROM transactions WHERE table_id IS NULL AND {UNFINISHED_OR_RESUMABLE}"
ADD_CLONE = "INSERT INTO clone_sources (table_id, location) VALUES (?, ?) ON CONFLICT DO NOTHING"
# A clone's source may be a folder inside a table's: that of its data, or of a branch.
CLONES = """
    WITH clones (id) AS (
        SELECT table_id FROM clone_sources WHERE location = ? OR (location > ? AND location < ?)
    )
    SELECT location FROM tables WHERE id IN (SELECT id FROM clones)
    UNION SELECT location FROM removed_tables WHERE id IN (SELECT id FROM clones)
"""
MAY_SHARE = """
    SELECT 1 FROM clone_sources WHERE location = ? AND table_id IN (
        SELECT id FROM tables WHERE location = ? UNION ALL SELECT id FROM removed_tables WHERE location = ?
    ) LIMIT 1
"""
ADD_SOURCES_OF_SOURCE = """
    INSERT INTO clone_sources (table_id, location) SELECT ?, location FROM clone_sources
    WHERE table_id IN (
        SELECT id FROM tables WHERE location = ? UNION ALL SELECT id FROM removed_tables WHERE location = ?
    ) ON CONFLICT DO NOTHING
"""
# Index builds, drops and the like, unless a version or a folder scheduled for deletion refers to them.
SWEEP_TRANSACTIONS = """
    DELETE FROM transactions WHERE id IN (
        SELECT id FROM transactions t
        WHERE created_at < ? AND updated_at < ? AND status NOT IN ('Queued', 'Running')
            AND NOT EXISTS (SELECT 1 FROM doomed_folders WHERE transaction_id = t.id)
            AND NOT EXISTS (SELECT 1 FROM table_versions WHERE transaction_id = t.id)
            AND NOT EXISTS (SELECT 1 FROM removed_versions WHERE transaction_id = t.id)
        ORDER BY created_at, id LIMIT ?
    )
"""
TRANSACTION_COUNTS = """
    SELECT kind, status, count(*) FROM transactions WHERE status IN ('Queued', 'Running') GROUP BY kind, status
"""
BRANCHES = "SELECT DISTINCT branch FROM table_versions WHERE table_id = ? ORDER BY branch"


class Maintenance(Repository):
    """The methods for maintenance."""

    __slots__ = ()

    @reads
    def all_locations(self) -> set[str]:
        """Return the locations of tables, of those that can be restored, and of folders scheduled for deletion."""
        return {row[0] for row in self.connection.rows(LOCATIONS)}

    @reads
    def oldest_unfinished_work(self, table_id: int, except_kind: str) -> int | None:
        """Return when (ms since 1970) the oldest unfinished work on a table began, or None without any.

        That is an upload, an unfinished transaction or a failed job that can be resumed, but none of `except_kind`.
        """
        row = self.connection.row(OLDEST_WORK, table_id, except_kind, table_id)
        return row[0] if row else None

    @reads
    def unfinished_jobs_by_table_name(self, except_kind: str) -> list[tuple[int, Path]]:
        """Return when each unfinished job began that names its table, having been submitted before the table existed.

        With each comes the table's path, () for a job that may write any table.
        """
        jobs = [(since, json.loads(payload)) for since, payload in self.connection.rows(JOBS_BY_NAME, except_kind)]
        return [(since, tuple(payload["table"])) for since, payload in jobs if "table" in payload]

    @reads
    def recorded_branches(self, table_id: int) -> list[str]:
        """Return the branches of a table that have commit records; '' is main."""
        return [row[0] for row in self.connection.rows(BRANCHES, table_id)]

    @writes
    def sweep_transactions(self, before: int, limit: int) -> int:
        """Delete up to `limit` transactions that ended before a time and that nothing refers to; return how many."""
        return self.connection.change(SWEEP_TRANSACTIONS, before, before, limit)

    @reads
    def transaction_counts(self) -> dict[tuple[str, str], int]:
        """Return the number of unfinished transactions by kind and status."""
        return {(kind, status): count for kind, status, count in self.connection.rows(TRANSACTION_COUNTS)}

    @writes
    def add_clone(self, table_id: int, source: str) -> None:
        """Record that a table is a shallow clone of the one at a location, whose files and sources it uses."""
        self.connection.change(ADD_CLONE, table_id, source)
        self.connection.change(ADD_SOURCES_OF_SOURCE, table_id, source, source)

    @reads
    def clone_locations(self, location: str) -> list[str]:
        """Return the locations of the shallow clones that use files of a location, or of a folder in it."""
        below = f"{location}/", f"{location}0"  # "0" is what follows "/"
        return [row[0] for row in self.connection.rows(CLONES, location, *below)]

    @reads
    def may_share_files(self, location: str, base: str) -> bool:
        """Return whether a table (or one that can be restored) may use files at a base outside its folder."""
        return self.connection.row(MAY_SHARE, base, location, location) is not None
