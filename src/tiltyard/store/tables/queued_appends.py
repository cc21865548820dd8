"""Appends of several servers to one table, queued for the server that has the table's turn to commit them together.

The turn of a branch is a lease: it keeps commits from competing, and decides nothing. That an append is committed once
is up to the transaction that records its version: it marks the append, too, and fails if another turn has, or if its
server has withdrawn it.
"""

# ruff: noqa: S608 - only placeholders are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import InternalError, ServiceUnavailableError, TableNotFoundError

from tiltyard.store.backend import ForeignKeyError
from tiltyard.store.repository import Repository, placeholders, reads, writes, writes_one_statement

if TYPE_CHECKING:
    from collections.abc import Sequence

RETURNED = 0
"""The version of an append that another server could not commit: its own server has to."""
_DELETE_AFTER_MS = 3_600_000
"""How long after it expires an append is deleted whose server is gone."""

_LAZY = "/*+ , set_config('synchronous_commit', 'off', true) */"
"""In a RETURNING: PostgreSQL does not wait until the statement's transaction is on its disk. An append has to outlive a
crash of the database only with the version that brings it: that is later in the log, and is waited for.
"""

ADD = f"""
    INSERT INTO queued_appends (id, table_id, branch, content, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO NOTHING RETURNING id {_LAZY}
"""
CLAIM = """
    INSERT INTO append_turns (table_id, branch, holder, expires_at, expected) VALUES (?, ?, ?, ?, 1)
    ON CONFLICT (table_id, branch) DO UPDATE SET holder = excluded.holder, expires_at = excluded.expires_at
    WHERE append_turns.holder = '' OR append_turns.holder = excluded.holder OR append_turns.expires_at <= ?
    RETURNING expected
"""
CLAIM_LAZILY = f"{CLAIM} {_LAZY}"
HOLDER = "SELECT holder FROM append_turns WHERE table_id = ? AND branch = ? AND expires_at > ?"
WAITING = """
    SELECT id, content FROM queued_appends WHERE table_id = ? AND branch = ? AND version IS NULL AND expires_at > ?
    ORDER BY created_at, id LIMIT ?
"""
STATE = """
    SELECT appends.version, appends.holder, turns.holder, turns.expires_at FROM queued_appends appends
    LEFT JOIN append_turns turns ON turns.table_id = appends.table_id AND turns.branch = appends.branch
    WHERE appends.id = ?
"""
COUNT_OLDER = "SELECT COUNT(*) FROM queued_appends WHERE table_id = ? AND created_at < ?"
COMMIT = "UPDATE queued_appends SET version = ?, holder = ? WHERE version IS NULL AND id IN ({ids})"
RETURN = f"UPDATE queued_appends SET version = {RETURNED} WHERE version IS NULL AND id IN ({{ids}})"
UNDO_COMMIT = (
    "UPDATE queued_appends SET version = NULL, holder = NULL WHERE table_id = ? AND branch = ? AND version = ?"
)
END_TURN = f"""
    UPDATE append_turns SET holder = '', expected = ? + (
        SELECT COUNT(*) FROM queued_appends
        WHERE queued_appends.table_id = append_turns.table_id AND queued_appends.branch = append_turns.branch
            AND version IS NULL AND queued_appends.expires_at > ?
    )
    WHERE table_id = ? AND branch = ? AND holder = ? RETURNING branch {_LAZY}
"""
DELETE = f"DELETE FROM queued_appends WHERE id = ? RETURNING id {_LAZY}"
WITHDRAW = "DELETE FROM queued_appends WHERE id = ? RETURNING version"
SWEEP = """
    DELETE FROM queued_appends WHERE id IN (
        SELECT id FROM queued_appends WHERE expires_at <= ? ORDER BY expires_at LIMIT ?
    )
"""


class AppendNotWaitingError(InternalError):
    """A queued append was committed by another turn, or withdrawn: the commit that was to bring it must not be made.

    No conflict, after which Lance would make the same commit on a later version.
    """

    def __init__(self) -> None:
        super().__init__("An append of this commit was committed by another server, or withdrawn.")


class QueuedAppend(msgspec.Struct, frozen=True):
    """An append that waits to be committed, with its rows as its server has encoded them."""

    id: str
    content: bytes


class AppendState(msgspec.Struct, frozen=True):
    """The state of a queued append, and of its table's turn.

    `version` is None before the commit, `RETURNED` where another server could not make it. `is_ended` says that the
    turn that committed it is over: its version is final, unless its server died in the turn, which another one took
    over. Then the next reader finalizes it.
    """

    version: int | None
    is_ended: bool
    is_turn_free: bool


