"""The frame of the pages of access; their forms: read what they send, show one again with why it was refused."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import InvalidInputError, LanceNamespaceError

from tiltyard.access.authorization import is_administrator
from tiltyard.console.navigation import access_tabs
from tiltyard.console.page import Page, PageRequest, Redirect

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    Action: TypeAlias = Callable[[PageRequest], Page | Redirect]

AT_ONCE = 100
"""Entries of a list on one page."""


def page_frame(page: PageRequest, tab: str, problem: str = "") -> dict[str, Any]:
    """Return the values that all pages of access have; `tab` is the one that is open."""
    is_admin = is_administrator(page.calls.ctx)
    return {
        "tabs": access_tabs(is_administrator=is_admin),
        "tab": tab,
        "section": "access",
        "problem": problem,
        "is_administrator": is_admin,
    }


def required_text(page: PageRequest, name: str, what: str) -> str:
    """Return a parameter. Raises InvalidInputError where it is empty; `what` says what it would have been."""
    text = page.text(name)
    if not text:
        raise InvalidInputError(f"Enter {what}.")
    return text


def entered_lines(text: str) -> list[str]:
    """Return what a field of several lines has, without empty ones."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def list_page(page: PageRequest, operation: str, **fields: Any) -> Any:
    """Return what an operation lists, from where the page's address says. Raises what the operation raises."""
    return page.calls.call(operation, limit=AT_ONCE, page_token=page.text("cursor") or None, **fields)


def showing_problems(show: Callable[[PageRequest, str, int], Page]) -> Callable[[Action], Action]:
    """Have a page of a form shown again, with the problem, where the form cannot be done as it was sent."""

    def decorate(act: Action) -> Action:
        @functools.wraps(act)
        def run(page: PageRequest) -> Page | Redirect:
            try:
                return act(page)
            except LanceNamespaceError as error:
                problem = page.explain(error)
                return show(page, problem.message, problem.status)

        return run

    return decorate


def form_actions(show: Callable[[PageRequest, str, int], Page], actions: Mapping[str, Action]) -> Action:
    """Return what runs the action that a form names, and shows the page again with the problem where it cannot be done.

    It raises InvalidInputError for an action that the page does not have, and what showing the page raises.
    """

    def act(page: PageRequest) -> Page | Redirect:
        action = actions.get(page.text("action"))
        if action is None:
            raise InvalidInputError(f"This page has no action '{page.text('action')[:40]}': load it again.")
        return showing_problems(show)(action)(page)

    return act
