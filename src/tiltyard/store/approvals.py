"""Calls that need the approval of a second principal: requested, approved or denied by that, and then run once."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

import msgspec
from lance_namespace.errors import InvalidInputError, PermissionDeniedError, TransactionNotFoundError

from tiltyard.store.repository import Record, Repository, reads, writes

if TYPE_CHECKING:
    pass

MAX_OPEN_APPROVALS = 1_000
"""The greatest number of calls of one principal that wait for approval."""
APPROVAL_HOURS = 24
"""How long a call waits for approval, and for its caller after that."""


class Approval(Record, frozen=True):
    """A call that waits for approval, or was decided; `approved` is None before that (times in ms since 1970)."""

    id: str
    operation: str
    object_kind: str
    object_id: int
    namespace_id: int
    digest: str
    request: str
    requested_by: str
    requested_at: int
    expires_at: int
    approved: bool | None = None
    decided_by: str | None = None
    decided_at: int | None = None
    used_at: int | None = None

    def status_at(self, now: int) -> str:
        """Return `requested`, `approved`, `denied`, `used` or `expired`."""
        if self.used_at is not None:
            return "used"
        if self.approved is False:
            return "denied"
        if self.expires_at <= now:
            return "expired"
        return "approved" if self.approved else "requested"


class NewApproval(msgspec.Struct, frozen=True):
    """A call to be approved: by whom, of what, on which object, and what an approver reads of it."""

    operation: str
    object_kind: str
    object_id: int
    namespace_id: int
    digest: str
    request: str
    requested_by: str


_OF_CALL = "requested_by = ? AND digest = ? AND operation = ? AND object_kind = ? AND object_id = ?"
INSERT = f"""
    INSERT INTO approvals ({Approval.COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, NULL, NULL, NULL)
    RETURNING {Approval.COLUMNS}
"""
LATEST = f"""
    SELECT {Approval.COLUMNS} FROM approvals WHERE {_OF_CALL} AND used_at IS NULL AND expires_at > ?
    ORDER BY requested_at DESC LIMIT 1
"""
USE = f"""
    UPDATE approvals SET used_at = ? WHERE id = (
        SELECT id FROM approvals WHERE {_OF_CALL} AND approved AND used_at IS NULL AND expires_at > ?
        ORDER BY requested_at LIMIT 1 /*+ FOR UPDATE */
    ) AND used_at IS NULL
    RETURNING id
"""
RELEASE = "UPDATE approvals SET used_at = NULL WHERE id = ?"
FIND = f"SELECT {Approval.COLUMNS} FROM approvals WHERE id = ?"
DECIDE = f"""
    UPDATE approvals SET approved = ?, decided_by = ?, decided_at = ? WHERE id = ? AND approved IS NULL
    RETURNING {Approval.COLUMNS}
"""
COUNT_OPEN = "SELECT count(*) FROM approvals WHERE requested_by = ? AND approved IS NULL AND expires_at > ?"
LIST = f"""
    SELECT {Approval.COLUMNS} FROM approvals WHERE (requested_at, id) < (?, ?)
    ORDER BY requested_at DESC, id DESC LIMIT ?
"""
SWEEP = """
    DELETE FROM approvals WHERE id IN (SELECT id FROM approvals WHERE expires_at < ? ORDER BY expires_at LIMIT ?)
"""
NEWEST = (1 << 62, "")


class Approvals(Repository):
    """The methods for approvals."""

    __slots__ = ()

    @writes
    def use_approval(self, new: NewApproval) -> str | None:
        """Use the approval of a call, so that no other call has it; return its id, None where there is none."""
        now = self._clock()
        row = self.connection.row(USE, now, *_call(new), now)
        return row[0] if row else None

    @writes
    def release_approval(self, approval_id: str) -> None:
        """Let the approval of a call that was refused, and has changed nothing, be used again."""
        self.connection.change(RELEASE, approval_id)

    @writes
    def request_approval(self, new: NewApproval) -> Approval:
        """Request the approval of a call; return the request, one that was made before if it waits or was denied.

        Raises InvalidInputError where too many calls of the principal wait.
        """
        now = self._clock()
        if row := self.connection.row(LATEST, *_call(new), now):
            return Approval.of(row)
        if int(self.connection.rows(COUNT_OPEN, new.requested_by, now)[0][0]) >= MAX_OPEN_APPROVALS:
            raise InvalidInputError(f"{MAX_OPEN_APPROVALS} calls of yours wait for approval: that is the most.")
        head = str(uuid4()), new.operation, new.object_kind, new.object_id, new.namespace_id, new.digest, new.request
        row = self.connection.row(INSERT, *head, new.requested_by, now, now + APPROVAL_HOURS * 3_600_000)
        assert row is not None
        return Approval.of(row)

    @reads
    def find_approval(self, approval_id: str) -> Approval:
        """Return a call that needs approval. Raises TransactionNotFoundError."""
        if row := self.connection.row(FIND, approval_id):
            return Approval.of(row)
        raise approval_not_found(approval_id)

    @writes
    def decide_approval(self, approval_id: str, decided_by: str, *, approved: bool) -> Approval:
        """Approve or deny a call. Raises TransactionNotFoundError, PermissionDeniedError (by its own caller),
        InvalidInputError (decided or expired already).
        """
        now, found = self._clock(), self.find_approval(approval_id)
        if found.requested_by == decided_by:
            raise PermissionDeniedError("You have requested this yourself: another principal has to decide.")
        if (status := found.status_at(now)) != "requested":
            raise InvalidInputError(f"This is {status} already: call {found.operation} again for a new request.")
        row = self.connection.row(DECIDE, approved, decided_by, now, approval_id)
        if row is None:
            raise InvalidInputError("Another principal has just decided this.")
        return Approval.of(row)

    @reads
    def list_approvals(self, before: tuple[int, str] | None, limit: int) -> list[Approval]:
        """Return up to `limit` calls that need approval, or needed it, requested before a (time, id); newest first."""
        return [Approval.of(row) for row in self.connection.rows(LIST, *(before or NEWEST), limit)]

    @writes
    def sweep_approvals(self, before: int, limit: int) -> int:
        """Delete up to `limit` that expired before a time (ms since 1970); return how many."""
        return self.connection.change(SWEEP, before, limit)


def _call(new: NewApproval) -> tuple[str, str, str, str, int]:
    return new.requested_by, new.digest, new.operation, new.object_kind, new.object_id


def approval_not_found(approval_id: str) -> TransactionNotFoundError:
    """Return the error for a request that does not exist, or is not visible."""
    return TransactionNotFoundError(f"No request for approval has the id {approval_id}")
