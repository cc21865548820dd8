"""Operations on policies, of a table and by a classification: set, list and drop them (docs/policies.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.access.needs import ADMINISTRATORS
from tiltyard.access.policies import (
    PRINCIPAL_FUNCTIONS,
    ClassificationPolicy,
    EffectivePolicy,
    Mask,
    MaskKind,
    Policy,
    bind_principal,
    bind_value,
)
from tiltyard.model.classifications import check_key, check_value
from tiltyard.model.ids import check_name, table_id
from tiltyard.model.modes import parse_mode
from tiltyard.model.operations import operation
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.lance_sql.amplification import check_growth
from tiltyard.tables.lance_sql.expressions import check_expression
from tiltyard.tables.opening import find_table, open_for_reading
from tiltyard.tables.query.policy_enforcement import policy_scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.store import PolicyRecord


MAX_POLICIES = 100
"""Per table, since every query combines all their filters."""
MAX_CLASSIFICATION_POLICIES = 100
"""Of the catalog, since each is looked at for each table that a principal reads."""
_COLUMN = "classified"
"""A column's name, in the place of value() where the SQL of a policy is checked."""


@operation(needs=ADMINISTRATORS)
def set_table_policy(ctx: Context, request: models.SetTablePolicyRequest) -> models.SetTablePolicyResponse:
    """Set a row filter and column masks that bind all callers but administrators and exempt roles.

    A policy of the same name is replaced. It is planned on the table's latest version first. Raises
    NamespaceNotFoundError, TableNotFoundError, InvalidTableStateError (no data yet: there are no columns),
    TableColumnNotFoundError, InvalidInputError (invalid SQL, an unknown role, a policy that does nothing).
    """
    table = open_for_reading(ctx, request.id)
    policy = _parse_policy(ctx, request)
    _check_policy(ctx, table.dataset, policy)
    name = check_name(request.name, "policy")
    names = [record.name for record in ctx.store.policies(table.record.id)]
    if len(names) >= MAX_POLICIES and name not in names:
        raise InvalidInputError(f"A table has {MAX_POLICIES} policies at most: join some of them.")
    ctx.store.set_policy(table.record.id, name, policy.to_json(), ctx.principal.name)
    ctx.rights_cache.refresh_next()
    return models.SetTablePolicyResponse(policies=_list_policies(ctx, table.record.id))


@operation(needs=ADMINISTRATORS, changes=False)
def list_table_policies(ctx: Context, request: models.ListTablePoliciesRequest) -> models.ListTablePoliciesResponse:
    """List the policies of a table, by name. Raises NamespaceNotFoundError, TableNotFoundError."""
    return models.ListTablePoliciesResponse(policies=_list_policies(ctx, find_table(ctx, request.id).id))


@operation(needs=ADMINISTRATORS)
def drop_table_policy(ctx: Context, request: models.DropTablePolicyRequest) -> models.DropTablePolicyResponse:
    """Drop a policy: callers that it bound see what it has hidden. Raises …NotFoundError, InvalidInputError."""
    record = find_table(ctx, request.id)
    if not ctx.store.drop_policy(record.id, request.name):
        raise InvalidInputError(f"The table {table_id(request.id)} has no policy '{request.name}'.")
    ctx.rights_cache.refresh_next()
    return models.DropTablePolicyResponse(policies=_list_policies(ctx, record.id))


def _parse_policy(ctx: Context, request: models.SetTablePolicyRequest) -> Policy:
    """Parse the policy of a request. Raises InvalidInputError."""
    masks = tuple(_parse_mask(entry) for entry in request.masks or ())
    if len({mask.column for mask in masks}) < len(masks):
        raise InvalidInputError("A policy masks each column once.")
    if request.filter is None and not masks:
        raise InvalidInputError("A policy has a filter, or masks, or both.")
    return Policy(request.filter, masks, _check_exempt_roles(ctx, request.exempt_roles))


def _check_exempt_roles(ctx: Context, names: Sequence[str] | None) -> tuple[str, ...]:
    """Return the roles that a policy does not bind, each once. Raises InvalidInputError for one that there is not."""
    roles = tuple(dict.fromkeys(names or ()))
    for role in roles:
        if not ctx.store.has_role(role):
            raise InvalidInputError(f"There is no role '{role}': create it first.")
    return roles


def _parse_mask(entry: models.ColumnMask) -> Mask:
    kind = parse_mode(MaskKind, entry.mask, MaskKind.HIDE, "kind of mask")
    _check_mask(kind, entry.expression)
    return Mask(entry.column, kind, entry.expression)


def _check_mask(kind: MaskKind | None, expression: str | None) -> None:
    if (expression is not None) != (kind is MaskKind.EXPRESSION):
        raise InvalidInputError("A mask has an 'expression' where its kind is expression, and only there.")


