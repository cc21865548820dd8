"""Reading the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.access.needs import on_server
from tiltyard.audit import to_entry
from tiltyard.model.modes import Outcome, parse_mode
from tiltyard.model.operations import operation
from tiltyard.model.privileges import Privilege
from tiltyard.model.spec import models
from tiltyard.store import AuditFilter

if TYPE_CHECKING:
    from tiltyard.context import Context


@operation(needs=on_server(Privilege.ADMINISTER), changes=False)
def list_audit_records(ctx: Context, request: models.ListAuditRecordsRequest) -> models.ListAuditRecordsResponse:
    """List what was asked of the servers, newest first.

    Raises InvalidInputError (no such outcome, a page token of another list).
    """
    outcome = None if request.outcome is None else parse_mode(Outcome, request.outcome, Outcome.OK, "outcome").value
    wanted = AuditFilter(
        since=request.since_millis,
        until=request.until_millis,
        principal=request.principal,
        operation=request.operation,
        object=request.object,
        outcome=outcome,
    )
    found, token = ctx.paging.fetch_page(
        f"audit {wanted!r}",
        request.page_token,
        request.limit,
        lambda before, count: ctx.store.list_audit(wanted, tuple(before) if before else None, count),
        lambda record: (record.at, record.id),
    )
    return models.ListAuditRecordsResponse(records=[to_entry(record) for record in found], page_token=token)
