"""Secrets that all servers of one catalog share: made once, by whichever server comes first."""

from __future__ import annotations

import secrets

from tiltyard.store.connection_scope import Scope, writes

SECRET_BYTES = 32
INSERT = "INSERT INTO secrets (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
READ = "SELECT value FROM secrets WHERE name = ?"


class Secrets(Scope):
    """The method for secrets."""

    __slots__ = ()

    @writes
    def shared_secret(self, name: str) -> bytes:
        """Return the 32 random bytes of this name, the same ones for ever."""
        self.connection.change(INSERT, name, secrets.token_hex(SECRET_BYTES))
        return bytes.fromhex(self.connection.rows(READ, name)[0][0])
