"""Calls that need the approval of a second principal: those that the reader may decide, and those that it requested."""

from __future__ import annotations

from typing import Any

from tiltyard.console.access.forms import form_actions, list_page, page_frame, required_text
from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.templates import link

VIEW = "access/approvals"
_TONES = {"requested": "warn", "approved": "good", "denied": "bad"}


def show(page: PageRequest, problem: str = "", status: int = 200) -> Page:
    """Show calls that wait for approval, or were decided, newest first. Raises what listing them raises."""
    listed = list_page(page, "ListApprovals")
    values = {
        **page_frame(page, VIEW, problem),
        "approvals": [(each, _is_decidable(page, each)) for each in listed.approvals],
        "cursor": listed.page_token or "",
        "tones": _TONES,
        "reader": page.calls.ctx.principal.name,
    }
    return Page("approvals.html", values, status)


def _is_decidable(page: PageRequest, approval: Any) -> bool:
    return (
        approval.status == "requested"
        and approval.requested_by != page.calls.ctx.principal.name
        and page.calls.allows("DecideApproval", approval_id=approval.id, approved=True)
    )


def _decide(page: PageRequest, *, approved: bool) -> Redirect:
    approval_id = required_text(page, "id", "the request's id")
    page.calls.call("DecideApproval", approval_id=approval_id, approved=approved)
    return Redirect(link(VIEW))


act = form_actions(
    show,
    {
        "approve": lambda page: _decide(page, approved=True),
        "deny": lambda page: _decide(page, approved=False),
    },
)
