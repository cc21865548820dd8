"""Operations on the policies of a table: set, list and drop them (docs/policies.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.access.needs import on_server
from tiltyard.access.policies import PRINCIPAL_FUNCTIONS, EffectivePolicy, Mask, MaskKind, Policy, bind_principal
from tiltyard.model.ids import check_name, table_id
from tiltyard.model.modes import parse_mode
from tiltyard.model.operations import operation
from tiltyard.model.privileges import Privilege
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.lance_sql.amplification import check_growth
from tiltyard.tables.lance_sql.expressions import check_expression
from tiltyard.tables.opening import find_table, open_for_reading
from tiltyard.tables.query.policy_enforcement import policy_scope

if TYPE_CHECKING:
    import lance

    from tiltyard.context import Context
    from tiltyard.store import PolicyRecord

MAX_POLICIES = 100
"""Per table, since every query combines all their filters."""


@operation(needs=on_server(Privilege.ADMINISTER))
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


@operation(needs=on_server(Privilege.ADMINISTER), changes=False)
def list_table_policies(ctx: Context, request: models.ListTablePoliciesRequest) -> models.ListTablePoliciesResponse:
    """List the policies of a table, by name. Raises NamespaceNotFoundError, TableNotFoundError."""
    return models.ListTablePoliciesResponse(policies=_list_policies(ctx, find_table(ctx, request.id).id))


@operation(needs=on_server(Privilege.ADMINISTER))
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
    roles = tuple(dict.fromkeys(request.exempt_roles or ()))
    for role in roles:
        if not ctx.store.has_role(role):
            raise InvalidInputError(f"There is no role '{role}': create it first.")
    return Policy(request.filter, masks, roles)


def _parse_mask(entry: models.ColumnMask) -> Mask:
    kind = parse_mode(MaskKind, entry.mask, MaskKind.HIDE, "kind of mask")
    if (entry.expression is not None) != (kind is MaskKind.EXPRESSION):
        raise InvalidInputError("A mask has an 'expression' where its kind is expression, and only there.")
    return Mask(entry.column, kind, entry.expression)


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
