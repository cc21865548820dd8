"""A person at the console: a browser window, which notes whatever a page does that none of the console's may do."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDTHS = (360, 1280, 2560)
DARK_WIDTH = 1280
HEIGHT = 900
MAX_PAGE_BYTES = 300 * 1024
PATIENCE_MS = 150_000
MAX_BAR = 64
"""Pixels that the bar may be high."""
COLOUR_RULES = ("color-contrast", "link-in-text-block")
"""Axe-core's rules of colours, the first of which takes it longer than all others together."""
RUN_AXE = """async (options) => {
  const { violations, passes } = await axe.run(document, options);
  return { violations, passes: passes.map((each) => each.id) };
}"""
SCROLLED_SIDEWAYS = """() => [...document.querySelectorAll("main *, header *")]
  .filter((each) => !each.closest(".grid, textarea, input, svg, canvas, select, .visually-hidden, .scroll thead"))
  .filter((each) => each.clientWidth > 0 && ["auto", "scroll"].includes(getComputedStyle(each).overflowX))
  .filter((each) => each.scrollWidth > each.clientWidth + 1 && window.innerWidth < 768)
  .map((each) => each.outerHTML.slice(0, 120))"""
"""Elements of a narrow window that have to be scrolled sideways, but for grids."""


class Viewer:
    """One window. `problems` has errors of scripts, what the content security policy refused, and foreign requests."""

    def __init__(self, page: Page, url: str, folder: Path) -> None:
        self.page = page
        self.url = url
        self.folder = folder
        self.problems: list[str] = []
        self._finished: list[Any] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.problems.append(f"script: {error}"))
        page.on("console", self._note_message)
        page.on("request", self._note_request)
        page.on("dialog", self._note_dialog)
        page.on("requestfinished", self._note_finished)

    @classmethod
    @contextmanager
    def opened(cls, browser: Browser, url: str, folder: Path, **options: Any) -> Iterator[Self]:
        """Open a window; close it at the end, when there must be no problems."""
        context = browser.new_context(
            viewport={"width": 1280, "height": HEIGHT}, color_scheme="light", accept_downloads=True, **options
        )
        try:
            viewer = cls(context.new_page(), url, folder)
            yield viewer
            assert viewer.problems == []
        finally:
            context.close()

    def open(self, address: str) -> Page:
        """Open a page of the console, and wait until all of it has loaded; it has to be a light one."""
        self._finished.clear()
        self.page.goto(f"{self.url}/console/{address}", wait_until="load")
        if not self.page.locator("#following").count():  # a page that follows events never comes to rest
            self.page.wait_for_load_state("networkidle")
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while not any(request.is_navigation_request() for request in self._finished):
            assert time.monotonic() < deadline, f"{address} did not finish"
            self.page.wait_for_timeout(20)  # the browser's word of it may come after that of its network
        size = sum(_bytes(request) for request in list(self._finished))
        assert 0 < size < MAX_PAGE_BYTES, f"{address} takes {size} bytes"
        return self.page

    def check_accessible(self, **options: Any) -> None:
        """Have axe-core find nothing, by all its rules, those of good practice too, unless options say otherwise."""
        violations = [
            (violation["id"], violation["impact"], [node["html"][:200] for node in violation["nodes"][:3]])
            for violation in run_axe(self.page, **options)["violations"]
        ]
        assert violations == []

    def check_fits(self) -> None:
        """Have the page not be wider than its window, nothing but grids scroll sideways in it, and its bar be low."""
        wide = self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"the page is {wide} pixels wider than its window"
        assert self.page.evaluate(SCROLLED_SIDEWAYS) == []
        assert self.page.locator("header.bar").bounding_box()["height"] <= MAX_BAR  # type: ignore[index]  # it is shown

    def check_pages(self, *addresses: str) -> None:
        """Open pages in the widest window and narrow it, then with dark colours; keep a screenshot of what fails.

        Colours are the same at all widths: those of the widest and the narrowest window are examined.
        Where things are is the same in all colours: in dark ones they alone are.
        """
        others = {rule: {"enabled": False} for rule in COLOUR_RULES}
        for address in addresses:
            self.page.emulate_media(color_scheme="light")
            self.page.set_viewport_size({"width": max(WIDTHS), "height": HEIGHT})
            self.open(address)
            for width in sorted(WIDTHS, reverse=True):
                self.page.set_viewport_size({"width": width, "height": HEIGHT})
                rules = {} if width in (min(WIDTHS), max(WIDTHS)) else {"rules": others}
                self._check_page(f"{address} in a window of {width} pixels", **rules)
            self.page.emulate_media(color_scheme="dark")
            self.page.set_viewport_size({"width": DARK_WIDTH, "height": HEIGHT})
            self._check_page(f"{address} with dark colours", runOnly=list(COLOUR_RULES))

    def _check_page(self, what: str, **options: Any) -> None:
        try:
            self.check_accessible(**options)
            self.check_fits()
        except AssertionError as error:
            error.add_note(f"{what}: {self.shoot(re.sub(r'[^a-z0-9]+', '-', what))}")
            raise

    def shoot(self, name: str) -> Path:
        """Keep a screenshot among the test's artefacts."""
        file = self.folder / f"{name}.png"
        self.page.screenshot(path=str(file))
        return file

    def _note_message(self, message: Any) -> None:
        if message.type in ("error", "warning") and "status of 4" not in message.text:
            self.problems.append(f"{message.type}: {message.text}")

    def _note_request(self, request: Any) -> None:
        if urlsplit(request.url).netloc != urlsplit(self.url).netloc and not request.url.startswith("blob:"):
            self.problems.append(f"request elsewhere: {request.url[:200]}")

    def _note_finished(self, request: Any) -> None:
        self._finished.append(request)

    def _note_dialog(self, dialog: Any) -> None:
        if dialog.type == "alert":
            self.problems.append(f"dialog: {dialog.message}")
        dialog.accept()


def run_axe(page: Page, **options: Any) -> dict[str, Any]:
    """Have axe-core, which a page loads once, examine it; return its `violations`, and the rules that hold."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(Axe().axe_script)
    found: dict[str, Any] = page.evaluate(RUN_AXE, {"resultTypes": ["violations"], **options})
    return found


def _bytes(request: Any) -> int:
    """Return the bytes of a response on the wire."""
    sizes = request.sizes()
    size: int = sizes["responseBodySize"] + sizes["responseHeadersSize"]
    return size
