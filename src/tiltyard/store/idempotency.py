"""Requests with a key: each one is run once, and a repeat gets the answer of the first.

A running one belongs to the server that holds its lease; a lease that ran out hands it to whoever repeats the request.
A commit is noted in the transaction that makes it, and only while the lease is held: so of two servers that both
believe they run a request, one commits.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import ConcurrentModificationError

from tiltyard.store.connection_scope import Scope, reads, writes
from tiltyard.store.paths import among
from tiltyard.store.records import NewRequest, RequestClaim, RequestRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

KEPT_AT_ONCE = 100
LEAVING_MS = 200
"""How soon it is noted that the client of a request has left."""

# An expired record is as good as none, one whose lease ran out is taken over with what is known of its commit.
BEGIN = f"""
    INSERT INTO requests ({RequestRecord.COLUMNS})
    VALUES (?, ?, ?, ?, ?, 1, NULL, NULL, NULL, NULL, NULL, TRUE, ?, ?)
    ON CONFLICT (id) DO UPDATE SET
        owner = excluded.owner, lease_until = excluded.lease_until, scope = excluded.scope,
        fingerprint = CASE WHEN requests.expires_at <= excluded.created_at THEN excluded.fingerprint
            ELSE COALESCE(excluded.fingerprint, requests.fingerprint) END,
        status = NULL, heard = TRUE,
        created_at = excluded.created_at, expires_at = excluded.expires_at,
        attempts = CASE WHEN requests.expires_at <= excluded.created_at THEN 1 ELSE requests.attempts + 1 END,
        body = CASE WHEN requests.expires_at <= excluded.created_at THEN NULL ELSE requests.body END,
        table_id = CASE WHEN requests.expires_at <= excluded.created_at THEN NULL ELSE requests.table_id END,
        branch = CASE WHEN requests.expires_at <= excluded.created_at THEN NULL ELSE requests.branch END,
        version = CASE WHEN requests.expires_at <= excluded.created_at THEN NULL ELSE requests.version END
    WHERE requests.lease_until <= excluded.created_at AND (
        requests.expires_at <= excluded.created_at
        OR (requests.status IS NULL AND requests.scope = excluded.scope
            AND COALESCE(requests.fingerprint, excluded.fingerprint, '')
                = COALESCE(excluded.fingerprint, requests.fingerprint, ''))
    )
    RETURNING {RequestRecord.COLUMNS}
"""
DESCRIBE = f"SELECT {RequestRecord.COLUMNS} FROM requests WHERE id = ?"
# Not one that is attended at a server which has shown later that it lives: by a younger request, or a longer lease.
UNHEARD = f"""
    SELECT {RequestRecord.COLUMNS} FROM requests
    WHERE (NOT heard OR status IS NULL) AND fingerprint = ? AND scope = ? AND created_at >= ?
        AND (NOT heard OR lease_until <= ? OR owner = ? OR NOT (lease_until > ? OR EXISTS (
            SELECT 1 FROM requests younger
            WHERE younger.owner = requests.owner AND younger.status IS NULL AND younger.created_at > ?
        )))
    ORDER BY created_at, id
"""
TAKE_OVER = f"""
    UPDATE requests SET owner = ?, lease_until = ?, attempts = attempts + 1
    WHERE id = ? AND status IS NULL AND lease_until <= ? RETURNING {RequestRecord.COLUMNS}
"""
OURS = "WHERE id = ? AND owner = ? AND attempts = ? AND status IS NULL"
FINISH = f"UPDATE requests SET status = ?, body = ?, fingerprint = ?, heard = ?, lease_until = 0 {OURS}"
FORGET = f"DELETE FROM requests {OURS}"
FORGET_UNDONE = f"{FORGET} AND version IS NULL AND body IS NULL"
RELEASE = f"UPDATE requests SET lease_until = 0 {OURS}"
IDENTIFY = f"UPDATE requests SET fingerprint = ? {OURS}"
COMMITTED = f"UPDATE requests SET table_id = ?, branch = ?, version = ? {OURS}"
ANSWERED = f"UPDATE requests SET body = ? {OURS}"
KEEP = """
    UPDATE requests SET lease_until = ?
    WHERE owner = ? AND status IS NULL AND lease_until > 0 AND id IN ({ids})
"""
LEAVE = f"UPDATE requests SET heard = FALSE {OURS}"
HEAR = "UPDATE requests SET heard = ? WHERE id = ? AND heard <> ? AND status IS NOT NULL"
SWEEP = """
    DELETE FROM requests WHERE id IN (
        SELECT id FROM requests WHERE expires_at <= ? AND lease_until <= ? ORDER BY expires_at LIMIT ?
    )
