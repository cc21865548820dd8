"""The server's page and the map in a browser: charts and a treemap; points selected by hand and by keyboard."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.viewer import Viewer

pytestmark = pytest.mark.extended
MAP = "map/cinema/films?color=genre"


def draw_around(page: Page, *corners: tuple[float, float]) -> None:
    """Drag along corners, in shares of the canvas."""
    box = page.locator("canvas").bounding_box()
    assert box is not None
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (*corners, corners[0])]
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=4)
    page.mouse.up()


def test_pages_of_the_map_and_the_server_are_accessible_and_fit(viewer: Viewer) -> None:
    viewer.check_pages(MAP, "server")


def test_points_that_are_drawn_around_lead_to_their_rows(viewer: Viewer) -> None:
    page = viewer.open(MAP)
    draw_around(page, (0.01, 0.01), (0.99, 0.01), (0.99, 0.99), (0.01, 0.99))
    page.get_by_text("200 rows selected").wait_for()
    page.get_by_role("link", name="Show the rows").click()
    page.wait_for_url("**/console/rows/**")
    assert unquote(page.url).count(",") == 199 and "at=v" in page.url
    page.get_by_text("Rows 1 to 25").wait_for()


def test_map_is_walked_and_selected_by_keyboard(viewer: Viewer) -> None:
    page = viewer.open(MAP)
    page.locator("canvas").focus()
    page.keyboard.press("ArrowRight")
    row = page.locator("#map-row").get_by_text(re.compile(r"^Film \d+$"))
    first = row.inner_text()
    page.keyboard.press("Space")
    page.get_by_text("1 row selected").wait_for()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("text => !document.querySelector('#map-row').innerText.includes(text)", arg=f"{first}\n")
    page.keyboard.press("Space")
    page.get_by_text("2 rows selected").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("link", name="Show the rows").wait_for(state="hidden")
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/rows/**")


def test_server_has_its_storage_as_a_treemap(viewer: Viewer) -> None:
    page = viewer.open("server")
    page.locator("svg.treemap rect").first.wait_for()
    assert page.locator("svg.treemap rect").count() == 2
