"""Every page of the console is examined by axe-core, in a narrow and a wide window: no rule is violated."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.browser.accessibility import IN_THREE_WIDTHS, PAGES, PARTS, examine_all, prepare
from tests.browser.viewer import MAX_BAR
from tiltyard.console.access.keys import NEW_KEY
from tiltyard.console.routes import ROUTES

if TYPE_CHECKING:
    from tests.browser.viewer import Viewer
    from tests.services.server import ServerProcess


def test_every_page_is_among_those_that_are_examined() -> None:
    views = {route.view for route in ROUTES if route.method == "GET" and route.sign_in is None}
    addresses = [address.partition("?")[0] for address in PAGES.values()]
    missing = {
        view
        for view in views - PARTS - {NEW_KEY}
        if not any(address == view or address.startswith(f"{view}/") for address in addresses)
    }
    assert missing == set(), "add them to PAGES of tests/browser/accessibility.py, or to its PARTS"


@pytest.mark.extended
def test_pages_violate_no_rule_and_have_a_low_bar(viewer: Viewer, server: ServerProcess) -> None:
    elsewhere = {address for section in IN_THREE_WIDTHS.values() for address in section}
    others = [name for name, address in PAGES.items() if address not in elsewhere]
    findings = examine_all(viewer, prepare(server), others)
    wrong = {
        name: found
        for name, found in findings.items()
        if any(each.violations or each.excess > 0 or each.header > MAX_BAR for each in found)
    }
    assert wrong == {}
