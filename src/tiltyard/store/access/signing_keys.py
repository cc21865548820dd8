"""The keys with which the servers of one catalog sign their tokens: each signs for a while, and verifies longer."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

import secrets

from tiltyard.store.access.generations import COUNT_UP
from tiltyard.store.access.identity_records import SigningKey
from tiltyard.store.access.principals import IDENTITY_GENERATION
from tiltyard.store.connection_scope import Scope, reads, writes

VALUE_BYTES = 32
ID_BYTES = 8
NEWEST = f"SELECT {SigningKey.COLUMNS} FROM signing_keys WHERE created_at > ? ORDER BY created_at DESC, id LIMIT 1"
ONE = f"SELECT {SigningKey.COLUMNS} FROM signing_keys WHERE id = ? AND created_at > ?"
ADD = f"INSERT INTO signing_keys ({SigningKey.COLUMNS}) VALUES (?, ?, ?)"
FORGET = "DELETE FROM signing_keys WHERE created_at <= ?"


class SigningKeys(Scope):
    """The methods for signing keys. Of two servers that add one at once, each may sign with its own: both verify."""

    __slots__ = ()

    @reads
    def latest_signing_key(self, younger_than_ms: int) -> SigningKey | None:
        """Return the key that signs, or None if it is too old."""
        row = self.connection.row(NEWEST, self._clock() - younger_than_ms)
        return SigningKey.of(row) if row else None

    @writes
    def add_signing_key(self, keep_ms: int) -> SigningKey:
        """Make a new key, and forget those older than `keep_ms`."""
        now = self._clock()
        self.connection.change(FORGET, now - keep_ms)
        id_, value = secrets.token_hex(ID_BYTES), secrets.token_hex(VALUE_BYTES)
        self.connection.change(ADD, id_, value, now)
        return SigningKey(id_, bytes.fromhex(value), now)

    @writes
    def delete_signing_keys(self) -> None:
        """End all tokens that were signed until now."""
        self.connection.change(FORGET, self._clock())
        self.connection.change(COUNT_UP, IDENTITY_GENERATION)

    @reads
    def signing_key(self, id_: str, younger_than_ms: int) -> SigningKey | None:
        """Return a key that may still verify, or None."""
        row = self.connection.row(ONE, id_, self._clock() - younger_than_ms)
        return SigningKey.of(row) if row else None
