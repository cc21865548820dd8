"""Rows that functions failed on, fragment by fragment, as the jobs that skipped them report them."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

import json
from collections.abc import Collection

from lance_namespace.errors import ConcurrentModificationError

from tiltyard.store.repository import Record, Repository, reads, writes


class FragmentErrors(Record, frozen=True):
    """The rows of a fragment that a job has skipped: how many, and of some the errors, as JSON."""

    transaction_id: str
    table_id: int
    fragment_id: int
    column: str
    rows_skipped: int
    rows_recorded: int
    records: str
    created_at: int = 0

    COLUMNS = (
        "transaction_id, function_errors.table_id, fragment_id, column_name, rows_skipped, rows_recorded, records, "
        "function_errors.created_at"
    )


LOCK_OWNED = "SELECT id FROM transactions WHERE id = ? AND lease_owner = ? AND status = 'Running' /*+ FOR UPDATE */"
SAVE = """
    INSERT INTO function_errors
        (transaction_id, table_id, fragment_id, column_name, rows_skipped, rows_recorded, records, created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (transaction_id, fragment_id) DO UPDATE SET rows_skipped = excluded.rows_skipped,
        rows_recorded = excluded.rows_recorded, records = excluded.records, created_at = excluded.created_at
"""
RECORDED = "SELECT COALESCE(SUM(rows_recorded), 0) FROM function_errors WHERE transaction_id = ? AND fragment_id <> ?"
LIST = f"""
    SELECT {FragmentErrors.COLUMNS} FROM function_errors JOIN transactions ON transactions.id = transaction_id
    WHERE function_errors.table_id = ? AND transaction_id = COALESCE(?, transaction_id)
        AND column_name = COALESCE(?, column_name)
    ORDER BY transactions.created_at DESC, transaction_id, fragment_id LIMIT ?
"""


OF_TABLE = "SELECT transaction_id, fragment_id, records FROM function_errors WHERE table_id = ?"
DELETE_ONE = "DELETE FROM function_errors WHERE transaction_id = ? AND fragment_id = ?"


class FunctionErrors(Repository):
    """The methods for the errors of functions."""

    __slots__ = ()

    @reads
    def holds_lease(self, transaction_id: str, owner: str) -> bool:
        """Return whether a job runs under the lease of this owner."""
        return self.connection.row(LOCK_OWNED.partition("/*")[0], transaction_id, owner) is not None

    @writes
    def save_fragment_errors(self, owner: str, errors: FragmentErrors, most_recorded: int) -> bool:
        """Save the errors of a fragment, in the place of those that the job saved before.

        Where the job has more than `most_recorded` by now, only the counts are saved; returns whether the errors are.
        Raises ConcurrentModificationError when another driver holds the lease.
        """
        if self.connection.row(LOCK_OWNED, errors.transaction_id, owner) is None:
            raise ConcurrentModificationError(f"Job is no longer this driver's: {errors.transaction_id}")
        row = self.connection.row(RECORDED, errors.transaction_id, errors.fragment_id)
        fits = int(row[0] if row else 0) + errors.rows_recorded <= most_recorded
        kept = (errors.rows_recorded, errors.records) if fits else (0, "[]")
        head = errors.transaction_id, errors.table_id, errors.fragment_id, errors.column, errors.rows_skipped
        self.connection.change(SAVE, *head, *kept, self._clock())
        return fits

    @writes
    def delete_function_errors(self, table_id: int, texts: Collection[str]) -> int:
        """Delete the errors of a table's fragments that quote one of some texts; return of how many fragments."""
        quoted = [json.dumps(text)[1:-1] for text in texts] + [
            json.dumps(text, ensure_ascii=False)[1:-1] for text in texts
        ]
        found = [
            (transaction_id, fragment_id)
            for transaction_id, fragment_id, records in self.connection.rows(OF_TABLE, table_id)
            if any(text in records for text in quoted)
        ]
        self.connection.change_many(DELETE_ONE, found)
        return len(found)

    @reads
    def list_fragment_errors(
        self, table_id: int, transaction_id: str | None, column: str | None, limit: int
    ) -> list[FragmentErrors]:
        """Return the errors of up to `limit` fragments of a table, those of the newest job first."""
        rows = self.connection.rows(LIST, table_id, transaction_id, column, limit)
        return [FragmentErrors.of(row) for row in rows]