"""


class Requests(Scope):
    """The methods for requests with a key."""

    __slots__ = ()

    @writes
    def begin_request(self, new: NewRequest) -> tuple[RequestRecord, bool]:
        """Claim a request and return it with True; or, if it runs elsewhere or is done, what there is with False.

        One whose lease ran out is claimed with `attempts` above 1: it may have committed already.
        Raises ConcurrentModificationError if it is just being given up by another.
        """
        now = self._clock()
        head = new.id, new.scope, new.fingerprint, new.owner, now + new.lease_ms
        if row := self.connection.row(BEGIN, *head, now, now + new.memory_ms):
            return RequestRecord.of(row), True
        if row := self.connection.row(DESCRIBE, new.id):
            return RequestRecord.of(row), False
        raise ConcurrentModificationError("The first request with this key has just ended: try again.")

    @writes
    def claim_unacknowledged_request(
        self, new: NewRequest, since_ms: int, but: Collection[str], before: int
    ) -> tuple[RequestRecord, bool] | None:
        """Find a request like this one, under another key, whose client did not hear of its end; not one of `but`.

        One that runs counts if its client has left, or if its server may be gone: it has not been heard of since.
        It is claimed, and returned with True, if its lease ran out; else it runs elsewhere, or is done. Only those
        begun earlier than `before` (or then, with a lesser id) count, so that of two none waits for the other.
        """
        now = self._clock()
        what, lives = (new.fingerprint, new.scope, now - since_ms), before + LEAVING_MS
        for row in self.connection.rows(UNHEARD, *what, now, new.owner, lives + new.lease_ms, lives):
            found = RequestRecord.of(row)
            if found.id in but or (found.created_at, found.id) >= (before, new.id):
                continue
            if found.status is None and found.lease_until <= now:
                taken = self.connection.row(TAKE_OVER, new.owner, now + new.lease_ms, found.id, now)
                return (RequestRecord.of(taken), True) if taken else (found, False)
            return found, False
        return None

    @reads
    def describe_request(self, id_: str) -> RequestRecord | None:
        """Return a request, or None if no such key is known."""
        row = self.connection.row(DESCRIBE, id_)
        return RequestRecord.of(row) if row else None

    @writes
    def record_fingerprint(self, claim: RequestClaim, fingerprint: str) -> None:
        """Note what the body was, once it has all come. Raises ConcurrentModificationError if it is claimed anew."""
        if not self.connection.change(IDENTIFY, fingerprint, *_ours(claim)):
            raise _lost()

    @writes
    def mark_requests_committed(self, claims: Iterable[RequestClaim], table_id: int, branch: str, version: int) -> None:
        """Note, in the transaction of a commit, which requests it fulfils.

        Raises ConcurrentModificationError if one of them is claimed by another by now: it must not commit.
        """
        for claim in sorted(claims, key=_ours):  # of two groups, neither waits for the other
            if not self.connection.change(COMMITTED, table_id, branch, version, *_ours(claim)):
                raise _lost()

    @writes
    def record_response(self, claims: Iterable[RequestClaim], body: str) -> None:
        """Note, in the transaction that fulfils requests, what they are answered. Raises as `mark_requests_committed` does."""
        for claim in claims:
            if not self.connection.change(ANSWERED, body, *_ours(claim)):
                raise _lost()

    @writes
    def adopt_response(self, claim: RequestClaim, id_: str, body: str) -> bool:
        """Give a request the answer of another, of which nobody had heard; of several who try, one is told True.

        It is heard of once this one ends; if its server dies before that, this one is found instead. Raises as
        `mark_requests_committed` does.
        """
        if not self.acknowledge_request(id_, True):
            return False
        self.record_response([claim], body)
        return True

    @writes
    def finish_request(self, claim: RequestClaim, status: int, body: str, fingerprint: str | None, heard: bool) -> bool:
        """Keep the answer; whether the request was still ours."""
        return bool(self.connection.change(FINISH, status, body, fingerprint, heard, *_ours(claim)))

    @writes
    def discard_request(self, claim: RequestClaim) -> None:
        """Let a repeat start afresh: this one changed nothing."""
        self.connection.change(FORGET, *_ours(claim))

    @writes
    def discard_or_release_request(self, claim: RequestClaim) -> None:
        """Let a repeat start afresh, since this one was refused; take over, if something was committed all the same."""
        if not self.connection.change(FORGET_UNDONE, *_ours(claim)):
            self.release_request(claim)

    @writes
    def release_request(self, claim: RequestClaim) -> None:
        """Let a repeat take over: this one ended, and may have committed."""
        self.connection.change(RELEASE, *_ours(claim))

    @writes
    def renew_request_leases(self, owner: str, lease_ms: int, ids: Sequence[str]) -> None:
        """Extend the leases of what a server runs."""
        for start in range(0, len(ids), KEPT_AT_ONCE):
            some = ids[start : start + KEPT_AT_ONCE]
            self.connection.change(KEEP.format(ids=among(some)), self._clock() + lease_ms, owner, *some)

    @writes
    def mark_client_disconnected(self, claim: RequestClaim) -> None:
        """Note that the client has left while the request runs: from now on another may be its repeat."""
        self.connection.change(LEAVE, *_ours(claim))

    @writes
    def acknowledge_request(self, id_: str, heard: bool) -> bool:
        """Note that a client took the answer, or that it did not after all; of several who try, one is told True."""
        return bool(self.connection.change(HEAR, heard, id_, heard))

    @writes
    def sweep_requests(self, limit: int) -> int:
        """Forget requests that have expired; return how many."""
        now = self._clock()
        return self.connection.change(SWEEP, now, now, limit)


def _ours(claim: RequestClaim) -> tuple[object, ...]:
    return claim.id, claim.owner, claim.attempt


def _lost() -> ConcurrentModificationError:
    return ConcurrentModificationError("This request took so long that its repeat was begun: nothing was changed.")
