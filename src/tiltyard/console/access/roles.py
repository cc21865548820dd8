"""Roles and their members, for administrators."""

from __future__ import annotations

from tiltyard.console.access.forms import form_actions, list_page, page_frame, required_text
from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.templates import link

MEMBER_KINDS = ("principal", "group")


def show(page: PageRequest, problem: str = "", status: int = 200) -> Page:
    """Show the roles, with their members. Raises PermissionDeniedError."""
    listed = list_page(page, "ListRoles")
    values = {
        **page_frame(page, "access/roles", problem),
        "roles": listed.roles,
        "cursor": listed.page_token or "",
        "kinds": MEMBER_KINDS,
        "entered": page.text("role") if problem and page.text("action") == "create" else "",
    }
    return Page("roles.html", values, status)


def _role(page: PageRequest) -> str:
    return required_text(page, "role", "the role's name")


def _create(page: PageRequest) -> Redirect:
    page.calls.call("CreateRole", role=_role(page))
    return Redirect(link("access/roles"))


def _drop(page: PageRequest) -> Redirect:
    page.calls.call("DropRole", role=_role(page))
    return Redirect(link("access/roles"))


def _member(page: PageRequest) -> dict[str, str | None]:
    member = required_text(page, "member", "the name of a principal or a group")
    return {"role": _role(page), "member": member, "member_kind": page.text("kind") or None}


def _add(page: PageRequest) -> Redirect:
    page.calls.call("AddRoleMember", **_member(page))
    return Redirect(link("access/roles"))


def _remove(page: PageRequest) -> Redirect:
    page.calls.call("RemoveRoleMember", **_member(page))
    return Redirect(link("access/roles"))


act = form_actions(show, {"create": _create, "drop": _drop, "add": _add, "remove": _remove})
