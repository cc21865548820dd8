"""Secrets of functions: named values in a namespace, encrypted by keys that the catalog does not have."""

# ruff: noqa: S608 - only constants of the code are put into SQL, never values

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from lance_namespace.errors import NamespaceNotFoundError

from tiltyard.model.settings.secret_keys import EncryptedValue
from tiltyard.store.repository import Repository, reads, writes

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class SecretRecord:
    """A secret with its encrypted value; times in ms since 1970. Another secret of the same name has another `id`."""

    namespace_id: int
    name: str
    value: EncryptedValue
    created_at: int
    updated_at: int
    id: str

    ID = "COALESCE(secret_id, CAST(namespace_id AS TEXT) || ' ' || CAST(created_at AS TEXT) || ' ' || name)"
    """A secret that an earlier server has made has no id of its own. As its index has it (migration 29)."""
    COLUMNS = f"namespace_id, name, key_id, value, created_at, updated_at, {ID}"

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> SecretRecord:
        """Read a row of COLUMNS."""
        namespace_id, name, key_id, value, *rest = row
        return cls(namespace_id, name, EncryptedValue(key_id, b64decode(value)), *rest)


LOCK_NAMESPACE = "SELECT id FROM namespaces WHERE id = ? /*+ FOR KEY SHARE */"
ADD = """
    INSERT INTO named_secrets (namespace_id, name, key_id, value, created_at, updated_at, secret_id)
    VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
ALTER = "UPDATE named_secrets SET key_id = ?, value = ?, updated_at = ? WHERE namespace_id = ? AND name = ?"
DESCRIBE = f"SELECT {SecretRecord.COLUMNS} FROM named_secrets WHERE namespace_id = ? AND name = ?"
FIND = f"SELECT {SecretRecord.COLUMNS} FROM named_secrets WHERE {SecretRecord.ID} = ?"
LIST = "SELECT name FROM named_secrets WHERE namespace_id = ? AND name > ? ORDER BY name LIMIT ?"
DROP = "DELETE FROM named_secrets WHERE namespace_id = ? AND name = ?"
OF_OTHER_KEYS = f"""
    SELECT {SecretRecord.COLUMNS} FROM named_secrets
    WHERE key_id <> ? AND (namespace_id, name) > (?, ?) ORDER BY namespace_id, name LIMIT ?
"""
REPLACE = """
    UPDATE named_secrets SET key_id = ?, value = ?
    WHERE namespace_id = ? AND name = ? AND key_id = ? AND value = ?
"""
PAGE = 100


class Secrets(Repository):
    """The methods for secrets; a namespace is named by its id."""

    __slots__ = ()

    @writes
    def add_secret(self, namespace_id: int, name: str, value: EncryptedValue) -> bool:
        """Add a secret; return False if there is one of this name, which stays. Raises NamespaceNotFoundError."""
        if self.connection.row(LOCK_NAMESPACE, namespace_id) is None:
            raise NamespaceNotFoundError("Namespace not found: it was just dropped")
        now = self._clock()
        values = value.key_id, _text(value), now, now, uuid4().hex
        return self.connection.change(ADD, namespace_id, name, *values) == 1

    @writes
    def alter_secret(self, namespace_id: int, name: str, value: EncryptedValue) -> bool:
        """Replace a secret's value; return whether there was one."""
        return self.connection.change(ALTER, value.key_id, _text(value), self._clock(), namespace_id, name) == 1

    @reads
    def describe_secret(self, namespace_id: int, name: str) -> SecretRecord | None:
        """Return a secret, None if there is none of this name."""
        row = self.connection.row(DESCRIBE, namespace_id, name)
        return SecretRecord.of(row) if row else None

    @reads
    def find_secret(self, secret_id: str) -> SecretRecord | None:
        """Return a secret by its id, also one of a dropped namespace that can be restored; None if it was dropped."""
        row = self.connection.row(FIND, secret_id)
        return SecretRecord.of(row) if row else None

    @reads
    def list_secrets(self, namespace_id: int, after: str | None, limit: int) -> list[str]:
        """Return up to `limit` names of a namespace's secrets, those after `after`."""
        return [row[0] for row in self.connection.rows(LIST, namespace_id, after or "", limit)]

    @writes
    def drop_secret(self, namespace_id: int, name: str) -> bool:
        """Delete a secret; return whether there was one."""
        return self.connection.change(DROP, namespace_id, name) == 1

    def reencrypt_secrets(self, key_id: str, encrypt: Callable[[SecretRecord], EncryptedValue]) -> int:
        """Replace the values that another key than this one encrypted, also in dropped namespaces; return how many.

        One that is altered meanwhile stays as it is then. Raises what `encrypt` raises.
        """
        replaced, last = 0, (0, "")
        while page := self._secrets_of_other_keys(key_id, last):
            for record in page:
                replaced += self._replace_value(record, encrypt(record))
            last = page[-1].namespace_id, page[-1].name
        return replaced

    @reads
    def _secrets_of_other_keys(self, key_id: str, after: tuple[int, str]) -> list[SecretRecord]:
        return [SecretRecord.of(row) for row in self.connection.rows(OF_OTHER_KEYS, key_id, *after, PAGE)]

    @writes
    def _replace_value(self, record: SecretRecord, value: EncryptedValue) -> int:
        before = record.namespace_id, record.name, record.value.key_id, _text(record.value)
        return self.connection.change(REPLACE, value.key_id, _text(value), *before)


def _text(value: EncryptedValue) -> str:
    return b64encode(value.data).decode()
