"""Row filters and column masks, of a table or by a classification, and their combined effect for one principal.

A policy binds all principals but the administrators of the server and the roles that it names as exempt. Several
policies combine: a row is visible where all their filters are true, and the stricter of two masks on a column applies
(docs/policies.md). One by a classification holds for each column classified as it says, on every table; which columns
of a table these are is known by a version of it, since columns are renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Self

import msgspec
from lance_namespace.errors import InvalidInputError, LanceNamespaceError, PermissionDeniedError

from tiltyard.access.classifications import TableClassifications, identities_in, is_column
from tiltyard.access.predicates import PredicateToken, tokenize
from tiltyard.model.columns.lineage import ANY_COLUMN
from tiltyard.model.columns.vector_columns import quote_path
from tiltyard.model.schemas.nested_types import is_text

if TYPE_CHECKING:
    import lance

    from tiltyard.model.principals import Principal
    from tiltyard.store import ClassifiedColumn, PolicyRecord
    from tiltyard.store.access.classifications import Identity


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


class _StoredPolicy:
    """What all policies of the catalog have: their JSON, and the roles that they do not bind."""

    __slots__ = ()
    kind_of_policy = ""
    """Which policy it is, in the message of an error."""
    exempt_roles: tuple[str, ...]

    def to_json(self) -> str:
        """Serialize for the catalog."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def binding(cls, records: Iterable[PolicyRecord], roles: Sequence[str]) -> list[Self]:
        """Return the policies that bind a principal with these roles. Raises PermissionDeniedError (`from_record`)."""
        return [policy for policy in map(cls.from_record, records) if not set(policy.exempt_roles) & set(roles)]

    @classmethod
    def from_record(cls, record: PolicyRecord) -> Self:
        """Parse a policy of the catalog. Raises PermissionDeniedError: a policy that cannot be parsed denies all."""
        try:
            return msgspec.json.decode(record.document, type=cls)
        except msgspec.MsgspecError as error:
            raise PermissionDeniedError(
                f"The policy '{record.name}' {cls.kind_of_policy} cannot be read: an administrator has to set it again."
            ) from error


@dataclass(frozen=True, slots=True)
class Policy(_StoredPolicy):
    """A filter of rows as SQL (None: all rows), masks of columns, and the roles that it does not bind."""

    kind_of_policy = "of this table"
    filter: str | None = None
    masks: tuple[Mask, ...] = ()
    exempt_roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClassificationPolicy(_StoredPolicy):
    """What those whom it binds see of what has a key, with `value` or, where that is None, with any.

    A `filter` of rows, a mask (`kind`, with an `expression` for that kind alone), or both. In both `value()` is the
    classified column; a filter without it counts where the table or one of its columns is so classified.
    """

    kind_of_policy = "by a classification"
    key: str
    value: str | None = None
    filter: str | None = None
    kind: MaskKind | None = None
    expression: str | None = None
    exempt_roles: tuple[str, ...] = ()

    def is_about(self, value: str) -> bool:
        """Return whether it is about a value of its key."""
        return self.value in (None, value)


@dataclass(frozen=True, slots=True)
class ClassifiedRule:
    """A policy by a classification, bound to a principal and a table, whose columns a version of the table has.

    `own` are the columns that have the key themselves, and whether they have the policy's value; `derived` the
    case-folded names of columns that inherit it from what they were made of, with ANY_COLUMN for each one; with
    `is_for_all` the table has it, so each other column inherits it. `filter`, `kind` and `expression` are those of the
    policy.
    """

    own: tuple[tuple[ClassifiedColumn, bool], ...]
    derived: tuple[str, ...]
    is_for_all: bool
    filter: str | None
    kind: MaskKind | None
    expression: str | None


