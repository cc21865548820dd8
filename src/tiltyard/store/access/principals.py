"""Principals and their API keys. Every change of them counts the generation `identity` up."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.store.access.generations import COUNT_UP
from tiltyard.store.access.identity_records import KeyRecord, PrincipalRecord
from tiltyard.store.connection_scope import Scope, reads, writes

if TYPE_CHECKING:
    from collections.abc import Sequence

IDENTITY_GENERATION = "identity"
"""The generation of principals and keys."""

FIRST_PRINCIPAL = f"""
    INSERT INTO principals ({PrincipalRecord.COLUMNS})
    SELECT ?, TRUE, FALSE, ? WHERE NOT EXISTS (SELECT 1 FROM principals) ON CONFLICT (name) DO NOTHING
"""
ADD_PRINCIPAL = f"INSERT INTO principals ({PrincipalRecord.COLUMNS}) VALUES (?, ?, FALSE, ?) ON CONFLICT DO NOTHING"
DESCRIBE_PRINCIPAL = f"SELECT {PrincipalRecord.COLUMNS} FROM principals WHERE name = ?"
LIST_PRINCIPALS = f"SELECT {PrincipalRecord.COLUMNS} FROM principals WHERE name > ? ORDER BY name LIMIT ?"
ALTER_PRINCIPAL = f"""
    UPDATE principals SET administrator = COALESCE(?, administrator), disabled = COALESCE(?, disabled)
    WHERE name = ? RETURNING {PrincipalRecord.COLUMNS}
"""
ADD_KEY = f"INSERT INTO api_keys ({KeyRecord.COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, NULL, NULL)"
KEY_AND_PRINCIPAL = f"""
    SELECT {KeyRecord.PREFIXED}, {PrincipalRecord.PREFIXED}
    FROM api_keys JOIN principals ON principals.name = api_keys.principal WHERE api_keys.id = ?
"""
LIST_KEYS = f"""
    SELECT {KeyRecord.COLUMNS} FROM api_keys
    WHERE principal = COALESCE(?, principal) AND (principal, created_at, id) > (?, ?, ?)
    ORDER BY principal, created_at, id LIMIT ?
"""
EXPIRE = """
    UPDATE api_keys SET expires_at = ?
    WHERE id = ? AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?)
"""
REVOKE = "UPDATE api_keys SET revoked_at = COALESCE(revoked_at, ?) WHERE id = ?"
USED = "UPDATE api_keys SET last_used_at = ? WHERE id = ? AND (last_used_at IS NULL OR last_used_at < ?)"

NEVER_BEFORE = ("", 0, "")


class Principals(Scope):
    """The methods for principals and keys."""

    __slots__ = ()

    @writes
    def add_first_principal(self, name: str) -> bool:
        """Add an administrator if there is nobody yet; of several who try at once, one is told True."""
        added = self.connection.change(FIRST_PRINCIPAL, name, self._clock()) == 1
        if added:
            self._changed()
        return added

    @writes
    def add_principal(self, name: str, *, administrator: bool) -> bool:
        """Add a principal; False if there is one of this name, which stays as it is."""
        added = self.connection.change(ADD_PRINCIPAL, name, administrator, self._clock()) == 1
        if added:
            self._changed()
        return added

    @reads
    def describe_principal(self, name: str) -> PrincipalRecord | None:
        """Return a principal, or None if nobody has this name."""
        row = self.connection.row(DESCRIBE_PRINCIPAL, name)
        return PrincipalRecord.of(row) if row else None

    @reads
    def list_principals(self, after: str | None, limit: int) -> list[PrincipalRecord]:
        """Return up to `limit` principals whose names follow `after`."""
        return [PrincipalRecord.of(row) for row in self.connection.rows(LIST_PRINCIPALS, after or "", limit)]

    @writes
    def alter_principal(self, name: str, administrator: bool | None, disabled: bool | None) -> PrincipalRecord | None:
        """Change what is not None, and return the principal; None if nobody has this name."""
        row = self.connection.row(ALTER_PRINCIPAL, administrator, disabled, name)
        self._changed()
        return PrincipalRecord.of(row) if row else None

    @writes
    def add_key(self, id_: str, principal: str, hash_: str, note: str, expires_at: int | None) -> KeyRecord:
        """Add a key of a principal that there is."""
        now = self._clock()
        self.connection.change(ADD_KEY, id_, principal, hash_, note, now, expires_at)
        self._changed()
        return KeyRecord(id_, principal, hash_, note, now, expires_at, None, None)

    @reads
    def describe_key(self, id_: str) -> tuple[KeyRecord, PrincipalRecord] | None:
        """Return a key and whose it is, or None."""
        row = self.connection.row(KEY_AND_PRINCIPAL, id_)
        if row is None:
            return None
        return KeyRecord.of(row[: KeyRecord.WIDTH]), PrincipalRecord.of(row[KeyRecord.WIDTH :])

    @reads
    def list_keys(self, principal: str | None, after: Sequence[object] | None, limit: int) -> list[KeyRecord]:
        """Return up to `limit` keys, of one principal or of all; `after` is the last one's (principal, created, id)."""
        rows = self.connection.rows(LIST_KEYS, principal, *(after or NEVER_BEFORE), limit)
        return [KeyRecord.of(row) for row in rows]

    @writes
    def expire_key(self, id_: str, expires_at: int) -> None:
        """Let a key end at a time, unless it ends before by itself."""
        self.connection.change(EXPIRE, expires_at, id_, expires_at)
        self._changed()

    @writes
    def revoke_key(self, id_: str) -> bool:
        """End a key now, for ever; whether there is one."""
        found = self.connection.change(REVOKE, self._clock(), id_) == 1
        self._changed()
        return found

    @writes
    def record_key_use(self, id_: str, at_least_ms: int) -> None:
        """Note that a key was used just now, unless that was noted less than `at_least_ms` ago."""
        now = self._clock()
        self.connection.change(USED, now, id_, now - at_least_ms)

    def _changed(self) -> None:
        self.connection.change(COUNT_UP, IDENTITY_GENERATION)
