"""`tiltyard demo` from its start to its end: what it prints is clicked in a browser, and lancedb searches its table."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.viewer import Viewer
from tests.services.ports import reserve_two_ports
from tiltyard.cli.demo import FOLDER_PREFIX

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SHOWN = "The console: "


@dataclass
class Demo:
    """The running command, its URL, and the addresses of its searches by their kind."""

    process: subprocess.Popen[str]
    url: str
    searches: dict[str, str]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """Start the demo on a folder that it removes. Variables of another server are there, and do not count."""
    folder = tmp_path_factory.mktemp("demo")
    port, _reserved = reserve_two_ports()
    environ = os.environ | {"TMPDIR": str(folder), "TILTYARD_DB": "postgresql://nowhere/other", "TILTYARD_AUTH": "true"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tiltyard", "demo", "--no-browser", "--port", str(port)],
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    )
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith("Ctrl-C"):
            break
    searches = dict(re.findall(r"^  ([\w ,]+): .*\n    (http\S+)$", said, re.MULTILINE))
    assert f"{SHOWN}http://127.0.0.1:{port}/console/table/films" in said, said
    yield Demo(process, f"http://127.0.0.1:{port}", searches)
    assert list(folder.glob(f"{FOLDER_PREFIX}*"))
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert not list(folder.glob(f"{FOLDER_PREFIX}*"))


def test_its_links_find_films_in_a_browser(demo: Demo, browser: Browser, tmp_path: Path) -> None:
    assert list(demo.searches) == ["by meaning", "by words", "like a film, filtered"]
    expected = ("WALL·E", "Murder on the Orient Express", "My Neighbor Totoro")
    with Viewer.opened(browser, demo.url, tmp_path) as viewer:
        for address, title in zip(demo.searches.values(), expected, strict=True):
            page = viewer.open(address.removeprefix(f"{demo.url}/console/"))
            found = page.locator(".grid tbody").inner_text()
            assert (title in found) == (title != "My Neighbor Totoro"), found  # that is of Japan, which is filtered out
        page = viewer.open("search/films?mode=vector&meaning=ghosts+in+an+old+house")
        assert "The Haunting" in page.locator(".grid tbody").inner_text()


def test_stock_client_searches_its_table(demo: Demo) -> None:
    import lancedb

    table = lancedb.connect("db://demo", api_key="any", host_override=demo.url).open_table("films")
    assert table.count_rows() == 727
    words = table.search("murder train", query_type="fts").limit(5).to_list()
    assert "Murder on the Orient Express" in [row["title"] for row in words]
    [liked] = table.search().where("title = 'Spirited Away'").to_list()
    nearest = table.search(liked["vector"]).where("country != 'Japan'").limit(5).to_list()
    assert "Coraline" in [row["title"] for row in nearest]