@dataclass(frozen=True, slots=True)
class EffectivePolicy:
    """All policies of a table that bind one principal, combined.

    `filter` is SQL with the principal bound, None for all rows; `masks` are by column. Which columns `rules` are about,
    a version of the table decides (`policy_on`).
    """

    filter: str | None
    masks: Mapping[str, Mask]
    rules: tuple[ClassifiedRule, ...] = ()

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
    binding = Policy.binding(records, roles)
    if not binding:
        return None
    try:
        filters = [bind_principal(policy.filter, principal) for policy in binding if policy.filter is not None]
        masks: dict[str, Mask] = {}
        for mask in (mask for policy in binding for mask in policy.masks):
            bound = _bind_mask(mask, principal)
            masks[mask.column] = stricter_mask(masks[mask.column], bound) if mask.column in masks else bound
    except InvalidInputError as error:
        raise PermissionDeniedError(f"A policy of this table cannot be applied to you. {error}") from error
    return EffectivePolicy(" AND ".join(f"({text})" for text in filters) or None, masks)


def _bind_mask(mask: Mask, principal: Principal) -> Mask:
    if mask.expression is None:
        return mask
    return Mask(mask.column, mask.kind, bind_principal(mask.expression, principal))


def stricter_mask(first: Mask, second: Mask) -> Mask:
    """Return the mask of a column for which two policies have one."""
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


VALUE_FUNCTION = "value"
"""The function of a policy's SQL that stands for the column which is classified."""
_UNQUOTABLE = frozenset("`.\\\0")
"""Signs in names that no SQL of policies takes."""
_NO_FIELD = -1
"""No field of Lance's has this id."""


def binding_policies(
    records: Iterable[PolicyRecord], principal: Principal, roles: Sequence[str]
) -> tuple[ClassificationPolicy, ...]:
    """Return the policies that bind a principal with these roles, with it bound in their SQL.

    Raises PermissionDeniedError for one that cannot be parsed, or that the principal cannot be bound in.
    """
    try:
        return tuple(_bind(policy, principal) for policy in ClassificationPolicy.binding(records, roles))
    except InvalidInputError as error:
        raise PermissionDeniedError(f"A policy by a classification cannot be applied to you. {error}") from error


def _bind(policy: ClassificationPolicy, principal: Principal) -> ClassificationPolicy:
    texts = (None if text is None else bind_principal(text, principal) for text in (policy.filter, policy.expression))
    row_filter, expression = texts
    return replace(policy, filter=row_filter, expression=expression)


def rules_on(policies: Iterable[ClassificationPolicy], table: TableClassifications) -> Iterator[ClassifiedRule]:
    """Yield what policies say of a table, of those that are about something in it."""
    for policy in policies:
        own = tuple(
            (column, policy.is_about(by_key[policy.key].value))
            for column, by_key in table.columns.items()
            if policy.key in by_key
        )
        inherited = table.inherited.get(policy.key)
        is_for_all = inherited is not None and policy.is_about(inherited.value)
        derived = {
            name.casefold()
            for name, key, value in table.derived
            if value is None or (key == policy.key and policy.is_about(value))
        }
        if is_for_all or derived or any(is_meant for _, is_meant in own):
            yield ClassifiedRule(own, tuple(sorted(derived)), is_for_all, policy.filter, policy.kind, policy.expression)


def with_rules(policy: EffectivePolicy | None, rules: Sequence[ClassifiedRule]) -> EffectivePolicy | None:
    """Return a table's policy with rules besides; None where there is neither."""
    if not rules:
        return policy
    return replace(policy or EffectivePolicy(None, {}), rules=tuple(rules))


@dataclass(frozen=True, slots=True)
class _Column:
    """A column of a version: its name, whether it is of text, and the identities of its field and of those in it."""

    name: str
    is_text: bool
    identity: Identity
    inner: tuple[Identity, ...]


def policy_on(policy: EffectivePolicy, dataset: lance.LanceDataset) -> EffectivePolicy:
    """Return a policy whose rules are filters and masks of the columns of a version."""
    if not policy.rules:
        return policy
    schema, columns = dataset.schema, list[_Column]()
    for each in dataset.lance_schema.fields():
        top, *inner = identities_in(each)
        columns.append(_Column(each.name(), is_text(schema.field(each.name()).type), top, tuple(inner)))
    return _resolve(policy, columns)


