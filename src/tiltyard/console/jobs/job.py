"""The list of jobs, and one job: its state, figures and log, followed live by server-sent events; cancel, pause, resume
and submit again.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from lance_namespace.errors import InvalidInputError, InvalidTableStateError, LanceNamespaceError

from tiltyard.console.live_changes import Change, stream_changes
from tiltyard.console.page import Page, PageRequest, Problem, Redirect
from tiltyard.console.templates import link
from tiltyard.model.jobs import pipeline_jobs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.responses import StreamingResponse

    from tiltyard.console.page_calls import PageCalls

MAX_EVENTS = 200
"""Entries of a job's log that are shown."""
SUBMIT_AGAIN = frozenset({"FAILED", "CANCELLED"})
_ACTIONS = ("cancel", "pause", "resume")
"""Each is the first word of its operation: CancelJob, PauseJob, ResumeJob."""


def show(page: PageRequest, problem: Problem | None = None) -> Page:
    """Show a job, or the part of its page that changes. Raises TransactionNotFoundError, InvalidInputError."""
    job = page.calls.call("DescribeJobState", job_id=_job_id(page))
    properties = _properties(page.calls, job.job_id)
    is_pipeline = job.job_type in pipeline_jobs()
    values = {
        "job": job,
        "tone": TONES.get(job.job_state, ""),
        "is_final": job.job_state in FINAL_STATES,
        "is_lost": job.failure is not None and job.failure.phase == "lost",
        "can_pause": job.job_state == "QUEUED" or (job.job_state == "IN_PROGRESS" and is_pipeline),
        "can_resume": job.job_state in ("PAUSED", "PAUSING"),
        "can_submit_again": is_pipeline and job.job_state in SUBMIT_AGAIN,
        "table": tuple(properties["table"].split("$")) if properties.get("table") else (),
        "progress": _progress(properties, job.job_state),
        "figures": {name: text for name, text in properties.items() if name not in ("job", "table", "progress")},
        "arguments": json.dumps((job.spec or {}).get("arguments") or {}, indent=2),
        "events": _events(page.calls, job.job_id),
        "problem": problem,
        "no_worker": missing_worker(page) if is_pipeline and job.job_state == "QUEUED" else "",
        "section": "jobs",
    }
    status = problem.status if problem is not None else 200
    return Page("job_live.html" if page.is_fragment else "job.html", values, status, fragment=page.is_fragment)


def missing_worker(page: PageRequest) -> str:
    """Say that no process of the catalog can run jobs of the pipeline; "" where one is alive."""
    now = page.services.clock()
    if any(each.drivers and each.is_alive(now) for each in page.services.store.list_processes()):
        return ""
    return "No worker with Spark is alive: a job waits in the queue until there is one."


def act(page: PageRequest) -> Page | Redirect:
    """Cancel, pause or resume a job, or submit it again; what cannot be done is said on its page.

    Raises TransactionNotFoundError, InvalidInputError.
    """
    job_id, action = _job_id(page), page.text("action")
    if action not in ("submit", *_ACTIONS):
        raise InvalidInputError(f"A job can be cancelled, paused, resumed or submitted again, not '{action[:40]}'.")
    try:
        if action == "submit":
            job_id = _submit_again(page.calls, job_id)
        else:
            page.calls.call(f"{action.title()}Job", job_id=job_id)
    except LanceNamespaceError as error:
        return show(page, page.explain(error))
    return Redirect(link("job", id=job_id))


def _submit_again(calls: PageCalls, job_id: str) -> str:
    """Queue a job with the arguments of one that has ended without success; return the new one's id."""
    job = calls.call("DescribeJob", id=[job_id]).job
    if job.status not in ("Failed", "Canceled", "Lost"):
        raise InvalidTableStateError(f"The job {job_id} is {job.status}: only one that failed is submitted again.")
    submitted = calls.call(
        "SubmitJob", name=job.name, table=job.table, arguments=dict(job.arguments), spark=job.spark or None
    )
    new_id: str = submitted.job.id
    return new_id


def follow(page: PageRequest) -> StreamingResponse:
    """Stream an event at each change of a job, and `end` with its last one. Raises TransactionNotFoundError."""
    job_id, calls = _job_id(page), page.calls.without_deadline()

    def read() -> Change:
        state = calls.call("DescribeJobState", job_id=job_id).job_state
        return Change({"state": state}, str(_properties(calls, job_id)), is_last=state in FINAL_STATES)

    return stream_changes(read)


def _properties(calls: PageCalls, job_id: str) -> dict[str, str]:
    return dict(calls.call("DescribeTransaction", id=[job_id]).properties or {})


def _progress(properties: Mapping[str, str], state: str) -> float | None:
    """Return a job's progress, 0 to 1; None where it does not say."""
    if state == "DONE":
        return 1.0
    try:
        return min(1.0, max(0.0, float(properties["progress"])))
    except (KeyError, ValueError):
        return None


def _events(calls: PageCalls, job_id: str) -> list[dict[str, Any]]:
    """Return the log of a job, newest first."""
    answer = calls.call("QueryJobEvents", job_id=job_id, limit=MAX_EVENTS)
    events = pa.Table.from_batches(list(answer.batches), answer.schema)
    events = events.set_column(0, "timestamp", events["timestamp"].cast(pa.int64()))
    rows: list[dict[str, Any]] = events.to_pylist()
    return rows[::-1]


def _job_id(page: PageRequest) -> str:
    job_id = page.text("id")
    if not job_id:
        raise InvalidInputError("Which job? Open one from the list of jobs.")
    return job_id


JOBS_AT_ONCE = 50
STATES = ("QUEUED", "IN_PROGRESS", "PAUSED", "DONE", "FAILED", "LOST", "CANCELLED")
FINAL_STATES = frozenset({"DONE", "FAILED", "CANCELLED"})
TONES = {"DONE": "good", "FAILED": "bad", "CANCELLED": "warn", "PAUSED": "warn", "PAUSING": "warn"}
"""How a state is coloured; others have no colour."""


def show_jobs(page: PageRequest) -> Page:
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
