"""Policies of a table: which rows and columns it has for those whom they bind (docs/policies.md).

A policy binds everybody but the administrators of the server and the roles that it names as exempt. Several bind
together: a row is seen that all their filters let through, and of two masks on a column the stricter one counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, PermissionDeniedError

from tiltyard.access.predicates import Token, tokens

if TYPE_CHECKING:
    from tiltyard.model.principals import Principal
    from tiltyard.store import PolicyRecord


class MaskKind(StrEnum):
    """What is shown of a column, strictest first."""

    HIDE = "hide"
    NULL = "null"
    EXPRESSION = "expression"


@dataclass(frozen=True, slots=True)
class Mask:
    """What is shown instead of a column; `expression` is SQL, for that kind alone."""

    column: str
    kind: MaskKind
    expression: str | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """A filter of rows as SQL (None: all rows), masks of columns, and the roles that it does not bind."""

    filter: str | None = None
    masks: tuple[Mask, ...] = ()
    exempt_roles: tuple[str, ...] = ()

    def document(self) -> str:
        """As the catalog keeps it."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def of(cls, record: PolicyRecord) -> Policy:
        """Read what the catalog has. Raises PermissionDeniedError: what cannot be read shows nothing."""
        try:
            return msgspec.json.decode(record.document, type=cls)
        except msgspec.MsgspecError as error:
            raise PermissionDeniedError(
                f"The policy '{record.name}' of this table cannot be read: an administrator has to set it again."
            ) from error


@dataclass(frozen=True, slots=True)
class Narrowing:
    """What binds one principal on one table: `filter` is SQL with the principal put in, None for all rows."""

    filter: str | None
    masks: Mapping[str, Mask]

    @property
    def masked(self) -> frozenset[str]:
        """The names of masked columns, for comparing them without case, as Lance does."""
        return frozenset(name.casefold() for name in self.masks)


def narrowing(records: Sequence[PolicyRecord], principal: Principal, roles: Sequence[str]) -> Narrowing | None:
    """What policies leave of a table for a principal with these roles; None where none binds it.

    Raises PermissionDeniedError for a policy that cannot be read, or not be filled in.
    """
    binding = [policy for policy in map(Policy.of, records) if not set(policy.exempt_roles) & set(roles)]
    if not binding:
        return None
    try:
        filters = [filled(policy.filter, principal) for policy in binding if policy.filter is not None]
        masks: dict[str, Mask] = {}
        for mask in (mask for policy in binding for mask in policy.masks):
            own = _filled_mask(mask, principal)
            masks[mask.column] = _stricter(masks[mask.column], own) if mask.column in masks else own
    except InvalidInputError as error:
        raise PermissionDeniedError(f"A policy of this table cannot be applied to you. {error}") from error
    return Narrowing(" AND ".join(f"({text})" for text in filters) or None, masks)


def _filled_mask(mask: Mask, principal: Principal) -> Mask:
    if mask.expression is None:
        return mask
    return Mask(mask.column, mask.kind, filled(mask.expression, principal))


def _stricter(one: Mask, other: Mask) -> Mask:
    if one == other:
        return one
    for kind in (MaskKind.HIDE, MaskKind.NULL):
        if kind in (one.kind, other.kind):
            return Mask(one.column, kind)
    return Mask(one.column, MaskKind.NULL)  # two expressions: neither has the right to show what the other hides


FILLED = frozenset({"principal", "in_group"})
"""What a policy's SQL may call besides the functions of requests: `filled` puts constants in their place."""


def filled(text: str, principal: Principal) -> str:
    """A policy's SQL with `principal()` and `in_group('…')` put in for somebody, as constants.

    Raises InvalidInputError for SQL that cannot be put beside another, and for a name that is no safe constant.
    """
    left = tokens(text, "policy")
    made: list[str] = []
    while left:
        shape = [token.kind for token in left[:4]]
        if left[0].word == "principal" and shape[1:3] == ["open", "close"]:
            made.append(_constant(principal.name))
            del left[:3]
        elif left[0].word == "in_group" and shape[1:] == ["open", "text", "close"]:
            made.append("true" if left[2].text[1:-1].replace("''", "'") in principal.groups else "false")
            del left[:4]
        else:
            made.append(_known(left.pop(0)))
    return " ".join(made)


def _known(token: Token) -> str:
    if token.word in FILLED:
        raise InvalidInputError("Write principal() without, and in_group('name') with one text between its brackets.")
    return token.text


def _constant(name: str) -> str:
    """A name as a constant of SQL."""
    if "\\" in name or not name.isprintable():
        raise InvalidInputError("A policy names the principal, whose name has signs that are no safe constant.")
    return "'" + name.replace("'", "''") + "'"


def refusal(where: str) -> LanceNamespaceError:
    """The error of an operation that is not narrowed: it would show, or change, more than one may see."""
    return PermissionDeniedError(
        f"Policies narrow what you have of {where}, and this would go beyond it: ask for a role that is exempt."
    )
