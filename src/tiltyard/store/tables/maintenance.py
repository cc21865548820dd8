"""What looking after storage has to know of the catalog."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

import json

from tiltyard.store.connection_scope import Scope, reads, writes
from tiltyard.store.records import Path

# The folders of all tables that there are or that wait to be deleted, and those that can be brought back.
KNOWN = (
    "SELECT location FROM tables UNION SELECT location FROM doomed_folders UNION SELECT location FROM removed_tables"
)
# A job that failed can be resumed, and then uses what it has kept of its parts.
GOES_ON = """
    (status IN ('Queued', 'Running') AND kind <> ?
        OR status = 'Failed' AND EXISTS (SELECT 1 FROM job_parts WHERE transaction_id = transactions.id))
"""
UNFINISHED = f"""
    SELECT MIN(since) FROM (
        SELECT created_at AS since FROM transactions WHERE table_id = ? AND {GOES_ON}
        UNION ALL SELECT created_at FROM uploads WHERE table_id = ?
    ) work
"""
UNBOUND = f"SELECT created_at, payload FROM transactions WHERE table_id IS NULL AND {GOES_ON}"
ADD_CLONE = "INSERT INTO clone_sources (table_id, location) VALUES (?, ?) ON CONFLICT DO NOTHING"
# A source may be a folder inside a table's: that of its data, or of a branch.
CLONES = """
    WITH clones (id) AS (
        SELECT table_id FROM clone_sources WHERE location = ? OR (location > ? AND location < ?)
    )
    SELECT location FROM tables WHERE id IN (SELECT id FROM clones)
    UNION SELECT location FROM removed_tables WHERE id IN (SELECT id FROM clones)
"""
SHARES = """
    SELECT 1 FROM clone_sources WHERE location = ? AND table_id IN (
        SELECT id FROM tables WHERE location = ? UNION ALL SELECT id FROM removed_tables WHERE location = ?
    ) LIMIT 1
"""
INHERIT = """
    INSERT INTO clone_sources (table_id, location) SELECT ?, location FROM clone_sources
    WHERE table_id IN (
        SELECT id FROM tables WHERE location = ? UNION ALL SELECT id FROM removed_tables WHERE location = ?
    ) ON CONFLICT DO NOTHING
"""
# Index builds, drops and the like: what a version or a folder that waits to be deleted names is still told apart.
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


class Upkeep(Scope):
    """The methods for whoever looks after storage."""

    __slots__ = ()

    @reads
    def all_locations(self) -> set[str]:
        """Return the locations of all tables, of those that can be brought back, and of all doomed folders."""
        return {row[0] for row in self.connection.rows(KNOWN)}

    @reads
    def oldest_unfinished_work(self, table_id: int, besides: str) -> int | None:
        """Return when the oldest unfinished transaction, resumable job or upload of a table began, one kind aside."""
        row = self.connection.row(UNFINISHED, table_id, besides, table_id)
        return row[0] if row else None

    @reads
    def unfinished_jobs_by_table_name(self, besides: str) -> list[tuple[int, Path]]:
        """Return when each job began that was asked for before its table was there, and the table's name; no name for
        one that may write any table.
        """
        told = [(since, json.loads(payload)) for since, payload in self.connection.rows(UNBOUND, besides)]
        return [(since, tuple(payload["table"])) for since, payload in told if "table" in payload]

    @reads
    def recorded_branches(self, table_id: int) -> list[str]:
        """Return the branches of a table that have recorded versions; '' is main."""
        return [row[0] for row in self.connection.rows(BRANCHES, table_id)]

    @writes
    def sweep_transactions(self, before: int, limit: int) -> int:
        """Forget up to `limit` transactions that ended before a time and that nothing names; return how many."""
        return self.connection.change(SWEEP_TRANSACTIONS, before, before, limit)

    @reads
    def transaction_counts(self) -> dict[tuple[str, str], int]:
        """Return how many transactions are unfinished, by kind and status."""
        return {(kind, status): count for kind, status, count in self.connection.rows(TRANSACTION_COUNTS)}

    @writes
    def add_clone(self, table_id: int, source: str) -> None:
        """Note that a table is a shallow clone of the one at a location, and so uses its files and its sources'."""
        self.connection.change(ADD_CLONE, table_id, source)
        self.connection.change(INHERIT, table_id, source, source)

    @reads
    def clone_locations(self, location: str) -> list[str]:
        """Return where the shallow clones lie that use files of a location, or of a folder in it."""
        below = f"{location}/", f"{location}0"  # "0" is what follows "/"
        return [row[0] for row in self.connection.rows(CLONES, location, *below)]

    @reads
    def may_share_files(self, location: str, base: str) -> bool:
        """Return whether a table, or one that can be brought back, may use files at a base outside its folder."""
        return self.connection.row(SHARES, base, location, location) is not None
