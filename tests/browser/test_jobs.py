"""Jobs in a browser: a job is followed live, and the pages of jobs in each width, light and dark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.access.scenes import send
from tests.browser.viewer import Viewer
from tests.services.console_data import FILMS
from tiltyard.model.spec import operations

if TYPE_CHECKING:
    from tests.services.server import ServerProcess

pytestmark = pytest.mark.extended


def call(server: ServerProcess, name: str, fields: dict[str, object]) -> httpx.Response:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        return send(client, operations()[name], fields)


def submit(server: ServerProcess) -> str:
    fields = {"name": "delete", "table": list(FILMS), "arguments": {"table": "$".join(FILMS), "where": "id < 0"}}
    job_id: str = call(server, "SubmitJob", fields).json()["job"]["id"]
    return job_id


def test_page_of_a_job_follows_it_until_it_ends(viewer: Viewer, server: ServerProcess) -> None:
    job_id = submit(server)
    viewer.page.goto(f"{viewer.url}/console/job?id={job_id}")  # it never comes to rest: its events stay open
    state = viewer.page.locator("[data-state]")
    assert state.get_attribute("data-state") == "QUEUED"
    call(server, "PauseJob", {"job_id": job_id})
    viewer.page.locator("[data-state=PAUSED]").wait_for()
    call(server, "CancelJob", {"job_id": job_id})
    viewer.page.locator("[data-state=CANCELLED]").wait_for()
    viewer.page.get_by_role("button", name="Submit again").click()
    viewer.page.locator("[data-state=QUEUED]").wait_for()
    viewer.page.get_by_role("button", name="Cancel").click()  # the viewer confirms the question
    viewer.page.locator("[data-state=CANCELLED]").wait_for()


def test_form_of_a_job_starts_it_with_what_was_entered(viewer: Viewer, server: ServerProcess) -> None:
    page = viewer.open(f"jobs/start?name=index&table={'$'.join(FILMS)}")
    entered = {"table": "$".join(FILMS), "column": "year", "type": "BTREE", "name": "by_year", "replace": True}
    for label, text in entered.items():
        if text is True:
            page.get_by_label(label, exact=True).check()
        elif label != "table":  # the page that led here has filled it
            field = page.get_by_label(re.compile(rf"^{label}( \(required\))?$"))
            (field.fill if label == "name" else field.select_option)(str(text))
    page.get_by_role("button", name="Start").click()
    page.wait_for_url("**/console/job?id=*")
    (job_id,) = parse_qs(urlsplit(page.url).query)["id"]
    job = call(server, "DescribeJob", {"id": [job_id]}).json()["job"]
    call(server, "CancelJob", {"job_id": job_id})
    assert (job["name"], job["table"], {**job["arguments"], **entered}) == ("index", list(FILMS), job["arguments"])


def test_pages_of_jobs_are_accessible_and_fit(viewer: Viewer, server: ServerProcess) -> None:
    job_id = submit(server)
    call(server, "CancelJob", {"job_id": job_id})
    viewer.check_pages("jobs", "jobs?state=FAILED", f"job?id={job_id}", "jobs/start", "jobs/start?name=ingest")
