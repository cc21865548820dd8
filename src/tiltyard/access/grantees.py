"""Whom privileges are granted to: principals, groups of a token's claim, roles. Written 'kind:name' in the catalog."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.model.ids import check_name
from tiltyard.model.modes import parse_mode

if TYPE_CHECKING:
    from tiltyard.model.principals import Principal


class GranteeKind(StrEnum):
    """What a grantee is."""

    PRINCIPAL = "principal"
    GROUP = "group"
    ROLE = "role"


@dataclass(frozen=True, slots=True)
class Grantee:
    """One who may be granted privileges."""

    kind: GranteeKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def of(cls, text: str) -> Grantee:
        """Read what the catalog has."""
        kind, _, name = text.partition(":")
        return cls(GranteeKind(kind), name)


def parse_grantee(name: str | None, kind: str | None) -> Grantee:
    """A grantee from a request; a principal unless said otherwise. Raises InvalidInputError."""
    if not name:
        raise InvalidInputError("Say who: the name of a principal, a group or a role.")
    return Grantee(parse_mode(GranteeKind, kind, GranteeKind.PRINCIPAL, "kind of grantee"), check_name(name))


def members(principal: Principal) -> tuple[str, ...]:
    """What a principal is besides its roles: itself, and its groups."""
    return f"principal:{principal.name}", *(f"group:{group}" for group in principal.groups)