def policy_by_names(policy: EffectivePolicy, names: Iterable[str]) -> EffectivePolicy:
    """Return the same as far as the names of columns tell, to be shown: nothing is enforced by it."""
    if not policy.rules:
        return policy
    own = {column.path for rule in policy.rules for column, _ in rule.own if column.path is not None}
    columns = []
    for name in names:
        top = quote_path((name,))
        inner = tuple((_NO_FIELD, path) for path in sorted(own) if path.casefold().startswith(f"{top.casefold()}."))
        columns.append(_Column(name, True, (_NO_FIELD, top), inner))
    return _resolve(policy, columns)


def _resolve(policy: EffectivePolicy, columns: Sequence[_Column]) -> EffectivePolicy:
    filters, masks = [policy.filter] if policy.filter is not None else [], dict(policy.masks)
    for rule in policy.rules:
        meant = [column for column in columns if _is_meant(rule, column)]
        filters += _filters(rule, [column.name for column in meant])
        for column in meant:
            if (mask := _mask(rule, column)) is not None:
                masks[mask.column] = stricter_mask(masks.get(mask.column, mask), mask)
    combined = " AND ".join(f"({text})" for text in dict.fromkeys(filters))
    return EffectivePolicy(combined or None, masks)


def _is_meant(rule: ClassifiedRule, column: _Column) -> bool:
    """Return whether a rule is about a column, or a field in it.

    What is set on the column itself decides about it alone; a field in it can have more.
    """
    if any(is_meant and is_column(each, field) for field in column.inner for each, is_meant in rule.own):
        return True
    own = [is_meant for each, is_meant in rule.own if is_column(each, column.identity)]
    if own:
        return any(own)
    return rule.is_for_all or bool({column.name.casefold(), ANY_COLUMN}.intersection(rule.derived))


def _filters(rule: ClassifiedRule, columns: Sequence[str]) -> list[str]:
    """Return the filters of a rule. Raises PermissionDeniedError for a column that SQL cannot name."""
    if rule.filter is None:
        return []
    if not names_value(rule.filter):
        return [rule.filter] if rule.is_for_all or columns else []
    if any(_UNQUOTABLE & set(name) for name in columns):
        raise PermissionDeniedError("A policy filters rows by a column whose name has a sign that no filter takes.")
    return [bind_value(rule.filter, name) for name in columns]


def _mask(rule: ClassifiedRule, column: _Column) -> Mask | None:
    """Return the mask of a column; an expression is one of text: columns of other types are null."""
    if rule.kind is not MaskKind.EXPRESSION:
        return None if rule.kind is None else Mask(column.name, rule.kind)
    if not column.is_text or rule.expression is None or _UNQUOTABLE & set(column.name):
        return Mask(column.name, MaskKind.NULL)
    return Mask(column.name, MaskKind.EXPRESSION, bind_value(rule.expression, column.name))


def names_value(text: str) -> bool:
    """Return whether a policy's SQL calls value(). Raises InvalidInputError for SQL that no policy takes."""
    tokens = tokenize(text, "policy")
    return any(token.word == VALUE_FUNCTION and after.kind == "open" for token, after in pairwise(tokens))


def bind_value(text: str, column: str) -> str:
    """Replace `value()` in a policy's SQL by the name of a column. Raises InvalidInputError."""
    tokens, parts = tokenize(text, "policy"), list[str]()
    while tokens:
        if tokens[0].word == VALUE_FUNCTION and [token.kind for token in tokens[1:3]] == ["open", "close"]:
            parts.append(f"`{column}`")
            del tokens[:3]
        elif tokens[0].word == VALUE_FUNCTION and [token.kind for token in tokens[1:2]] == ["open"]:
            raise InvalidInputError("Write value() with nothing between its brackets.")
        else:
            parts.append(tokens.pop(0).text)
    return " ".join(parts)
