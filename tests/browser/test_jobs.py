"""Jobs in a browser: a job is followed live, and the pages of jobs in each width, light and dark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from tests.access.scenes import send
from tests.browser.viewer import HEIGHT, WIDTHS, Viewer
from tests.services.console_data import FILMS
from tiltyard.model.spec import operations

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_of_jobs_are_accessible_and_fit(
    browser: Browser, server: ServerProcess, tmp_path: Path, scheme: str
) -> None:
    job_id = submit(server)
    call(server, "CancelJob", {"job_id": job_id})
    with Viewer.opened(browser, server.url, tmp_path, max(WIDTHS), scheme) as viewer:
        addresses = ("jobs", "jobs?state=FAILED", f"job?id={job_id}", "jobs/start", "jobs/start?name=ingest")
        for number, address in enumerate(addresses):
            viewer.page.set_viewport_size({"width": max(WIDTHS), "height": HEIGHT})
            viewer.open(address)
            viewer.check_at_all_widths(f"jobs-{number}-{scheme}")
