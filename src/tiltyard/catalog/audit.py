"""Operations on the audit log: list its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.access.needs import ADMINISTRATORS
from tiltyard.audit import to_entry
from tiltyard.model.modes import Outcome, parse_mode
from tiltyard.model.operations import operation
from tiltyard.model.spec import models
from tiltyard.store import AuditFilter

if TYPE_CHECKING:
    from tiltyard.context import Context


@operation(needs=ADMINISTRATORS, changes=False)
def list_audit_records(ctx: Context, request: models.ListAuditRecordsRequest) -> models.ListAuditRecordsResponse:
    """List the records of the audit log, newest first.

    Raises InvalidInputError (no such outcome, a page token of another list).
    """
    outcome = None if request.outcome is None else parse_mode(Outcome, request.outcome, Outcome.OK, "outcome").value
    conditions = AuditFilter(
        since=request.since_millis,
        until=request.until_millis,
        principal=request.principal,
        operation=request.operation,
        object=request.object,
        outcome=outcome,
    )
    records, token = ctx.paging.fetch_page(
        f"audit {conditions!r}",
        request.page_token,
        request.limit,
        lambda before, count: ctx.store.list_audit(conditions, before, count),
        lambda record: (record.at, record.id),
    )
    return models.ListAuditRecordsResponse(records=[to_entry(record) for record in records], page_token=token)
