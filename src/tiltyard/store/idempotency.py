"""Requests with an idempotency key: each is run once, and its repeats get the stored response.

A running one is leased to the server that runs it; once the lease has expired, a server that gets a repeat takes over.
A commit is recorded in the database transaction that makes it, and only under the lease: so of two servers that both
believe they run a request, one commits.
"""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import ConcurrentModificationError

from tiltyard.store.repository import Record, Repository, placeholders, reads, writes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

IDS_PER_STATEMENT = 100
DISCONNECT_MS = 200
"""How soon the disconnection of a request's client is recorded."""


class RequestClaim(msgspec.Struct, frozen=True):
    """The lease on a request with an idempotency key: the request's id, the lease's holder, the attempt's number."""

    id: str
    owner: str
    attempt: int


class NewRequest(msgspec.Struct, frozen=True):
    """A request with an idempotency key, as it arrives; `fingerprint` is None until the body is complete.

    `lease_ms` is how long the server may run it before another takes over, `memory_ms` how long the record is kept.
    """

    id: str
    scope: str
    fingerprint: str | None
    owner: str
    lease_ms: int
    memory_ms: int


class RequestRecord(Record, frozen=True):
    """A request with an idempotency key; it is running while `status` is None.

    `version` is the version that it committed to a branch of a table. `body` is its response; a body without a status
    is that of an operation whose work in the catalog is done. `acknowledged` says whether its client received the
    response, or is connected to receive it.
    """

    id: str
    scope: str
    fingerprint: str | None
    owner: str
    lease_until: int
    attempts: int
    status: int | None
    body: str | None
    table_id: int | None
    branch: str | None
    version: int | None
    acknowledged: bool
    created_at: int
    expires_at: int

    COLUMNS = (
        "id, scope, fingerprint, owner, lease_until, attempts, status, body,"
        " table_id, branch, version, heard, created_at, expires_at"
    )

    @property
    def claim(self) -> RequestClaim:
        """The lease on the request, for the server that claimed it with this record."""
        return RequestClaim(self.id, self.owner, self.attempts)


# An expired record counts as none; one whose lease has expired is taken over, with what it has committed.
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
# Not one with a connected client at a server that has been alive since: it has a younger request, or renewed a lease.
UNACKNOWLEDGED = f"""
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
LEASED = "WHERE id = ? AND owner = ? AND attempts = ? AND status IS NULL"
FINISH = f"UPDATE requests SET status = ?, body = ?, fingerprint = ?, heard = ?, lease_until = 0 {LEASED}"
DELETE = f"DELETE FROM requests {LEASED}"
DELETE_UNCOMMITTED = f"{DELETE} AND version IS NULL AND body IS NULL"
RELEASE = f"UPDATE requests SET lease_until = 0 {LEASED}"
SET_FINGERPRINT = f"UPDATE requests SET fingerprint = ? {LEASED}"
SET_COMMIT = f"UPDATE requests SET table_id = ?, branch = ?, version = ? {LEASED}"
SET_RESPONSE = f"UPDATE requests SET body = ? {LEASED}"
RENEW = """
    UPDATE requests SET lease_until = ?
    WHERE owner = ? AND status IS NULL AND lease_until > 0 AND id IN ({ids})
"""
SET_DISCONNECTED = f"UPDATE requests SET heard = FALSE {LEASED}"
SET_ACKNOWLEDGED = "UPDATE requests SET heard = ? WHERE id = ? AND heard <> ? AND status IS NOT NULL"
SWEEP = """
    DELETE FROM requests WHERE id IN (
        SELECT id FROM requests WHERE expires_at <= ? AND lease_until <= ? ORDER BY expires_at LIMIT ?
    )
