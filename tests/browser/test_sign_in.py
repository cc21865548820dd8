"""Signing in by a browser: by key, and at a provider of another site, whose redirect brings no strict cookie."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.viewer import Viewer
from tests.services.console_data import pictures
from tests.services.node_openid import install_provider, provider_settings, running_provider
from tests.services.openid import OpenIdProvider, openid_provider
from tests.services.ports import reserve_port
from tests.services.secured import Secured, secured_server
from tests.services.wire import stream

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.extended


@pytest.fixture(scope="module")
def provider() -> Iterator[OpenIdProvider]:
    with openid_provider() as running:
        yield running


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, provider: OpenIdProvider) -> Iterator[Secured]:
    settings = provider.sign_in_settings
    settings["authorization_url"] = settings["authorization_url"].replace("127.0.0.1", "localhost")  # another site
    environ = {"TILTYARD_PROVIDERS": json.dumps({"corp": settings})}
    with secured_server(tmp_path_factory.mktemp("secured"), environ=environ) as running:
        yield running


@pytest.fixture
def visitor(browser: Browser, secured: Secured, tmp_path: Path) -> Iterator[Viewer]:
    with Viewer.opened(browser, secured.url, tmp_path) as viewer:
        yield viewer


def test_sign_in_page_is_accessible_and_fits_its_window(visitor: Viewer) -> None:
    visitor.check_pages("sign-in")


def test_person_signs_in_by_key_and_out_by_keyboard(visitor: Viewer, secured: Secured) -> None:
    page = visitor.open("namespace/nothing")
    assert page.evaluate("document.activeElement.id") == "key"
    page.keyboard.type("not a key")
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()
    page.get_by_label("API key").fill(secured.keys["administrator"])
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/namespace/nothing")
    visitor.open("")
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="Sign out").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/console/sign-in")


def test_bytes_of_a_cell_are_in_no_cache_after_signing_out(visitor: Viewer, secured: Secured) -> None:
    with secured.wire("administrator") as wire:
        wire.good(wire.table(["pictures"], "create", stream(pictures())))
    page = visitor.open("rows/pictures?at=v1")
    page.get_by_label("API key").fill(secured.keys["administrator"])
    page.keyboard.press("Enter")
    source = page.locator("img[src*='/console/bytes/']").first.get_attribute("src")
    fetch = "async source => { const got = await fetch(source, {cache: 'force-cache'}); return [got.url, got.status]; }"
    assert page.evaluate(fetch, source)[1] == 200
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/console/sign-in")
    assert "/console/sign-in" in page.evaluate(fetch, source)[0]


def test_person_signs_in_at_a_provider_of_another_site(visitor: Viewer) -> None:
    page = visitor.open("")
    page.get_by_role("link", name="Continue with corp").click()
    page.wait_for_url("**/console/")
    page.get_by_text("corp:dana").wait_for()
    visitor.problems[:] = [problem for problem in visitor.problems if "//localhost" not in problem]


def test_person_signs_in_at_a_certified_provider(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("provider")
    install_provider(folder)
    port, reserved = reserve_port()
    reserved.close()
    environ = {"TILTYARD_PROVIDERS": json.dumps({"node": provider_settings(port)})}
    with secured_server(tmp_path_factory.mktemp("certified"), environ=environ) as secured:
        redirect_uri = f"{secured.url}/console/sign-in/node/callback"
        with running_provider(folder, port, redirect_uri), Viewer.opened(browser, secured.url, folder) as viewer:
            page = viewer.open("")
            page.get_by_role("link", name="Continue with node").click()
            page.get_by_placeholder("Enter any login").fill("dana")
            page.get_by_placeholder("and password").fill("anything")
            page.get_by_role("button", name="Sign-in").click()
            page.get_by_role("button", name="Continue").click()
            page.wait_for_url("**/console/")
            page.get_by_text("node:dana").wait_for()
            viewer.problems.clear()  # the provider's own pages ask for fonts elsewhere
