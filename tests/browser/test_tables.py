"""Pages of a table in a browser: rows and their cells, search, and values that attack whoever looks at them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.accessibility import IN_THREE_WIDTHS
from tests.browser.viewer import Viewer

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

    from tests.services.server import ServerProcess

ADDRESSES = (
    *IN_THREE_WIDTHS["tables"],
    "table/cinema/films",
    "rows/cinema/films?filter=nothing",
    "rows/media/hostile",
    "search/cinema/films",
    "search/cinema/films?mode=like&row=3&plan=analyze",
    "search/media/pictures",
)


def test_hostile_values_do_nothing_in_a_browser(viewer: Viewer) -> None:
    page = viewer.open("rows/media/hostile")
    assert page.title() == "Rows of hostile · Tiltyard"
    assert page.locator("#grid script, #grid svg:not(.spark), #grid a[href^='javascript:'], [onload]").count() == 0
    assert page.locator("#grid").inner_text().count("⟨U+202E⟩") == 1
    blobs = page.locator("#grid td.bytes a[download]")
    blobs.first.wait_for()
    address = blobs.first.get_attribute("href")
    with page.expect_download():
        page.evaluate("address => { location.href = address }", address)  # opened as a page, it is a file to save


def test_images_are_loaded_as_they_come_into_view(viewer: Viewer) -> None:
    page = viewer.open("rows/media/pictures")
    image = page.locator("#grid img").first
    image.wait_for()
    assert page.wait_for_function("() => document.querySelector('#grid img').naturalWidth === 24")


def test_rows_are_filtered_ordered_and_unfolded_by_keyboard(viewer: Viewer) -> None:
    page = viewer.open("rows/media/pictures")
    page.get_by_label("Filter (SQL)").focus()
    page.keyboard.type("id >= 4")
    page.keyboard.press("Enter")
    page.wait_for_url("**filter=id**")
    assert page.locator("#grid tbody tr").count() == 2
    page.get_by_role("link", name="id", exact=True).focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**order=id**")
    cell = page.locator("#grid summary", has_text="2 items").first
    cell.focus()
    page.keyboard.press("Enter")
    page.locator("#grid pre", has_text='"label"').first.wait_for()


def test_condition_is_put_together_of_column_operator_and_value(viewer: Viewer) -> None:
    page = viewer.open("rows/cinema/films?filter=id+%3C+30")
    page.get_by_text("30 of 200 rows fit the filter").wait_for()
    page.get_by_text("Add a condition").click()
    page.get_by_label("Column", exact=True).select_option("genre")
    page.get_by_role("option", name="begins with").wait_for(state="attached")
    page.get_by_label("Operator").select_option("starts")
    page.get_by_label("Value", exact=True).fill("ho")
    page.get_by_label("Value", exact=True).press("Enter")
    page.get_by_text("10 of 200 rows fit the filter").wait_for()
    assert page.get_by_label("Filter (SQL)").input_value() == "id < 30 AND starts_with(`genre`, 'ho')"


def test_value_filters_by_a_click_and_by_another_one_no_more(viewer: Viewer) -> None:
    viewer.page.set_viewport_size({"width": 1920, "height": 1000})
    page = viewer.open("rows/cinema/films")
    values = page.get_by_role("region", name="Values of genre")
    values.get_by_role("link", name="drama").click()
    page.get_by_text("67 of 200 rows fit the filter").wait_for()
    assert page.get_by_label("Filter (SQL)").input_value() == "`genre` = 'drama'"
    values.get_by_role("link", name="drama").click()
    page.get_by_text("200 rows", exact=True).wait_for()
    page.set_viewport_size({"width": 360, "height": 800})
    assert not values.is_visible()
    page.get_by_role("button", name="Values").click()
    values.get_by_role("link", name="horror").wait_for()


def test_first_column_stays_while_the_others_scroll(viewer: Viewer) -> None:
    viewer.page.set_viewport_size({"width": 600, "height": 800})
    page = viewer.open("rows/cinema/films")
    cell = page.locator("#grid tbody td").first
    before = cell.bounding_box()
    page.locator("#grid .grid").evaluate("grid => { grid.scrollLeft = 300; }")
    after = cell.bounding_box()
    assert before is not None and after is not None and before["x"] == after["x"]
    assert page.locator("#grid .grid").evaluate("grid => grid.scrollLeft") > 0


@pytest.mark.extended
def test_pages_are_accessible_and_fit_their_window(viewer: Viewer) -> None:
    viewer.check_pages(*ADDRESSES)


@pytest.mark.extended
def test_search_shows_only_the_fields_of_its_way(viewer: Viewer) -> None:
    page = viewer.open("search/cinema/films")
    assert page.get_by_label("Words", exact=True).last.is_visible() and not page.get_by_label("Distance").is_visible()
    page.get_by_role("radio", name="Vector").check()
    assert page.get_by_label("Distance").is_visible()
    page.get_by_role("radio", name="Both").check()
    assert page.locator("#text").is_visible() and page.get_by_label("Distance").is_visible()


@pytest.mark.extended
def test_lineage_of_a_chosen_column_is_shown_beside_the_choice(viewer: Viewer) -> None:
    page = viewer.open("table/cinema/films")
    page.get_by_role("heading", name="Lineage").scroll_into_view_if_needed()
    choice = page.get_by_label("Of", exact=True)
    choice.wait_for()
    choice.focus()
    choice.select_option("title")
    page.locator("#lineage-path code", has_text="title").first.wait_for()
    assert page.evaluate("document.activeElement.id") == "lineage-column"
    viewer.check_accessible()
    viewer.check_fits()


def test_row_leads_to_rows_like_it(viewer: Viewer) -> None:
    page = viewer.open("rows/cinema/films?size=25")
    page.get_by_role("link", name="more like this").first.click()
    page.wait_for_url("**/search/cinema/films?mode=like**")
    assert page.locator(".grid tbody tr").count() == 10
    page.locator("#plan").select_option("analyze")
    page.get_by_role("button", name="Search").click()
    page.locator(".plan .step").first.wait_for()


@pytest.mark.extended
@pytest.mark.parametrize("name", ["CSV", "JSON lines", "Parquet", "Arrow"])
def test_download_saves_a_file(viewer: Viewer, name: str) -> None:
    page = viewer.open("rows/cinema/films?filter=id+%3C+5")
    page.get_by_text("Download", exact=True).click()
    with page.expect_download() as saved:
        page.get_by_role("link", name=name).click()
    assert saved.value.path().stat().st_size > 100


@pytest.mark.extended
def test_snippet_is_copied(browser: Browser, server: ServerProcess, tmp_path: Path) -> None:
    with Viewer.opened(browser, server.url, tmp_path, permissions=["clipboard-read", "clipboard-write"]) as viewer:
        page = viewer.open("table/cinema/films")
        page.get_by_role("button", name="Copy").first.click()
        page.get_by_role("button", name="Copied").wait_for()
        assert "import lancedb" in page.evaluate("navigator.clipboard.readText()")
