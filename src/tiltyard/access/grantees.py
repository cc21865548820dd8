"""Grantees of privileges: principals, groups of a token's claim, and roles; stored as 'kind:name' in the catalog."""

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
    """The kinds of grantees."""

    PRINCIPAL = "principal"
    GROUP = "group"
    ROLE = "role"


@dataclass(frozen=True, slots=True)
class Grantee:
    """A principal, group or role that privileges are granted to."""

    kind: GranteeKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    @classmethod
    def from_text(cls, text: str) -> Grantee:
        """Parse a grantee as the catalog stores it."""
        kind, _, name = text.partition(":")
        return cls(GranteeKind(kind), name)


def parse_grantee(name: str | None, kind: str | None) -> Grantee:
    """Return the grantee of a request; a principal where no kind is named. Raises InvalidInputError."""
    if not name:
        raise InvalidInputError("Name the grantee: a principal, a group or a role.")
    return Grantee(parse_mode(GranteeKind, kind, GranteeKind.PRINCIPAL, "kind of grantee"), check_name(name))


def principal_grantees(principal: Principal) -> tuple[str, ...]:
    """Return the grantees that a principal is: itself and its groups; its roles are looked up by these."""
    return f"principal:{principal.name}", *(f"group:{group}" for group in principal.groups)
