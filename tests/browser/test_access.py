"""Access and the audit in a browser, signed in: a key is made and revoked; pages in each width, light and dark."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.browser.viewer import Viewer
from tests.services.console_data import make_tables
from tests.services.secured import Secured, secured_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser

pytestmark = pytest.mark.extended

RED = "rgb(156, 47, 37)"
"""The colour of what cannot be undone, in the light scheme."""
GRANT = {"object_kind": "namespace", "id": ["cinema"], "grantee": "critics", "grantee_kind": "role"}
POLICY = {"name": "recent", "filter": "year >= 2000", "masks": [{"column": "title", "mask": "null"}]}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_server(tmp_path_factory.mktemp("access"), names=("ann",)) as running:
        make_tables(running.url, running.keys["administrator"])
        with running.http("administrator") as http:
            for path, body in (
                ("role/create", {"role": "critics"}),
                ("role/add_member", {"role": "critics", "member": "ann"}),
                ("grant/add", {**GRANT, "privileges": ["read"]}),
                ("table/cinema$films/policy/set", POLICY),
            ):
                response = http.post(f"/tiltyard/v1/{path}", json=body)
                assert response.status_code == 200, (path, response.text)
        yield running


def sign_in(viewer: Viewer, secured: Secured) -> None:
    page = viewer.open("sign-in")
    page.get_by_label("API key").fill(secured.keys["administrator"])
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/")


def test_pages_of_access_and_the_audit_are_accessible_and_fit(
    browser: Browser, secured: Secured, tmp_path: Path
) -> None:
    with Viewer.opened(browser, secured.url, tmp_path) as viewer:
        sign_in(viewer, secured)
        viewer.check_pages(
            "access/principal?name=ann",
            "access/roles",
            "policies/cinema/films",
            "see-as/cinema/films?principal=ann",
            "audit",
        )


def test_key_is_made_by_keyboard_shown_once_and_revoked_after_a_question(
    browser: Browser, secured: Secured, tmp_path: Path
) -> None:
    with Viewer.opened(browser, secured.url, tmp_path) as viewer:
        sign_in(viewer, secured)
        page = viewer.open("access/keys")
        page.get_by_label("Create a key of").fill("dora")
        page.keyboard.press("Enter")
        key = page.locator(".secret").inner_text()
        assert re.fullmatch(r"tilt_[0-9a-f]{16}_[\w-]{43}", key) and key not in page.url
        page.get_by_role("link", name="I have copied it").click()
        page.get_by_label("Create a key of").wait_for()
        page.go_back()
        page.reload()
        page.get_by_role("heading", name="The key was shown").wait_for()
        assert key not in page.content()
        page.get_by_role("link", name="Show the keys").click()
        revoke = page.get_by_role("button", name=f"Revoke {key.split('_')[1]}")
        revoke.wait_for()
        assert revoke.evaluate("button => getComputedStyle(button).color") == RED
        assert key not in page.content()
        revoke.click()  # the viewer confirms the question
        page.get_by_text("revoked", exact=True).wait_for()


def test_audit_is_drawn_by_time(browser: Browser, secured: Secured, tmp_path: Path) -> None:
    with Viewer.opened(browser, secured.url, tmp_path) as viewer:
        sign_in(viewer, secured)
        page = viewer.open("audit")
        page.locator("figure.chart canvas").wait_for()
        page.get_by_label("Operation").fill("CreateTable")
        page.keyboard.press("Enter")
        page.get_by_text("3 records, by outcome").wait_for()
