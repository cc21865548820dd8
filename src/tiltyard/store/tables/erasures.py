"""Erasures: what was asked for, what the job needs to go on while it runs, and the signed report that stays."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lance_namespace.errors import TransactionNotFoundError

from tiltyard.store.repository import Record, Repository, reads, writes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.store.repository import Path


ERASE = "erase"
"""The kind of the transactions that erase rows."""


class Erasure(Record, frozen=True):
    """An erasure of rows of a table (times in ms since 1970); `id` is that of its transaction.

    `plan` is the JSON that its job goes on from, "" once it has ended. `outcome` is "" until then. `signature` is of
    `report`, a JSON text; both are "" where it ended without one.
    """

    id: str
    table_id: int
    namespace_id: int
    path: tuple[str, ...]
    reference: str
    requested_by: str
    requested_at: int
    ended_at: int | None = None
    outcome: str = ""
    plan: str = ""
    report: str = ""
    signature: str = ""


ADD = f"INSERT INTO erasures ({Erasure.COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, NULL, '', ?, '', '')"
FIND = f"SELECT {Erasure.COLUMNS} FROM erasures WHERE id = ?"
SAVE_PLAN = "UPDATE erasures SET plan = ? WHERE id = ? AND ended_at IS NULL"
END = """
    UPDATE erasures SET plan = '', outcome = ?, report = ?, signature = ?, ended_at = ?
    WHERE id = ? AND ended_at IS NULL
"""
# Of one whose transaction was canceled or has failed, and was ended by nobody: what it would have gone on from goes.
END_LEFT = """
    UPDATE erasures SET plan = '', outcome = 'stopped', ended_at = ? WHERE id IN (
        SELECT erasures.id FROM erasures LEFT JOIN transactions ON transactions.id = erasures.id
        WHERE erasures.ended_at IS NULL AND (transactions.id IS NULL OR transactions.status IN ('Canceled', 'Failed'))
        ORDER BY erasures.id LIMIT ?
    )
"""
LIST = f"""
    SELECT {Erasure.COLUMNS} FROM erasures WHERE (requested_at, id) < (?, ?) ORDER BY requested_at DESC, id DESC LIMIT ?
"""
NEWEST = (1 << 62, "")


class Erasures(Repository):
    """The methods for erasures."""

    __slots__ = ()

    @writes
    def add_erasure(
        self, id_: str, table_id: int, namespace_id: int, path: Path, reference: str, requested_by: str, plan: str
    ) -> None:
        """Add an erasure whose transaction, of the same id, is created in the same transaction of the catalog."""
        head = id_, table_id, namespace_id, json.dumps(list(path)), reference, requested_by
        self.connection.change(ADD, *head, self._clock(), plan)

    @reads
    def find_erasure(self, id_: str) -> Erasure:
        """Return an erasure. Raises TransactionNotFoundError."""
        if row := self.connection.row(FIND, id_):
            return Erasure.of(row)
        raise erasure_not_found(id_)

    @writes
    def save_erasure_plan(self, id_: str, plan: str) -> None:
        """Keep what the job of an erasure goes on from, unless it has ended."""
        self.connection.change(SAVE_PLAN, plan, id_)

    @writes
    def end_erasure(self, id_: str, outcome: str, report: str, signature: str, ended_at: int) -> bool:
        """End an erasure with its report, and forget its plan; return False where it had ended."""
        return self.connection.change(END, outcome, report, signature, ended_at, id_) == 1

    @writes
    def end_left_erasures(self, limit: int) -> int:
        """End up to `limit` erasures whose work was canceled or has failed; return how many."""
        return self.connection.change(END_LEFT, self._clock(), limit)

    @reads
    def list_erasures(self, before: tuple[int, str] | None, limit: int) -> Sequence[Erasure]:
        """Return up to `limit` erasures requested before a (time, id); newest first."""
        return [Erasure.of(row) for row in self.connection.rows(LIST, *(before or NEWEST), limit)]


def erasure_not_found(id_: str) -> TransactionNotFoundError:
    """Return the error for an erasure that does not exist, or is not visible."""
    return TransactionNotFoundError(f"No erasure has the id {id_}: `tiltyard erase list` lists them.")
