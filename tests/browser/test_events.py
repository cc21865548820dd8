"""The page of events in a browser: what happens comes to it by itself, until its reader works with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.services.wire import Wire

if TYPE_CHECKING:
    from tests.browser.viewer import Viewer
    from tests.services.server import ServerProcess

pytestmark = pytest.mark.extended


def test_events_come_live_until_the_reader_works_with_a_sink(viewer: Viewer, server: ServerProcess) -> None:
    page = viewer.open("events?type=namespace")
    page.get_by_text("live", exact=True).wait_for()
    with Wire(server.url) as wire:
        wire.good(wire.namespace(["shown_live"], "create"))
        page.get_by_role("cell", name="shown_live").wait_for()
        page.get_by_label("Which events lines gets again").focus()
        page.get_by_text("paused", exact=True).wait_for()
    page.get_by_label("Which events lines gets again").select_option("all")
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Replay lines").click()
    page.wait_for_url("**/console/events")
    page.get_by_role("row", name="lines").wait_for()
