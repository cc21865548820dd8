"""The SQL page in a browser: written with completion, run by keyboard, cancelled, charted, kept in the history."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.browser.accessibility import IN_THREE_WIDTHS
from tests.browser.viewer import Viewer
from tests.services.secured import Secured, secured_server

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from tests.services.server import ServerProcess

LONG = "SELECT sum(a.id * b.id * c.id * d.id) AS n FROM cinema.films a, cinema.films b, cinema.films c, cinema.films d"
PATIENCE_SECONDS = 60


def write(page: Page, text: str) -> None:
    page.get_by_label("Query", exact=True).fill(text)


def run(page: Page, text: str) -> None:
    write(page, text)
    page.keyboard.press("Control+Enter")


def running_queries(server: ServerProcess) -> int:
    """How many queries run, by the metrics."""
    (line,) = [line for line in httpx.get(f"{server.url}/metrics").text.splitlines() if "SQL queries running" in line]
    return int(float(line.rsplit(" ", 1)[1]))


def wait_for_queries(server: ServerProcess, number: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while running_queries(server) != number:
        assert time.monotonic() < deadline, f"{running_queries(server)} queries run"
        time.sleep(0.05)


def test_query_is_written_with_completion_and_run_by_keyboard(viewer: Viewer) -> None:
    page = viewer.open("sql")
    page.get_by_label("Query", exact=True).focus()
    options = page.locator("#suggestions [role=option]")
    page.keyboard.type("SELECT * FROM fil")
    options.filter(has_text="cinema.films").wait_for()
    page.keyboard.press("Tab")
    page.keyboard.type(" AS f WHERE f.ye")
    options.filter(has_text="year").wait_for()
    viewer.check_accessible()
    page.keyboard.press("ArrowDown")
    assert page.get_by_label("Query", exact=True).get_attribute("aria-activedescendant") == "suggestion-0"
    page.keyboard.press("Enter")
    page.keyboard.type(" > 2000")
    assert page.get_by_label("Query", exact=True).input_value() == "SELECT * FROM cinema.films AS f WHERE f.year > 2000"
    page.keyboard.press("Control+Enter")
    page.locator("#result .grid").wait_for()
    assert page.locator("#result tbody tr").count() == 38 and page.locator("#result svg.spark").count() == 38
    assert re.match(r"38 rows in [\d.]+ m?s", page.locator("[data-said]").inner_text())


def test_error_is_beside_the_text_which_stays(viewer: Viewer) -> None:
    page = viewer.open("sql")
    run(page, "SELECT id\nFROM cinema.films WHERE titel = 'x'")
    page.get_by_role("alert").get_by_text("No field named titel").wait_for()
    area = page.get_by_label("Query", exact=True)
    assert area.input_value().startswith("SELECT id") and area.get_attribute("aria-invalid") == "true"
    assert page.locator(".colours .wrong").inner_text() == "titel"
    assert area.evaluate("area => [document.activeElement === area, area.selectionStart]") == [True, 34]
    page.keyboard.press("Control+A")
    page.keyboard.type("SELECT 1 AS one")
    page.keyboard.press("Control+Enter")
    page.locator("#result .grid").wait_for()
    assert area.get_attribute("aria-invalid") is None and page.get_by_role("alert").count() == 0


def test_escape_cancels_and_the_server_stops_the_query(viewer: Viewer, server: ServerProcess) -> None:
    page = viewer.open("sql")
    run(page, LONG)
    wait_for_queries(server, 1)
    page.keyboard.press("Escape")
    page.get_by_text(re.compile("Cancelled after")).wait_for()
    wait_for_queries(server, 0)
    run(page, LONG)
    wait_for_queries(server, 1)
    page.get_by_role("button", name="Cancel").click()
    wait_for_queries(server, 0)
    run(page, "SELECT 2 AS two")
    page.locator("#result td", has_text="2").wait_for()


def test_result_is_charted_explained_and_downloaded(viewer: Viewer) -> None:
    page = viewer.open("sql")
    run(page, "SELECT genre, count(*) AS films, min(year) AS first FROM cinema.films GROUP BY genre")
    page.locator("summary", has_text="Chart").click()
    page.locator(".sql-chart canvas").wait_for()
    page.get_by_role("checkbox", name="films").check()
    assert page.locator(".sql-chart .legend").inner_text().split() == ["films", "first"]
    page.locator("summary", has_text="Download").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    assert download.value.suggested_filename == "query.csv"
    assert download.value.path().read_text().splitlines()[0] == "genre,films,first"
    page.get_by_role("button", name="Explain").click()
    page.locator(".plan", has_text="AggregateExec").wait_for()
    write(page, "SELECT nothing")
    page.locator("summary", has_text="Download").click()
    page.get_by_role("button", name="Parquet").click()
    page.get_by_role("alert").wait_for()
    assert page.get_by_label("Query", exact=True).input_value() == "SELECT nothing"


def test_hostile_values_and_names_do_nothing(viewer: Viewer) -> None:
    page = viewer.open("sql/media/hostile")
    page.keyboard.press("Tab")
    page.get_by_label("Query", exact=True).press("Control+Enter")
    page.locator("#result .grid").wait_for()
    assert page.title() == "SQL · Tiltyard" and page.locator("#result script, #result [onload]").count() == 0
    run(page, "SELECT '<img src=x onerror=alert(1)>' AS \"<img src=y>\" -- <script>alert(1)</script>")
    page.locator("#result td", has_text="<img src=x").wait_for()
    assert page.locator("main img, .colours script").count() == 0


@pytest.mark.extended
def test_page_is_accessible_and_fits_its_window(viewer: Viewer) -> None:
    viewer.check_pages(*IN_THREE_WIDTHS["sql"])
    page = viewer.open("sql")
    run(page, "SELECT * FROM media.pictures")
    page.locator("#result .grid img").first.wait_for()
    assert page.wait_for_function("() => document.querySelector('#result img').naturalWidth === 24")
    page.locator("summary", has_text="Chart").click()
    viewer.check_accessible()
    page.set_viewport_size({"width": 360, "height": 900})
    viewer.check_fits()


@pytest.mark.extended
def test_history_is_of_one_person_and_ends_with_the_session(
    browser: Browser, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with (
        secured_server(tmp_path_factory.mktemp("history"), names=("ann",)) as secured,
        Viewer.opened(browser, secured.url, tmp_path) as viewer,
    ):
        page = sign_in(viewer, secured, "ann")
        run(page, "SELECT 7 AS seven")
        page.locator("#result .grid").wait_for()
        write(page, "")
        page.locator("summary", has_text="History").click()
        page.get_by_role("button", name="SELECT 7 AS seven").click()
        assert page.get_by_label("Query", exact=True).input_value() == "SELECT 7 AS seven"
        write(page, "SELECT 8")
        page = viewer.open("sql")
        assert page.get_by_label("Query", exact=True).input_value() == "SELECT 8"
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url("**/console/sign-in")
        kept = page.evaluate("[...Object.keys(localStorage), ...Object.keys(sessionStorage)]")
        assert [name for name in kept if name.startswith("tiltyard")] == []
        page = sign_in(viewer, secured, "administrator")
        assert page.get_by_label("Query", exact=True).input_value() == ""


def sign_in(viewer: Viewer, secured: Secured, name: str) -> Page:
    page = viewer.open("sign-in?next=/console/sql")
    page.get_by_label("API key").fill(secured.keys[name])
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/sql")
    page.locator(".editor.is-coloured").wait_for()  # its script is at work
    return page
