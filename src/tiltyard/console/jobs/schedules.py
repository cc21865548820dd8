"""The list of schedules: when each runs next, what became of the last time; pause, resume, run and drop them."""

from __future__ import annotations

import msgspec

from tiltyard.console.access.forms import form_actions, list_page
from tiltyard.console.page import Page, PageRequest, Redirect
from tiltyard.console.templates import link
from tiltyard.model.ids import DEFAULT_DELIMITER, parse_id
from tiltyard.model.schedules import describe_timing

_VIEW = "jobs/schedules"
_TONES = {"Active": "good", "Paused": "warn", "Refused": "bad", "Stopped": "warn"}
_STATUS_TONES = {"Succeeded": "good", "Failed": "bad", "Canceled": "warn", "Lost": "bad"}


def show(page: PageRequest, problem: str = "", status: int = 200) -> Page:
    """Show the schedules that the caller may describe, of all tables or of one. Raises TableNotFoundError."""
    listed = list_page(page, "ListSchedules", table=page.text("table") or None)
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


act = form_actions(show, {"pause": _pause, "resume": _resume, "run": _run, "drop": _drop})
