"""Objects in a browser: a dropped file becomes a table, an index is built, a table is dropped and comes back."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.accessibility import IN_THREE_WIDTHS
from tests.browser.viewer import Viewer

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from tests.services.server import ServerProcess

PAGES = (
    "upload/media",
    "create-table/media",
    "indexes/cinema/films?column=vector",
    *IN_THREE_WIDTHS["objects"],
)
FILMS = b"title,year,zip\nAlien,1979,007\nBrazil,1985,123\n<script>alert(1)</script>,x,9\n"
DROP = """([place, name, text]) => {
    const data = new DataTransfer();
    data.items.add(new File([text], name));
    document.querySelector(place).dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
}"""


def choose(page: Page, name: str, content: bytes) -> None:
    page.set_input_files("#upload-file", {"name": name, "mimeType": "application/octet-stream", "buffer": content})


def test_file_becomes_a_table_with_the_types_that_were_changed(viewer: Viewer) -> None:
    page = viewer.open("upload/media")
    choose(page, "my films.csv.gz", gzip.compress(FILMS))
    columns = page.locator("#upload-columns")
    columns.locator("table").wait_for()
    assert page.get_by_label("Table", exact=True).input_value() == "my films"
    assert columns.locator("script").count() == 0 and "<script>alert(1)" in columns.inner_text()
    viewer.check_accessible()
    page.get_by_label("Type of year").fill("no type")
    page.get_by_label("Type of year").press("Tab")
    page.get_by_text("'no type' is not a type").wait_for()
    assert page.get_by_label("Type of year").input_value() == "no type"
    page.get_by_label("Type of year").fill("int16")
    page.get_by_label("Type of year").press("Tab")
    page.get_by_text("'no type' is not a type").wait_for(state="detached")
    columns.get_by_role("checkbox", name="zip").uncheck()
    page.get_by_role("button", name="Create the table").click()
    page.get_by_text("line 4: column 'year'").wait_for()  # ended, and nothing is written; the form is as it was
    assert page.get_by_label("Type of year").input_value() == "int16"
    page.get_by_label("is left out, and told").check()
    page.get_by_role("button", name="Create the table").click()
    result = page.locator("#upload-result")
    result.get_by_text("2 rows are in").wait_for()
    assert "1 row did not fit" in result.inner_text() and result.locator("script").count() == 0
    viewer.check_accessible()
    result.get_by_role("link").click()
    page.wait_for_url("**/rows/media/my%20films")
    assert page.locator("#grid tbody tr").count() == 2 and "zip" not in page.locator("#grid thead").inner_text()


def test_file_is_dropped_on_a_page_and_added_by_its_key(viewer: Viewer) -> None:
    page = viewer.open("namespace/media")
    page.evaluate(DROP, ["[data-drop]", "dropped.jsonl", '{"id": 1, "name": "a"}\n{"id": 2, "name": "b"}\n'])
    page.locator("#upload-columns table").wait_for()
    assert page.url.endswith("/upload/media")
    page.get_by_role("button", name="Create the table").click()
    page.get_by_text("2 rows are in").wait_for()
    page = viewer.open("table/media/dropped")
    page.get_by_role("link", name="Add rows from a file").click()
    page.get_by_label("What to do").select_option("upsert")
    choose(page, "more.csv", b"id,name\n2,z\n3,c\n")
    page.get_by_role("checkbox", name="id", exact=True).last.check()
    page.get_by_role("button", name="Write the rows").click()
    page.get_by_text("2 rows are in").wait_for()
    rows = viewer.open("rows/media/dropped?order=id").locator("#grid tbody tr")
    assert [row.split() for row in rows.all_inner_texts()] == [["1", "a"], ["2", "z"], ["3", "c"]]


def test_table_is_created_indexed_renamed_dropped_and_brought_back(viewer: Viewer) -> None:
    page = viewer.open("namespace/empty")
    page.get_by_role("link", name="Create a table").click()
    page.get_by_label("Name", exact=True).first.fill("it's <new>")
    page.get_by_label("Name", exact=True).nth(2).fill("words")
    page.get_by_label("Type", exact=True).nth(1).fill("text")
    page.get_by_role("button", name="More columns").click()
    assert page.get_by_label("Type", exact=True).nth(1).input_value() == "text"
    page.get_by_role("button", name="Create the table").click()
    page.get_by_role("heading", name="it's <new>").wait_for()
    page.get_by_role("link", name="Indexes", exact=True).first.click()
    page.get_by_label("Column", exact=True).select_option("words")
    page.wait_for_url("**column=words**")
    page.get_by_label("Type", exact=True).select_option("FTS")
    page.wait_for_url("**FTS**")
    page.get_by_role("button", name="Build FTS").click()
    page.locator("#index-list").get_by_text("covered").wait_for()  # it follows the build by itself
    page.get_by_role("link", name="Manage").click()
    page.get_by_label("Name", exact=True).fill("renamed")
    page.get_by_role("button", name="Rename").click()
    page.get_by_role("heading", name="renamed").wait_for()
    page.get_by_label("To drop it, type its name").fill("other")
    page.get_by_role("button", name="Drop the table").click()
    page.get_by_text("nothing was dropped").wait_for()
    page.get_by_label("To drop it, type its name").fill("renamed")
    page.get_by_role("button", name="Drop the table").click()
    page.wait_for_url("**/namespace/empty")
    viewer.open("dropped").get_by_role("button", name="Bring back renamed").first.click()
    page.wait_for_url("**/table/empty/renamed")


@pytest.mark.extended
@pytest.mark.parametrize("addresses", [PAGES[:4], PAGES[4:]])
def test_pages_of_objects_are_accessible_in_three_widths(
    browser: Browser, server: ServerProcess, tmp_path: Path, addresses: Any
) -> None:
    with Viewer.opened(browser, server.url, tmp_path) as viewer:
        viewer.check_pages(*addresses)