def _check_policy(ctx: Context, dataset: lance.LanceDataset, policy: Policy) -> None:
    """Plan queries under the policy, bound to the caller. Raises InvalidInputError, TableColumnNotFoundError."""
    for mask in policy.masks:
        if mask.column not in dataset.schema.names or "`" in mask.column:
            raise InvalidInputError(f"There is no column '{mask.column}' to mask: name one of the table's own.")
    policy_scope(dataset, EffectivePolicy(None, {mask.column: mask for mask in policy.masks}))
    with lance_errors(dataset):
        if policy.filter is not None:
            check_expression(policy.filter, "filter of the policy", PRINCIPAL_FUNCTIONS)
            dataset.scanner(
                columns=[], with_row_id=True, filter=bind_principal(policy.filter, ctx.principal)
            ).explain_plan()
        for mask in policy.masks:
            if mask.expression is not None:
                check_growth(
                    {f"mask of '{mask.column}'": check_expression(mask.expression, "mask", PRINCIPAL_FUNCTIONS)},
                    is_output=True,
                )
                columns = {mask.column: bind_principal(mask.expression, ctx.principal)}
                dataset.scanner(columns=columns, with_row_id=True, limit=1).explain_plan()


def _list_policies(ctx: Context, record_id: int) -> list[models.TablePolicy]:
    return [_to_model(record) for record in ctx.store.policies(record_id)]


def _to_model(record: PolicyRecord) -> models.TablePolicy:
    policy = Policy.from_record(record)
    return models.TablePolicy(
        name=record.name,
        filter=policy.filter,
        masks=[
            models.ColumnMask(column=mask.column, mask=mask.kind.value, expression=mask.expression)
            for mask in policy.masks
        ],
        exempt_roles=list(policy.exempt_roles),
        set_by=record.set_by,
        set_at_millis=record.set_at,
    )


@operation(needs=ADMINISTRATORS)
def set_classification_policy(
    ctx: Context, request: models.SetClassificationPolicyRequest
) -> models.SetClassificationPolicyResponse:
    """Set a mask, a row filter or both for all that has a key, with a value if one is named, on all tables.

    It binds all callers but administrators and exempt roles. A policy of the same name is replaced. Raises
    InvalidInputError (invalid SQL, an unknown role, a policy that does nothing, too many).
    """
    policy, name = _parse_classification_policy(ctx, request), check_name(request.name, "policy")
    names = [record.name for record in ctx.store.classification_policies()]
    if len(names) >= MAX_CLASSIFICATION_POLICIES and name not in names:
        raise InvalidInputError(f"A catalog has {MAX_CLASSIFICATION_POLICIES} policies by classifications at most.")
    ctx.store.set_classification_policy(name, policy.to_json(), ctx.principal.name)
    ctx.rights_cache.refresh_next()
    return models.SetClassificationPolicyResponse(policies=_list_classification_policies(ctx))


@operation(needs=ADMINISTRATORS, changes=False)
def list_classification_policies(
    ctx: Context, request: models.ListClassificationPoliciesRequest
) -> models.ListClassificationPoliciesResponse:
    """List the policies by classifications, by name."""
    return models.ListClassificationPoliciesResponse(policies=_list_classification_policies(ctx))


@operation(needs=ADMINISTRATORS)
def drop_classification_policy(
    ctx: Context, request: models.DropClassificationPolicyRequest
) -> models.DropClassificationPolicyResponse:
    """Drop a policy by a classification: callers that it bound see what it has hidden. Raises InvalidInputError."""
    if not ctx.store.drop_classification_policy(request.name):
        raise InvalidInputError(f"There is no policy by a classification '{request.name}': list them.")
    ctx.rights_cache.refresh_next()
    return models.DropClassificationPolicyResponse(policies=_list_classification_policies(ctx))


def _parse_classification_policy(ctx: Context, request: models.SetClassificationPolicyRequest) -> ClassificationPolicy:
    """Parse the policy of a request. Raises InvalidInputError."""
    key = check_key(request.key)
    value = None if request.value is None else check_value(request.value)
    kind = None if request.mask is None else parse_mode(MaskKind, request.mask, MaskKind.HIDE, "kind of mask")
    _check_mask(kind, request.expression)
    if request.filter is None and kind is None:
        raise InvalidInputError("A policy by a classification has a filter, a mask, or both.")
    for label, text in (("filter", request.filter), ("mask", request.expression)):
        if text is not None:
            _check_sql(ctx, text, f"{label} of the policy")
    roles = _check_exempt_roles(ctx, request.exempt_roles)
    return ClassificationPolicy(key, value, request.filter, kind, request.expression, roles)


def _check_sql(ctx: Context, text: str, label: str) -> None:
    """Check SQL as far as can be known without a table. Raises InvalidInputError."""
    named = bind_value(text, _COLUMN)
    check_growth({label: check_expression(named, label, PRINCIPAL_FUNCTIONS)}, is_output=True)
    bind_principal(named, ctx.principal)


def _list_classification_policies(ctx: Context) -> list[models.ClassificationPolicy]:
    return [_to_classification_policy(record) for record in ctx.store.classification_policies()]


def _to_classification_policy(record: PolicyRecord) -> models.ClassificationPolicy:
    policy = ClassificationPolicy.from_record(record)
    return models.ClassificationPolicy(
        name=record.name,
        key=policy.key,
        value=policy.value,
        filter=policy.filter,
        mask=None if policy.kind is None else policy.kind.value,
        expression=policy.expression,
        exempt_roles=list(policy.exempt_roles),
        set_by=record.set_by,
        set_at_millis=record.set_at,
    )
