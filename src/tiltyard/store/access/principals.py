"""Principals and their API keys. Every change counts the generation `identity` up."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.store.repository import IDENTITY_GENERATION, Record, Repository, count_up, reads, writes

if TYPE_CHECKING:
    from collections.abc import Sequence


class PrincipalRecord(Record, frozen=True):
    """A principal. A disabled one is refused, whatever its credentials."""

    name: str
    administrator: bool
    disabled: bool
    created_at: int


class KeyRecord(Record, frozen=True):
    """An API key: `id` is its public part, `hash` the SHA-256 of its secret. Times are in ms since 1970."""

    id: str
    principal: str
    hash: str
    note: str
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None


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
    SELECT {KeyRecord.columns_of("api_keys")}, {PrincipalRecord.columns_of("principals")}
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
SET_LAST_USED = "UPDATE api_keys SET last_used_at = ? WHERE id = ? AND (last_used_at IS NULL OR last_used_at < ?)"

FIRST_PAGE = ("", 0, "")


class Principals(Repository):
    """The methods for principals and keys."""

    __slots__ = ()

    @writes
    def add_first_principal(self, name: str) -> bool:
        """Add an administrator if there is no principal yet; of several concurrent calls, one returns True."""
        added = self.connection.change(FIRST_PRINCIPAL, name, self._clock()) == 1
        if added:
            self._invalidate()
        return added

    @writes
    def add_principal(self, name: str, *, administrator: bool) -> bool:
        """Add a principal; return False if there is one of this name, which stays as it is."""
        added = self.connection.change(ADD_PRINCIPAL, name, administrator, self._clock()) == 1
        if added:
            self._invalidate()
        return added

    @reads
    def describe_principal(self, name: str) -> PrincipalRecord | None:
        """Return the principal of this name, or None."""
        row = self.connection.row(DESCRIBE_PRINCIPAL, name)
        return PrincipalRecord.of(row) if row else None

    @reads
    def list_principals(self, after: str | None, limit: int) -> list[PrincipalRecord]:
        """Return up to `limit` principals by name, those after `after`."""
        return [PrincipalRecord.of(row) for row in self.connection.rows(LIST_PRINCIPALS, after or "", limit)]

    @writes
    def alter_principal(self, name: str, administrator: bool | None, disabled: bool | None) -> PrincipalRecord | None:
        """Set the flags that are not None, and return the principal; None if there is none of this name."""
        row = self.connection.row(ALTER_PRINCIPAL, administrator, disabled, name)
        self._invalidate()
        return PrincipalRecord.of(row) if row else None

    @writes
    def add_key(self, id_: str, principal: str, hash_: str, note: str, expires_at: int | None) -> KeyRecord:
        """Add a key of an existing principal."""
        now = self._clock()
        self.connection.change(ADD_KEY, id_, principal, hash_, note, now, expires_at)
        self._invalidate()
        return KeyRecord(id_, principal, hash_, note, now, expires_at, None, None)

    @reads
    def describe_key(self, id_: str) -> tuple[KeyRecord, PrincipalRecord] | None:
        """Return a key and its principal, or None."""
        row = self.connection.row(KEY_AND_PRINCIPAL, id_)
        if row is None:
            return None
        width = len(KeyRecord.__struct_fields__)
        return KeyRecord.of(row[:width]), PrincipalRecord.of(row[width:])

    @reads
    def list_keys(self, principal: str | None, after: Sequence[object] | None, limit: int) -> list[KeyRecord]:
        """Return up to `limit` keys, of one principal or of all, those after a (principal, created_at, id)."""
        rows = self.connection.rows(LIST_KEYS, principal, *(after or FIRST_PAGE), limit)
        return [KeyRecord.of(row) for row in rows]

    @writes
    def expire_key(self, id_: str, expires_at: int) -> None:
        """Let a key expire at a time, unless it expires earlier anyway."""
        self.connection.change(EXPIRE, expires_at, id_, expires_at)
        self._invalidate()

    @writes
    def revoke_key(self, id_: str) -> bool:
        """Revoke a key for good; return whether there is one."""
        exists = self.connection.change(REVOKE, self._clock(), id_) == 1
        self._invalidate()
        return exists

    @writes
    def record_key_use(self, id_: str, interval_ms: int) -> None:
        """Set when a key was last used to now, unless that is less than `interval_ms` ago."""
        now = self._clock()
        self.connection.change(SET_LAST_USED, now, id_, now - interval_ms)

    def _invalidate(self) -> None:
        count_up(self.connection, IDENTITY_GENERATION)
