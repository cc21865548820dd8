"""Versions in a browser: a version is restored after a question, and the pages in each width, light and dark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.test_jobs import call
from tests.browser.viewer import Viewer
from tests.services.console_data import FILMS

if TYPE_CHECKING:
    from tests.services.server import ServerProcess

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module", autouse=True)
def _versions(server: ServerProcess) -> None:
    """Make versions, a tag and a branch of the films."""
    for name, fields in (
        ("DeleteFromTable", {"predicate": "id < 10"}),
        ("CreateTableTag", {"tag": "release", "version": 2}),
        ("CreateTableBranch", {"name": "draft"}),
        ("DeleteFromTable", {"predicate": "id = 50", "branch": "draft"}),
        ("AlterTableDropColumns", {"columns": ["genre"]}),
    ):
        assert call(server, name, {"id": list(FILMS), **fields}).status_code == 200


def test_pages_of_versions_are_accessible_and_fit(viewer: Viewer) -> None:
    viewer.check_pages(
        "versions/cinema/films",
        "versions/cinema/films?at=branch:draft",
        "compare/cinema/films?old=v1&new=v3",
        "restore/cinema/films?version=1",
        "branch/cinema/films?name=draft",
    )


def test_tag_is_made_and_a_version_restored_by_keyboard(viewer: Viewer) -> None:
    page = viewer.open("versions/cinema/films")
    page.get_by_label("Tag", exact=True).fill("before")
    page.keyboard.press("Enter")
    page.get_by_role("link", name="before", exact=True).wait_for()
    page.get_by_role("link", name="Restore version 1").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Restore version 1").focus()
    page.keyboard.press("Enter")
    page.get_by_role("link", name="Version 4", exact=True).wait_for()
    page.get_by_role("button", name="Delete the tag before").click()  # the viewer confirms the question
    page.get_by_role("link", name="before", exact=True).wait_for(state="detached")
