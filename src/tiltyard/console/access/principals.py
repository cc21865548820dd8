"""Principals: all of them for administrators, and the page of one, which everybody has of themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiltyard.access.authorization import is_administrator
from tiltyard.console.access.forms import AT_ONCE, form_actions, list_page, page_frame, required_text
from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.templates import link

if TYPE_CHECKING:
    from tiltyard.console.page_calls import PageCalls

MAX_ROLES = 1000
"""Roles that are looked through for those of a principal."""
NAME = "the principal's name"


def show(page: PageRequest, problem: str = "", status: int = 200) -> Page:
    """Show all principals to an administrator, and to others what the server knows of them."""
    if not is_administrator(page.calls.ctx):
        return _show_one(page, page.principal.name, problem, status)
    listed = list_page(page, "ListPrincipals")
    values = {
        "principals": listed.principals,
        "cursor": listed.page_token or "",
        "is_first": not page.text("cursor"),
        "entered": page.text("principal") if problem else "",
    }
    return Page("principals.html", page_frame(page, "access", problem) | values, status)


def show_one(page: PageRequest) -> Page:
    """Show a principal: its roles, grants and keys. Raises PermissionDeniedError, InvalidInputError."""
    return _show_one(page, required_text(page, "name", NAME))


def _show_one(page: PageRequest, name: str, problem: str = "", status: int = 200) -> Page:
    calls, is_self = page.calls, name == page.principal.name
    grants = calls.call("ListGrants", grantee=name, grantee_kind="principal", limit=AT_ONCE)
    keys = calls.call("ListApiKeys", principal=name, limit=AT_ONCE)
    me = calls.call("WhoAmI") if is_self else None
    values = {
        "name": name,
        "is_self": is_self,
        "me": me,
        "entry": _find(calls, name) if is_administrator(calls.ctx) else None,
        "roles": list(me.roles) if me is not None else _roles_of(calls, name),
        "grants": grants.grants,
        "more_grants": bool(grants.page_token),
        "keys": keys.keys,
        "more_keys": bool(keys.page_token),
    }
    return Page("principal.html", page_frame(page, "access", problem) | values, status)


def _find(calls: PageCalls, name: str) -> Any:
    """Return the entry of a principal; None for one that nobody has named, as a provider's who signs in by tokens."""
    pages = calls.pages("ListPrincipals", limit=MAX_ROLES)
    return next((entry for listed in pages for entry in listed.principals if entry.name == name), None)


def _roles_of(calls: PageCalls, name: str) -> list[str]:
    listed = calls.attempt("ListRoles", limit=MAX_ROLES)
    roles = listed.roles if listed is not None else []
    return [role.name for role in roles for member in role.members if (member.kind, member.name) == ("principal", name)]


def _alter(page: PageRequest, **flags: bool | None) -> Redirect:
    name = required_text(page, "principal", NAME)
    page.calls.call("AlterPrincipal", principal=name, **flags)
    return Redirect(link("access/principal", name=name))


act = form_actions(
    show,
    {
        "add": lambda page: _alter(page, administrator=bool(page.text("administrator")) or None),
        "disable": lambda page: _alter(page, disabled=True),
        "enable": lambda page: _alter(page, disabled=False),
        "promote": lambda page: _alter(page, administrator=True),
        "demote": lambda page: _alter(page, administrator=False),
    },
)
