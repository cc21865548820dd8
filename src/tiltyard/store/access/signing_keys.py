"""Secrets that the servers of one catalog share: the keys that sign their tokens, and secrets by name."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

import secrets
from typing import Any

from tiltyard.store.repository import IDENTITY_GENERATION, Record, Repository, count_up, reads, writes


class SigningKey(Record, frozen=True):
    """A key that signs tokens: 32 random bytes. It signs for a while, and verifies for longer."""

    id: str
    value: bytes
    created_at: int

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> SigningKey:
        """Read a row of COLUMNS."""
        id_, value, created_at = row
        return cls(id_, bytes.fromhex(value), created_at)


SECRET_BYTES = 32
ID_BYTES = 8
LATEST = f"SELECT {SigningKey.COLUMNS} FROM signing_keys WHERE created_at > ? ORDER BY created_at DESC, id LIMIT 1"
DESCRIBE = f"SELECT {SigningKey.COLUMNS} FROM signing_keys WHERE id = ? AND created_at > ?"
ADD = f"INSERT INTO signing_keys ({SigningKey.COLUMNS}) VALUES (?, ?, ?)"
DELETE = "DELETE FROM signing_keys WHERE created_at <= ?"
ADD_SECRET = "INSERT INTO secrets (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"  # noqa: S105 - SQL
READ_SECRET = "SELECT value FROM secrets WHERE name = ?"  # noqa: S105 - SQL


class SigningKeys(Repository):
    """The methods for signing keys and shared secrets.

    Of two servers that add a signing key at the same time, each may sign with its own: both verify.
    """

    __slots__ = ()

    @reads
    def latest_signing_key(self, max_age_ms: int) -> SigningKey | None:
        """Return the latest signing key, or None if it is too old to sign."""
        row = self.connection.row(LATEST, self._clock() - max_age_ms)
        return SigningKey.of(row) if row else None

    @writes
    def add_signing_key(self, keep_ms: int) -> SigningKey:
        """Create a signing key and return it; delete those older than `keep_ms`."""
        now = self._clock()
        self.connection.change(DELETE, now - keep_ms)
        id_, value = secrets.token_hex(ID_BYTES), secrets.token_hex(SECRET_BYTES)
        self.connection.change(ADD, id_, value, now)
        return SigningKey(id_, bytes.fromhex(value), now)

    @writes
    def delete_signing_keys(self) -> None:
        """Delete all signing keys, which ends all tokens that were signed until now."""
        self.connection.change(DELETE, self._clock())
        count_up(self.connection, IDENTITY_GENERATION)

    @reads
    def signing_key(self, id_: str, max_age_ms: int) -> SigningKey | None:
        """Return a signing key that is young enough to verify, or None."""
        row = self.connection.row(DESCRIBE, id_, self._clock() - max_age_ms)
        return SigningKey.of(row) if row else None

    @writes
    def shared_secret(self, name: str) -> bytes:
        """Return the 32 random bytes of this name; they are created by the first call and never change."""
        self.connection.change(ADD_SECRET, name, secrets.token_hex(SECRET_BYTES))
        return bytes.fromhex(self.connection.rows(READ_SECRET, name)[0][0])
