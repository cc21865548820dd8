"""The list of schedules: when each runs next, what became of the last time; pause, resume, run and drop them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tiltyard.console.access.forms import run_action
from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.templates import link
from tiltyard.model.ids import DEFAULT_DELIMITER, parse_id
from tiltyard.model.schedules import describe_timing

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tiltyard.console.access.forms import Action

SCHEDULES_AT_ONCE = 100
_VIEW = "jobs/schedules"
_TONES = {"Active": "good", "Paused": "warn", "Refused": "bad", "Stopped": "warn"}
_STATUS_TONES = {"Succeeded": "good", "Failed": "bad", "Canceled": "warn", "Lost": "bad"}


def show(page: PageRequest, problem: str = "", status: int = 200) -> Page:
    """Show the schedules that the caller may describe, of all tables or of one. Raises TableNotFoundError."""
    listed = page.calls.call(
        "ListSchedules",
        limit=SCHEDULES_AT_ONCE,
        page_token=page.text("cursor") or None,
        table=page.text("table") or None,
    )
    values = {
        "schedules": [(each, describe_timing(msgspec.to_builtins(each))) for each in listed.schedules],
        "cursor": listed.page_token or "",
        "chosen": page.text("table"),
        "tones": _TONES,
        "status_tones": _STATUS_TONES,
        "problem": problem,
        "section": "jobs",
    }
    return Page("schedules.html", values, status)


def act(page: PageRequest) -> Page | Redirect:
    """Pause, resume, run or drop a schedule; what cannot be done is said on the page."""
    return run_action(page, _ACTIONS, show)


def _pause(page: PageRequest) -> Redirect:
    page.calls.call("AlterSchedule", id=_path(page), paused=True)
    return _back(page)


def _resume(page: PageRequest) -> Redirect:
    page.calls.call("AlterSchedule", id=_path(page), paused=False)
    return _back(page)


def _run(page: PageRequest) -> Redirect:
    return Redirect(link("job", id=page.calls.call("RunSchedule", id=_path(page)).job.id))


def _drop(page: PageRequest) -> Redirect:
    page.calls.call("DropSchedule", id=_path(page))
    return _back(page)


def _back(page: PageRequest) -> Redirect:
    return Redirect(link(_VIEW, table=page.text("table")))


def _path(page: PageRequest) -> list[str]:
    """Return the id of the schedule that a form names. Raises InvalidInputError."""
    return list(parse_id(page.text("id"), DEFAULT_DELIMITER))


_ACTIONS: Mapping[str, Action] = {"pause": _pause, "resume": _resume, "run": _run, "drop": _drop}