"""


class RequestLeaseLostError(ConcurrentModificationError):
    """Another server runs a request by now, or has run it: the one that ran it before must not commit."""

    def __init__(self) -> None:
        super().__init__("This request took so long that its retry was started: nothing was changed.")


class KeyedRequests(Repository):
    """The methods for requests with an idempotency key."""

    __slots__ = ()

    @writes
    def begin_request(self, new: NewRequest) -> tuple[RequestRecord, bool]:
        """Claim a request and return it with True; if it runs elsewhere or is done, return its record with False.

        One whose lease has expired is claimed with `attempts` above 1: it may have committed already.
        Raises ConcurrentModificationError if another server discards it at this moment.
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
        self, new: NewRequest, since_ms: int, excluded: Collection[str], before: int
    ) -> tuple[RequestRecord, bool] | None:
        """Find a request like this one under another key whose client did not receive the response; claim it if free.

        A client that lost the response may send the request again under a new key. A running request counts if its
        client has disconnected, or if its server may be gone: it has shown no sign of life since. It is claimed, and
        returned with True, if its lease has expired; else it is returned with False, as it runs elsewhere or is done.
        Those with ids in `excluded` do not count, and only those that began earlier than `before` (or then, with a
        lesser id) do, so that two requests never wait for each other.
        """
        now = self._clock()
        same_request, alive_since = (new.fingerprint, new.scope, now - since_ms), before + DISCONNECT_MS
        values = *same_request, now, new.owner, alive_since + new.lease_ms, alive_since
        for row in self.connection.rows(UNACKNOWLEDGED, *values):
            record = RequestRecord.of(row)
            if record.id in excluded or (record.created_at, record.id) >= (before, new.id):
                continue
            if record.status is None and record.lease_until <= now:
                claimed = self.connection.row(TAKE_OVER, new.owner, now + new.lease_ms, record.id, now)
                return (RequestRecord.of(claimed), True) if claimed else (record, False)
            return record, False
        return None

    @reads
    def describe_request(self, id_: str) -> RequestRecord | None:
        """Return a request, or None if there is none of this id."""
        row = self.connection.row(DESCRIBE, id_)
        return RequestRecord.of(row) if row else None

    @writes
    def record_fingerprint(self, claim: RequestClaim, fingerprint: str) -> None:
        """Record the fingerprint of the complete body. Raises ConcurrentModificationError if the lease was lost."""
        if not self.connection.change(SET_FINGERPRINT, fingerprint, *_lease_key(claim)):
            raise RequestLeaseLostError

    @writes
    def mark_requests_committed(self, claims: Iterable[RequestClaim], table_id: int, branch: str, version: int) -> None:
        """Record, in the database transaction of a commit, the requests that it fulfils.

        Raises RequestLeaseLostError if the lease on one of them was lost: then it must not commit.
        """
        for claim in sorted(claims, key=_lease_key):  # sorted, so that two groups do not deadlock
            if not self.connection.change(SET_COMMIT, table_id, branch, version, *_lease_key(claim)):
                raise RequestLeaseLostError

    @writes
    def record_response(self, claims: Iterable[RequestClaim], body: str) -> None:
        """Record the response to requests, in the database transaction that fulfils them.

        Raises as `mark_requests_committed` does.
        """
        for claim in claims:
            if not self.connection.change(SET_RESPONSE, body, *_lease_key(claim)):
                raise RequestLeaseLostError

    @writes
    def adopt_response(self, claim: RequestClaim, id_: str, body: str) -> bool:
        """Give a request the response of another, unacknowledged one; of concurrent calls, one returns True.

        The other one is acknowledged once this one ends; if the server dies before that, this one is unacknowledged
        in its place. Raises as `mark_requests_committed` does.
        """
        if not self.acknowledge_request(id_, True):
            return False
        self.record_response([claim], body)
        return True

    @writes
    def finish_request(
        self, claim: RequestClaim, status: int, body: str, fingerprint: str | None, acknowledged: bool
    ) -> bool:
        """Record the response; return whether the lease was still held."""
        return bool(self.connection.change(FINISH, status, body, fingerprint, acknowledged, *_lease_key(claim)))

    @writes
    def discard_request(self, claim: RequestClaim) -> None:
        """Delete a request that changed nothing, so that a repeat runs as a new one."""
        self.connection.change(DELETE, *_lease_key(claim))

    @writes
    def discard_or_release_request(self, claim: RequestClaim) -> None:
        """Delete a request that was refused; release it instead, if it has committed something all the same."""
        if not self.connection.change(DELETE_UNCOMMITTED, *_lease_key(claim)):
            self.release_request(claim)

    @writes
    def release_request(self, claim: RequestClaim) -> None:
        """Release the lease, so that a repeat takes over: this one has ended, and may have committed."""
        self.connection.change(RELEASE, *_lease_key(claim))

    @writes
    def renew_request_leases(self, owner: str, lease_ms: int, ids: Sequence[str]) -> None:
        """Renew the leases of the requests that a server runs."""
        for start in range(0, len(ids), IDS_PER_STATEMENT):
            chunk = ids[start : start + IDS_PER_STATEMENT]
            self.connection.change(RENEW.format(ids=placeholders(chunk)), self._clock() + lease_ms, owner, *chunk)

    @writes
    def mark_client_disconnected(self, claim: RequestClaim) -> None:
        """Record that the client disconnected while the request runs: a later request may be its repeat."""
        self.connection.change(SET_DISCONNECTED, *_lease_key(claim))

    @writes
    def acknowledge_request(self, id_: str, acknowledged: bool) -> bool:
        """Record that a client received the response, or did not after all; of concurrent calls, one returns True."""
        return bool(self.connection.change(SET_ACKNOWLEDGED, acknowledged, id_, acknowledged))

    @writes
    def sweep_requests(self, limit: int) -> int:
        """Delete up to `limit` expired requests; return how many."""
        now = self._clock()
        return self.connection.change(SWEEP, now, now, limit)


def _lease_key(claim: RequestClaim) -> tuple[object, ...]:
    return claim.id, claim.owner, claim.attempt
