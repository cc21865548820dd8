"""An empty namespace in the console: commands with the server's own address, and the sample, loaded as its reader."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from tests.console.test_administration import act, words
from tests.console.test_sign_in import sign_in
from tests.services.secured import Secured, secured_server


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_server(tmp_path_factory.mktemp("sample"), names=("ann",)) as running:
        yield running


@pytest.fixture(scope="module")
def admin(secured: Secured) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{secured.url}/console", timeout=60, follow_redirects=True) as client:
        sign_in(client, secured.keys["administrator"])
        yield client


def test_empty_catalog_shows_commands_with_its_address_and_the_ways_to_a_table(
    admin: httpx.Client, secured: Secured
) -> None:
    response = admin.get("/", headers={"host": "lake.example.org:8443"})
    text = words(response)
    assert "tiltyard login http://lake.example.org:8443 tiltyard import films.csv films tiltyard head films" in text
    assert 'href="/console/upload"' in response.text and 'action="/console/sample"' in response.text
    with secured.http("administrator") as http:
        assert http.post("/v1/namespace/my%20things/create", json={}).status_code == 200
    inside = words(admin.get("/namespace/my%20things"))
    assert "tiltyard import films.csv 'my things.films'" in inside and "namespace_path=['my things']" in inside


def test_sample_is_loaded_into_a_new_namespace_and_searched_from_its_page(admin: httpx.Client) -> None:
    found = act(admin, "/sample", table="cinema.films")
    assert found.url.path == "/console/search/cinema/films" and found.status_code == 200
    links = re.findall(r'<li>[^<]+<a href="([^"]+)"', found.text.replace("&amp;", "&"))
    assert len(links) == 3
    titles = ("WALL·E", "Murder on the Orient Express", "Coraline")
    for address, title in zip(links, titles, strict=True):
        page = admin.get(address.removeprefix("/console"))
        assert page.status_code == 200 and title in page.text
    other = admin.get("/search/cinema/films?mode=vector&meaning=anything+else")
    assert other.status_code in (200, 400)  # as the model is installed here or not
    again = act(admin, "/sample/cinema", table="films")
    assert again.status_code == 409 and "already exists" in words(again).lower()


def test_name_that_is_none_is_refused_with_the_form_as_it_was(admin: httpx.Client) -> None:
    for name, said in (("a..b", "a name is empty"), ("", "Enter the name of the table"), ('"a', "not closed")):
        response = act(admin, "/sample/my%20things", table=name)
        assert response.status_code == 400 and said in words(response), name
        assert 'id="sample-table"' in response.text


def test_reader_without_the_right_is_not_offered_the_sample_and_refused(secured: Secured) -> None:
    with httpx.Client(base_url=f"{secured.url}/console", timeout=60, follow_redirects=True) as ann:
        sign_in(ann, secured.keys["ann"])
        home = ann.get("/")
        assert "No tables yet" in home.text and 'action="/console/sample"' not in home.text
        response = act(ann, "/sample", table="films")
        assert response.status_code == 403, response.text
        assert "Ask an administrator for the privilege" in words(response)
