"""What the store gives back of principals and keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class PrincipalRecord:
    """Somebody who may ask. A disabled one is refused, whatever it shows."""

    name: str
    administrator: bool
    disabled: bool
    created_at: int

    COLUMNS = "name, administrator, disabled, created_at"
    PREFIXED = "principals.name, principals.administrator, principals.disabled, principals.created_at"

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> PrincipalRecord:
        """Read a row of COLUMNS."""
        name, administrator, disabled, created_at = row
        return cls(name, bool(administrator), bool(disabled), created_at)


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """An API key: `id` is the part of it that may be seen, `hash` the SHA-256 of the rest. Times are in ms."""

    id: str
    principal: str
    hash: str
    note: str
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    last_used_at: int | None

    COLUMNS = "id, principal, hash, note, created_at, expires_at, revoked_at, last_used_at"
    WIDTH = 8
    PREFIXED = ", ".join(f"api_keys.{column}" for column in COLUMNS.split(", "))

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> KeyRecord:
        """Read a row of COLUMNS."""
        return cls(*row)


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key with which servers sign their tokens: 32 random bytes."""

    id: str
    value: bytes
    created_at: int

    COLUMNS = "id, value, created_at"

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> SigningKey:
        """Read a row of COLUMNS."""
        id_, value, created_at = row
        return cls(id_, bytes.fromhex(value), created_at)
