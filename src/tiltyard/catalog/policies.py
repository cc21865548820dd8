"""Policies of tables: set, list, drop (docs/policies.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lance_namespace.errors import InvalidInputError

from tiltyard.access import Privilege
from tiltyard.access.needs import on_server
from tiltyard.access.policies import FILLED, Mask, MaskKind, Narrowing, Policy, filled
from tiltyard.model.ids import check_name, table_id
from tiltyard.model.modes import parse_mode
from tiltyard.model.operations import operation
from tiltyard.model.spec import models
from tiltyard.storage.errors import lance_errors
from tiltyard.tables.opening import find_table, open_for_reading
from tiltyard.tables.query.policy_enforcement import policy_scope
from tiltyard.tables.sql.amplification import check_growth
from tiltyard.tables.sql.expressions import check_expression

if TYPE_CHECKING:
    import lance

    from tiltyard.context import Context
    from tiltyard.store import PolicyRecord

MOST_POLICIES = 100
"""On one table: their filters are joined in every query."""


@operation(needs=on_server(Privilege.ADMINISTER))
def set_table_policy(ctx: Context, request: models.SetTablePolicyRequest) -> models.SetTablePolicyResponse:
    """Narrow a table for everybody but administrators and exempt roles: a filter of its rows, masks of its columns.

    A policy of the same name is replaced. It is tried on the table as it is. Raises NamespaceNotFoundError,
    TableNotFoundError, InvalidTableStateError (no data yet: there are no columns), TableColumnNotFoundError,
    InvalidInputError (SQL or a role that cannot be, a policy that does nothing).
    """
    table = open_for_reading(ctx, request.id)
    policy = _policy(ctx, request)
    _check(ctx, table.dataset, policy)
    name = check_name(request.name, "policy")
    known = [record.name for record in ctx.store.policies(table.record.id)]
    if len(known) >= MOST_POLICIES and name not in known:
        raise InvalidInputError(f"A table has {MOST_POLICIES} policies at most: join some of them.")
    ctx.store.set_policy(table.record.id, name, policy.document(), ctx.principal.name)
    ctx.access.changed()
    return models.SetTablePolicyResponse(policies=_listed(ctx, table.record.id))


@operation(needs=on_server(Privilege.ADMINISTER), changes=False)
def list_table_policies(ctx: Context, request: models.ListTablePoliciesRequest) -> models.ListTablePoliciesResponse:
    """List the policies of a table, by name. Raises NamespaceNotFoundError, TableNotFoundError."""
    return models.ListTablePoliciesResponse(policies=_listed(ctx, find_table(ctx, request.id).id))


@operation(needs=on_server(Privilege.ADMINISTER))
def drop_table_policy(ctx: Context, request: models.DropTablePolicyRequest) -> models.DropTablePolicyResponse:
    """Drop a policy: those whom it bound see what it kept from them. Raises …NotFoundError, InvalidInputError."""
    record = find_table(ctx, request.id)
    if not ctx.store.drop_policy(record.id, request.name):
        raise InvalidInputError(f"The table {'$'.join(table_id(request.id))} has no policy '{request.name}'.")
    ctx.access.changed()
    return models.DropTablePolicyResponse(policies=_listed(ctx, record.id))


def _policy(ctx: Context, request: models.SetTablePolicyRequest) -> Policy:
    """The policy of a request. Raises InvalidInputError."""
    masks = tuple(_mask(entry) for entry in request.masks or ())
    if len({mask.column for mask in masks}) < len(masks):
        raise InvalidInputError("A policy masks each column once.")
    if request.filter is None and not masks:
        raise InvalidInputError("A policy has a filter, or masks, or both.")
    roles = tuple(dict.fromkeys(request.exempt_roles or ()))
    for role in roles:
        if not ctx.store.has_role(role):
            raise InvalidInputError(f"There is no role '{role}': create it first.")
    return Policy(request.filter, masks, roles)


def _mask(entry: models.ColumnMask) -> Mask:
    kind = parse_mode(MaskKind, entry.mask, MaskKind.HIDE, "kind of mask")
    if (entry.expression is not None) != (kind is MaskKind.EXPRESSION):
        raise InvalidInputError("A mask has an 'expression' where its kind is expression, and only there.")
    return Mask(entry.column, kind, entry.expression)


def _check(ctx: Context, dataset: lance.LanceDataset, policy: Policy) -> None:
    """Plan what the policy says, for whoever sets it. Raises InvalidInputError, TableColumnNotFoundError."""
    for mask in policy.masks:
        if mask.column not in dataset.schema.names or "`" in mask.column:
            raise InvalidInputError(f"There is no column '{mask.column}' to mask: name one of the table's own.")
    policy_scope(dataset, Narrowing(None, {mask.column: mask for mask in policy.masks}))
    with lance_errors(dataset):
        if policy.filter is not None:
            check_expression(policy.filter, "filter of the policy", FILLED)
            dataset.scanner(columns=[], with_row_id=True, filter=filled(policy.filter, ctx.principal)).explain_plan()
        for mask in policy.masks:
            if mask.expression is not None:
                check_growth(
                    {f"mask of '{mask.column}'": check_expression(mask.expression, "mask", FILLED)}, is_output=True
                )
                shown = {mask.column: filled(mask.expression, ctx.principal)}
                dataset.scanner(columns=shown, with_row_id=True, limit=1).explain_plan()


def _listed(ctx: Context, record_id: int) -> list[models.TablePolicy]:
    return [_told(record) for record in ctx.store.policies(record_id)]


def _told(record: PolicyRecord) -> models.TablePolicy:
    policy = Policy.of(record)
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