class QueuedAppends(Repository):
    """The methods for queued appends and the turns of tables. The branch '' is main.

    Other work on a table has turns, too, by names that no branch has (`tables/turns`).
    """

    __slots__ = ()

    @writes_one_statement
    def queue_append(self, id_: str, table_id: int, branch: str, content: bytes, expires_at: int) -> None:
        """Queue an append, which no turn takes from `expires_at` (ms since 1970) on. Raises TableNotFoundError."""
        try:
            self.connection.row(ADD, id_, table_id, branch, content, self._clock(), expires_at)
        except ForeignKeyError:
            raise _table_not_found(table_id) from None

    @reads
    def turn_holder(self, table_id: int, branch: str) -> str | None:
        """Return who has a turn; None if nobody has it, or its lease has expired."""
        row = self.connection.row(HOLDER, table_id, branch, self._clock())
        return None if row is None else row[0] or None

    @writes_one_statement
    def claim_turn(
        self, table_id: int, branch: str, holder: str, lease_ms: int, *, survives_crash: bool = False
    ) -> int | None:
        """Take the turn if it is free or its lease has expired; return how many appends to expect, None if it is held.

        One that `survives_crash` is on the database's disk when this returns: others have to find it after a crash of
        the database, too. Raises TableNotFoundError.
        """
        now = self._clock()
        try:
            statement = CLAIM if survives_crash else CLAIM_LAZILY
            row = self.connection.row(statement, table_id, branch, holder, now + lease_ms, now)
        except ForeignKeyError:
            raise _table_not_found(table_id) from None
        return None if row is None else int(row[0])

    @reads
    def waiting_appends(self, table_id: int, branch: str, limit: int) -> list[QueuedAppend]:
        """Return up to `limit` appends of a branch that are to be committed, the oldest first."""
        rows = self.connection.rows(WAITING, table_id, branch, self._clock(), limit)
        return [QueuedAppend(id_, bytes(content)) for id_, content in rows]

    @reads
    def count_older_appends(self, table_id: int, before: int) -> int:
        """Return how many appends of a table were queued before a time (ms since 1970) and are there, in any state."""
        return int(self.connection.rows(COUNT_OLDER, table_id, before)[0][0])

    @reads
    def append_state(self, id_: str) -> AppendState | None:
        """Return the state of an append; None if it is gone."""
        row = self.connection.row(STATE, id_)
        if row is None:
            return None
        version, committed_by, holder, expires_at = row
        is_expired = expires_at is not None and expires_at <= self._clock()
        return AppendState(version, committed_by != holder, not holder or is_expired)

    @writes
    def mark_appends_committed(self, ids: Sequence[str], holder: str, version: int) -> None:
        """Record, in the transaction that records a version, the appends that it brings.

        Raises AppendNotWaitingError unless all of them wait: then it must not be committed.
        """
        if self.connection.change(COMMIT.format(ids=placeholders(ids)), version, holder, *ids) < len(ids):
            raise AppendNotWaitingError

    @writes_one_statement
    def return_appends(self, ids: Sequence[str]) -> None:
        """Let the servers of these appends commit them, unless they are committed already."""
        self.connection.change(RETURN.format(ids=placeholders(ids)), *ids)

    @writes_one_statement
    def end_turn(self, table_id: int, branch: str, holder: str, taken: int = 0) -> None:
        """Leave the turn to others; `taken` is how many appends were committed in it."""
        self.connection.row(END_TURN, taken, self._clock(), table_id, branch, holder)

    @writes_one_statement
    def delete_append(self, id_: str) -> None:
        """Delete an append whose outcome its server has read."""
        self.connection.row(DELETE, id_)

    @writes
    def withdraw_append(self, id_: str, table_id: int) -> int | None:
        """Delete an append; return the version that it was committed in, None where it never will be.

        Raises TableNotFoundError if its table was dropped, ServiceUnavailableError if it was left behind for so long
        that nobody knows.
        """
        row = self.connection.row(WITHDRAW, id_)
        if row is None:
            if self.connection.row("SELECT 1 FROM tables WHERE id = ?", table_id) is None:
                raise _table_not_found(table_id)
            raise ServiceUnavailableError("These rows may have been committed: look before you send them again.")
        return None if row[0] == RETURNED else row[0]

    @writes
    def sweep_queued_appends(self, limit: int) -> int:
        """Delete up to `limit` appends that servers left behind; return how many."""
        return self.connection.change(SWEEP, self._clock() - _DELETE_AFTER_MS, limit)


def _table_not_found(table_id: int) -> TableNotFoundError:
    return TableNotFoundError(f"Table not found: it was dropped (id {table_id})")
