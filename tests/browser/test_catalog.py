"""The tree and the lists of the catalog in a browser: by mouse, by keyboard, in each width, light and dark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.accessibility import IN_THREE_WIDTHS
from tests.browser.viewer import Viewer

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

    from tests.services.server import ServerProcess

ADDRESSES = ("", "namespace/cinema", "namespace/empty", "find?q=film", "find", "namespace/no/where")


def test_tree_unfolds_a_namespace_and_leads_to_its_table(viewer: Viewer) -> None:
    page = viewer.open("")
    page.get_by_role("button", name="Unfold cinema").click()
    page.locator("#tree").get_by_role("link", name="films").click()
    page.wait_for_url("**/console/table/cinema/films")
    assert page.get_by_role("heading", level=1).text_content() == "films"
    viewer.check_accessible()


def test_filter_box_narrows_the_tree_and_gives_it_back(viewer: Viewer) -> None:
    page = viewer.open("")
    box = page.get_by_label("Filter the tree by name")
    box.fill("pict")
    page.locator("#tree").get_by_role("link", name="pictures").wait_for()
    assert page.locator("#tree a").count() == 1
    box.fill("")
    page.get_by_role("button", name="Unfold cinema").wait_for()


def test_tree_is_walked_by_the_arrow_keys(viewer: Viewer) -> None:
    page = viewer.open("")
    page.locator("#tree a").first.focus()
    page.keyboard.press("ArrowRight")
    page.locator("#tree").get_by_role("link", name="films").wait_for()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "films"
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.textContent") == "cinema"
    page.keyboard.press("ArrowLeft")
    page.locator("#tree").get_by_role("link", name="films").wait_for(state="hidden")


def test_tree_is_one_stop_of_the_tab_key_and_the_page_that_is_shown(viewer: Viewer) -> None:
    page = viewer.open("table/cinema/films")
    page.get_by_label("Filter the tree by name").focus()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "films"
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.textContent") == "media"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.textContent") == "media"
    assert page.locator("#tree [tabindex='0']").count() == 1


def test_bar_is_low_in_a_narrow_window_and_its_menu_has_the_sections(viewer: Viewer) -> None:
    viewer.page.set_viewport_size({"width": 360, "height": 800})
    page = viewer.open("rows/cinema/films")
    viewer.check_fits()
    sections = page.get_by_role("navigation", name="Sections")
    assert not sections.is_visible()
    page.get_by_role("button", name="Menu").click()
    assert sections.get_by_role("link", name="Jobs").is_visible() and page.get_by_role("search").is_visible()
    page.keyboard.press("Escape")
    assert not sections.is_visible()
    assert page.evaluate("document.activeElement.textContent") == "Menu"


@pytest.mark.extended
def test_pages_are_accessible_and_fit_their_window(viewer: Viewer) -> None:
    viewer.check_pages(*IN_THREE_WIDTHS["catalog"], "", "namespace/cinema", "find", "table/no/where")


@pytest.mark.extended
def test_server_that_is_away_is_said_in_one_sentence(browser: Browser, server: ServerProcess, tmp_path: Path) -> None:
    with Viewer.opened(browser, server.url, tmp_path) as viewer:
        page = viewer.open("")
        page.context.set_offline(True)
        page.get_by_role("button", name="Unfold media").click()
        page.get_by_text("The server did not answer.").wait_for()
        viewer.problems.clear()  # the browser itself logs the failed request
