"""Calls that need the approval of a second principal: list them, approve or deny one (see `access/approvals`)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from lance_namespace.errors import PermissionDeniedError

from tiltyard.access.authorization import caller_rights, require_decision
from tiltyard.access.filtered_lists import fetch_allowed
from tiltyard.access.needs import ANY_CALLER
from tiltyard.model.operations import Needs, operation
from tiltyard.model.paging import fetch_chosen
from tiltyard.model.principals import Privilege, with_implied
from tiltyard.model.spec import models
from tiltyard.store import Approval
from tiltyard.store.access.grants import NAMESPACE, SERVER, TABLE
from tiltyard.store.approvals import approval_not_found

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tiltyard.context import Context


def _privileges(ctx: Context, approval: Approval) -> int:
    """Return the caller's privileges on the object of a call, as bits."""
    if ctx.principal.administrator:
        return with_implied(Privilege.ADMINISTER.value)
    rights = caller_rights(ctx)
    if approval.object_kind == TABLE:
        return rights.on_table(approval.object_id, approval.namespace_id)
    return rights.on_namespace(approval.object_id) if approval.object_kind == NAMESPACE else rights.server


def _decide(ctx: Context, request: models.DecideApprovalRequest) -> Context:
    """Check that the caller may decide. Raises TransactionNotFoundError, PermissionDeniedError."""
    approval = ctx.store.find_approval(request.approval_id)
    bits = _privileges(ctx, approval)
    if not bits & Privilege.APPROVE:
        if not bits and approval.requested_by != ctx.principal.name:
            raise approval_not_found(request.approval_id)
        raise PermissionDeniedError("This needs approve on the object of the call: ask for a grant of it.")
    if (path := ctx.store.object_path(approval.object_kind, approval.object_id)) is not None:
        require_decision(ctx, approval.object_kind, path, Privilege.APPROVE.value)
    return ctx


DECIDE_APPROVAL = Needs("`approve` on the object of the call, and to be another principal than its caller", _decide)


@operation(needs=DECIDE_APPROVAL, while_read_only=True)
def decide_approval(ctx: Context, request: models.DecideApprovalRequest) -> models.DecideApprovalResponse:
    """Approve a call, which its caller then sends once more, or deny it.

    Raises TransactionNotFoundError (no request has the id), PermissionDeniedError (the caller's own), InvalidInputError
    (decided, used or expired already).
    """
    decided = ctx.store.decide_approval(request.approval_id, ctx.principal.name, approved=request.approved)
    return models.DecideApprovalResponse(approval=_to_entry(ctx, decided))


@operation(needs=ANY_CALLER, changes=False)
def list_approvals(ctx: Context, request: models.ListApprovalsRequest) -> models.ListApprovalsResponse:
    """List calls that need approval, or needed it, newest first: the caller's own, and those that it may decide.

    Raises InvalidInputError.
    """

    def fetch(before: tuple[int, str] | None, count: int) -> list[Approval]:
        return fetch_chosen(ctx.store.list_approvals, before, count, _key_of, partial(filter, partial(_sees, ctx)))

    def object_of(each: Approval) -> tuple[str, Sequence[str]] | None:
        path = ctx.store.object_path(each.object_kind, each.object_id)
        return None if path is None else (each.object_kind, path)

    records, token = ctx.paging.fetch_page(
        "approvals",
        request.page_token,
        request.limit,
        lambda before, count: fetch_allowed(ctx, fetch, before, count, object_of, _key_of),
        _key_of,
    )
    return models.ListApprovalsResponse(approvals=[_to_entry(ctx, each) for each in records], page_token=token)


def _key_of(approval: Approval) -> tuple[int, str]:
    return approval.requested_at, approval.id


def _sees(ctx: Context, approval: Approval) -> bool:
    return approval.requested_by == ctx.principal.name or bool(_privileges(ctx, approval) & Privilege.APPROVE)


def _to_entry(ctx: Context, approval: Approval) -> models.ApprovalEntry:
    path = ctx.store.object_path(approval.object_kind, approval.object_id)
    return models.ApprovalEntry(
        id=approval.id,
        operation=approval.operation,
        object_kind=approval.object_kind,
        object_id=None if path is None or approval.object_kind == SERVER else list(path),
        request=approval.request,
        status=approval.status_at(ctx.clock()),
        requested_by=approval.requested_by,
        requested_at_millis=approval.requested_at,
        expires_at_millis=approval.expires_at,
        decided_by=approval.decided_by,
        decided_at_millis=approval.decided_at,
        used_at_millis=approval.used_at,
    )
