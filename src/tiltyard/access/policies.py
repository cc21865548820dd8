"""Row filters and column masks of a table, and their combined effect for one principal (docs/policies.md).

A policy binds all principals but the administrators of the server and the roles that it names as exempt. Several
policies combine: a row is visible where all their filters are true, and the stricter of two masks on a column applies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, PermissionDeniedError

from tiltyard.access.predicates import PredicateToken, tokenize

if TYPE_CHECKING:
    from tiltyard.model.principals import Principal
    from tiltyard.store import PolicyRecord


class MaskKind(StrEnum):
    """The kinds of masks, strictest first."""

    HIDE = "hide"
    NULL = "null"
    EXPRESSION = "expression"


@dataclass(frozen=True, slots=True)
class Mask:
    """What replaces a column's values; `expression` is SQL, for that kind alone."""

    column: str
    kind: MaskKind
    expression: str | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """A filter of rows as SQL (None: all rows), masks of columns, and the roles that it does not bind."""

    filter: str | None = None
    masks: tuple[Mask, ...] = ()
    exempt_roles: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Serialize for the catalog."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_record(cls, record: PolicyRecord) -> Policy:
        """Parse a policy of the catalog. Raises PermissionDeniedError: a policy that cannot be parsed denies all."""
        try:
            return msgspec.json.decode(record.document, type=cls)
        except msgspec.MsgspecError as error:
            raise PermissionDeniedError(
                f"The policy '{record.name}' of this table cannot be read: an administrator has to set it again."
            ) from error


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """All policies of a table that bind one principal, combined.

    `filter` is SQL with the principal bound, None for all rows; `masks` are by column.
    """

    filter: str | None
    masks: Mapping[str, Mask]

    @property
    def masked_columns(self) -> frozenset[str]:
        """The case-folded names of masked columns: Lance compares names without case."""
        return frozenset(name.casefold() for name in self.masks)


def effective_policy(
    records: Sequence[PolicyRecord], principal: Principal, roles: Sequence[str]
) -> EffectivePolicy | None:
    """Combine the policies of a table that bind a principal with these roles; None where none does.

    Raises PermissionDeniedError for a policy that cannot be parsed, or whose SQL the principal cannot be bound in.
    """
    binding = [policy for policy in map(Policy.from_record, records) if not set(policy.exempt_roles) & set(roles)]
    if not binding:
        return None
    try:
        filters = [bind_principal(policy.filter, principal) for policy in binding if policy.filter is not None]
        masks: dict[str, Mask] = {}
        for mask in (mask for policy in binding for mask in policy.masks):
            bound = _bind_mask(mask, principal)
            masks[mask.column] = _stricter(masks[mask.column], bound) if mask.column in masks else bound
    except InvalidInputError as error:
        raise PermissionDeniedError(f"A policy of this table cannot be applied to you. {error}") from error
    return EffectivePolicy(" AND ".join(f"({text})" for text in filters) or None, masks)


def _bind_mask(mask: Mask, principal: Principal) -> Mask:
    if mask.expression is None:
        return mask
    return Mask(mask.column, mask.kind, bind_principal(mask.expression, principal))


def _stricter(first: Mask, second: Mask) -> Mask:
    if first == second:
        return first
    for kind in (MaskKind.HIDE, MaskKind.NULL):
        if kind in (first.kind, second.kind):
            return Mask(first.column, kind)
    return Mask(first.column, MaskKind.NULL)  # of two expressions, each may show what the other hides


PRINCIPAL_FUNCTIONS = frozenset({"principal", "in_group"})
"""Functions of a policy's SQL alone, which `bind_principal` replaces by constants."""
_SYNTAX_FUNCTIONS = frozenset({"ceil", "floor", "overlay", "position", "substr", "substring", "trim"})
"""Functions that Lance's parser takes for syntax, which its planner refuses: in backticks they are functions."""


def bind_principal(text: str, principal: Principal) -> str:
    """Replace `principal()` and `in_group('…')` in a policy's SQL by constants for a principal, as Lance takes it.

    Raises InvalidInputError for SQL that cannot be combined with other SQL, and for a name that is no safe constant.
    """
    tokens = tokenize(text, "policy")
    parts: list[str] = []
    while tokens:
        shape = [token.kind for token in tokens[:4]]
        if tokens[0].word == "principal" and shape[1:3] == ["open", "close"]:
            parts.append(_constant(principal.name))
            del tokens[:3]
        elif tokens[0].word == "in_group" and shape[1:] == ["open", "text", "close"]:
            parts.append("true" if tokens[2].text[1:-1].replace("''", "'") in principal.groups else "false")
            del tokens[:4]
        elif tokens[0].word in _SYNTAX_FUNCTIONS and shape[1:2] == ["open"]:
            parts.append(f"`{tokens.pop(0).word}`")
        else:
            parts.append(_checked_text(tokens.pop(0)))
    return " ".join(parts)


def _checked_text(token: PredicateToken) -> str:
    if token.word in PRINCIPAL_FUNCTIONS:
        raise InvalidInputError("Write principal() without, and in_group('name') with one text between its brackets.")
    return token.text


def _constant(name: str) -> str:
    """Quote a name as a constant of SQL. Raises InvalidInputError."""
    if "\\" in name or not name.isprintable():
        raise InvalidInputError("A policy names the principal, whose name has signs that are no safe constant.")
    return "'" + name.replace("'", "''") + "'"


def policy_denial(where: str) -> LanceNamespaceError:
    """Return the error of an operation that does not enforce policies, and would show or change hidden values."""
    return PermissionDeniedError(
        f"Policies restrict your access to {where}, and this would go beyond it: ask for a role that is exempt."
    )
