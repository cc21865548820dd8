"""Grants on the server, a namespace or a table, and those of a grantee: grant and revoke privileges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from tiltyard.access.authorization import is_administrator
from tiltyard.access.grantees import GranteeKind
from tiltyard.console.access.forms import form_actions, list_page, page_frame, required_text
from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.templates import link
from tiltyard.model.ids import DEFAULT_DELIMITER, Id, parse_id
from tiltyard.model.principals import ALL, privilege_names

KINDS = ("server", "namespace", "table")
GRANTEE_KINDS = tuple(kind.value for kind in GranteeKind)
PRIVILEGES = tuple(privilege_names(ALL))


def show(page: PageRequest, problem: str = "", status: int = 200) -> Page:
    """Show the grants on an object, or of a grantee. Raises InvalidInputError, …NotFoundError."""
    page, kind = _object_of(page)
    fields, grantee = _listed_fields(page, kind)
    try:
        listed = list_page(page, "ListGrants", **fields)
    except LanceNamespaceError as error:
        if problem or error.code.name != "PERMISSION_DENIED" or is_administrator(page.calls.ctx):
            raise
        listed, problem, status = None, str(error), 403
    values = {
        **page_frame(page, "access/grants", problem),
        "path": page.path,
        "kind": kind,
        "kinds": KINDS,
        "grantee": grantee,
        "grantee_kind": fields.get("grantee_kind") or page.text("grantee_kind", GRANTEE_KINDS[0]),
        "grantee_kinds": GRANTEE_KINDS,
        "privileges": PRIVILEGES,
        "grants": listed.grants if listed is not None else None,
        "cursor": (listed.page_token or "") if listed is not None else "",
        "entered": {"grantee": page.text("to"), "privileges": page.all_of("privilege")} if problem else {},
    }
    return Page("grants.html", values, status)


def _listed_fields(page: PageRequest, kind: str) -> tuple[dict[str, Any], str]:
    """Return what ListGrants is asked for: the grants of a grantee if one is named, else those on the object."""
    grantee = page.text("grantee")
    if grantee:
        return {"grantee": grantee, "grantee_kind": page.text("grantee_kind") or None}, grantee
    return {"object_kind": kind, "id": list(page.path) or None}, ""


def _object_of(page: PageRequest) -> tuple[PageRequest, str]:
    """Return the page of the object that it names, in its address or in the form to choose one, and the object's kind.

    Raises InvalidInputError.
    """
    if not page.path and page.text("object"):
        page = replace(page, path=parse_id(page.text("object")))
    kind = page.text("kind") or ("namespace" if page.path else "server")
    if kind not in KINDS:
        raise InvalidInputError(f"Grants are on the server, a namespace or a table, not on '{kind[:40]}'.")
    if kind == "server" and page.path:
        kind = "namespace"
    if kind != "server" and not page.path:
        raise InvalidInputError(f"Which {kind}? Enter its names, joined by {DEFAULT_DELIMITER}.")
    return page, kind


def _change(page: PageRequest, operation: str) -> Redirect:
    page, kind = _object_of(page)
    privileges = page.form.get("privilege") or []
    if not privileges:
        raise InvalidInputError("Choose at least one privilege.")
    page.calls.call(
        operation,
        object_kind=kind,
        id=list(page.path) or None,
        grantee=required_text(page, "to", "the name of a principal, a group or a role"),
        grantee_kind=page.text("to_kind") or None,
        privileges=privileges,
    )
    return Redirect(_address(page, kind))


def _address(page: PageRequest, kind: str) -> str:
    back = page.text("back")
    if back:
        return link("access/grants", grantee=back, grantee_kind=page.text("back_kind"))
    return link("access/grants", page.path or Id(), kind=kind)


act = form_actions(
    show,
    {
        "grant": lambda page: _change(page, "GrantPrivileges"),
        "revoke": lambda page: _change(page, "RevokePrivileges"),
    },
)
