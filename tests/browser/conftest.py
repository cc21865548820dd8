"""Chromium, driven by Playwright, and a server to look at. Without a browser the suite is skipped, and says so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.viewer import Viewer
from tests.services.console_data import make_tables
from tests.services.server import ServerProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser

EVENTS = {"TILTYARD_EVENT_SINKS": '{"lines": {"file": "/dev/null", "types": ["namespace"]}}'}
"""The server keeps events, and has a sink for them that fails."""
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str | None:
    """Return the path of a browser; None where none is installed."""
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start a browser for a file: as long as Playwright drives it, no test of this process can run asyncio."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = find_browser()
    if path is None:
        pytest.skip("There is no Chromium: scripts/install_services.sh chromium installs it on Debian.")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    running = ServerProcess(tmp_path_factory.mktemp("console"), environ=EVENTS)
    make_tables(running.url)
    yield running
    running.stop()


@pytest.fixture
def viewer(browser: Browser, server: ServerProcess, tmp_path: Path) -> Iterator[Viewer]:
    with Viewer.opened(browser, server.url, tmp_path) as opened:
        yield opened
