"""The list of jobs, newest first: all, or those of a table, a type or a state."""

from __future__ import annotations

from tiltyard.console.page import Page, PageRequest

JOBS_AT_ONCE = 50
STATES = ("QUEUED", "IN_PROGRESS", "PAUSED", "DONE", "FAILED", "LOST", "CANCELLED")
FINAL_STATES = frozenset({"DONE", "FAILED", "CANCELLED"})
TONES = {"DONE": "good", "FAILED": "bad", "CANCELLED": "warn", "PAUSED": "warn", "PAUSING": "warn"}
"""How a state is coloured; others have no colour."""


def show(page: PageRequest) -> Page:
    """Show a page of jobs, or its continuation. Raises InvalidInputError, TableNotFoundError."""
    chosen = {name: page.text(name) for name in ("table", "type", "state")}
    listed = page.calls.call(
        "ListAllJobs",
        limit=JOBS_AT_ONCE,
        page_token=page.text("cursor") or None,
        table=chosen["table"] or None,
        job_type=chosen["type"] or None,
        state=chosen["state"] or None,
    )
    values = {
        "jobs": listed.jobs,
        "cursor": listed.page_token or "",
        "chosen": chosen,
        "is_filtered": any(chosen.values()),
        "states": STATES,
        "tones": TONES,
    }
    return Page("jobs_rows.html" if page.is_fragment else "jobs.html", values, fragment=page.is_fragment)
