"""Principals, the authenticated callers, and the privileges that can be granted to them on the server, a namespace (and
so on all below it) or a table.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntFlag

import msgspec
from lance_namespace.errors import InvalidInputError


class Principal(msgspec.Struct, frozen=True):
    """An authenticated caller.

    `name` is unique on a server; `groups` come from a token's claim; `method` is how the caller authenticated ("open"
    on a server without authentication). An `administrator` has all privileges.
    """

    name: str
    groups: tuple[str, ...] = ()
    method: str = "open"
    administrator: bool = False


EVERYBODY = Principal("everybody", administrator=True)
"""The principal of all callers of a server without authentication."""

OPERATOR = Principal("operator", method="command line", administrator=True)
"""The principal of commands that open the catalog's database themselves; a principal with keys may have its name."""

SERVER = Principal("tiltyard", method="server", administrator=True)
"""The server itself: its sweeps, and jobs that no caller has submitted."""


class Privilege(IntFlag):
    """One bit each, as the catalog stores them: never renumber."""

    USE = 1
    READ = 2
    WRITE = 4
    ALTER = 8
    CREATE = 16
    DROP = 32
    MANAGE_GRANTS = 64
    RUN_UDFS = 128
    ADMINISTER = 256
    CREATE_FUNCTION = 512
    MANAGE_SECRETS = 1024
    CLASSIFY = 2048
    LEGAL_HOLD = 4096
    APPROVE = 8192


ALL = 16383
ALL_NAME = "all"
"""The name of all privileges in requests."""

_BITS_BY_NAME = {privilege.name.lower(): int(privilege) for privilege in Privilege if privilege.name}


def with_implied(bits: int) -> int:
    """Add the privileges that granted ones imply: any of them implies `use`, `administer` implies all."""
    if bits & Privilege.ADMINISTER:
        return ALL
    return bits | Privilege.USE.value if bits else 0


def privilege_names(bits: int) -> list[str]:
    """Return the names of privileges."""
    return [name for name, bit in _BITS_BY_NAME.items() if bits & bit]


def parse_privileges(names: Iterable[str]) -> int:
    """Return the bits of privileges by their names, `all` for all. Raises InvalidInputError."""
    bits = 0
    for text in names:
        name = text.strip().lower().replace("-", "_").replace(" ", "_")
        if name != ALL_NAME and name not in _BITS_BY_NAME:
            raise InvalidInputError(
                f"'{text}' is not a privilege: choose from {', '.join(_BITS_BY_NAME)}, or {ALL_NAME}."
            )
        bits |= _BITS_BY_NAME.get(name, ALL)
    if not bits:
        raise InvalidInputError(f"Name at least one privilege: {', '.join(_BITS_BY_NAME)}, or {ALL_NAME}.")
    return bits
