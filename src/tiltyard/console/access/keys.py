"""API keys: create, rotate and revoke them. The text of a new one is in one response alone, that of the page after its
form: to load that page again shows it no more, and makes no second key.
"""

from __future__ import annotations

from typing import Any

from tiltyard.access.authorization import is_administrator
from tiltyard.console.access.forms import form_actions, list_page, page_frame, required_text
from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.templates import link

DAY_SECONDS = 86_400
HOUR_SECONDS = 3_600
MAX_DAYS = 36_500
MAX_OVERLAP_HOURS = 24 * 366
MAX_NOTE = 200
"""Characters of a note beside the new key."""
NEW_KEY = "access/keys/new"


def show(page: PageRequest, problem: str = "", status: int = 200) -> Page:
    """Show the keys of a principal, or of all; callers who are no administrators see their own."""
    is_admin = is_administrator(page.calls.ctx)
    chosen = page.text("of") if is_admin else page.principal.name
    listed = list_page(page, "ListApiKeys", principal=chosen or None)
    values = {
        **page_frame(page, "access/keys", problem),
        "keys": listed.keys,
        "cursor": listed.page_token or "",
        "chosen": chosen,
        "entered": {name: page.text(name) for name in ("principal", "note", "days")},
    }
    return Page("keys.html", values, status)


def _create(page: PageRequest) -> Redirect:
    created = page.calls.call(
        "CreateApiKey",
        principal=required_text(page, "principal", "the name of the principal that the key is of"),
        note=page.text("note") or None,
        expires_in_seconds=_expiry(page),
    )
    return _show_once(created, 0)


def _rotate(page: PageRequest) -> Redirect:
    hours = page.integer("hours", 24, 0, MAX_OVERLAP_HOURS)
    key_id = required_text(page, "key", "the id of a key")
    created = page.calls.call(
        "RotateApiKey", key_id=key_id, overlap_seconds=hours * HOUR_SECONDS, expires_in_seconds=_expiry(page)
    )
    return _show_once(created, hours, key_id)


def _revoke(page: PageRequest) -> Redirect:
    page.calls.call("RevokeApiKey", key_id=required_text(page, "key", "the id of a key"))
    return Redirect(link("access/keys", of=page.text("of")))


def _expiry(page: PageRequest) -> int | None:
    days = page.integer("days", 0, 1, MAX_DAYS)
    return days * DAY_SECONDS if days else None


def _show_once(created: Any, hours: int, replaced: str = "") -> Redirect:
    key = {
        "text": created.api_key,
        "id": created.key.key_id,
        "principal": created.key.principal,
        "note": (created.key.note or "")[:MAX_NOTE],
        "ends": created.key.expires_at_millis,
        "replaced": replaced,
        "hours": hours,
    }
    return Redirect(link(NEW_KEY), once=key)


def show_new(page: PageRequest) -> Page:
    """Show the key that was just made; say that it was shown where this is another request for the page."""
    return Page("key_created.html", {**page_frame(page, "access/keys"), "key": page.once})


act = form_actions(show, {"create": _create, "rotate": _rotate, "revoke": _revoke})
