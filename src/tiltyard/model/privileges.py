"""The privileges: what may be granted on the server, a namespace (and so on all below it) or a table."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntFlag

from lance_namespace.errors import InvalidInputError


class Privilege(IntFlag):
    """One bit each, as the catalog keeps them: never renumber."""

    USE = 1
    READ = 2
    WRITE = 4
    ALTER = 8
    CREATE = 16
    DROP = 32
    MANAGE_GRANTS = 64
    RUN_UDFS = 128
    ADMINISTER = 256


ALL = 511
EVERY_WORD = "all"
"""Stands for all privileges in requests."""

_WORDS = {privilege.name.lower(): int(privilege) for privilege in Privilege if privilege.name}


def implied(bits: int) -> int:
    """What granted bits amount to: any of them lets one see, `administer` is all of them."""
    if bits & Privilege.ADMINISTER:
        return ALL
    return bits | Privilege.USE.value if bits else 0


def words(bits: int) -> list[str]:
    """The names of privileges."""
    return [word for word, bit in _WORDS.items() if bits & bit]


def parse_privileges(given: Iterable[str]) -> int:
    """The bits of privileges by their names, `all` for all. Raises InvalidInputError for another name, or none."""
    bits = 0
    for text in given:
        word = text.strip().lower().replace("-", "_").replace(" ", "_")
        if word != EVERY_WORD and word not in _WORDS:
            raise InvalidInputError(f"'{text}' is no privilege: choose from {', '.join(_WORDS)}, or {EVERY_WORD}.")
        bits |= _WORDS.get(word, ALL)
    if not bits:
        raise InvalidInputError(f"Name at least one privilege: {', '.join(_WORDS)}, or {EVERY_WORD}.")
    return bits
