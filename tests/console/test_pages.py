"""Pages of the console over HTTP: what they show, their headers, and requests that they refuse."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.services.console_data import FILMS
from tests.services.server import ServerProcess
from tests.services.wire import Wire

HOME = Path(__file__).resolve().parents[2]
CSRF = re.compile(r'x-csrf-token": "([0-9a-f]{64})"')


def port_of(http: httpx.Client) -> int | None:
    return urlsplit(str(http.base_url)).port


def test_home_lists_namespaces_and_allows_nothing_inline(http: httpx.Client) -> None:
    response = http.get("/")
    assert response.status_code == 200
    for name in ("cinema", "media", "empty"):
        assert f'href="/console/namespace/{name}"' in response.text
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert response.headers["cache-control"] == "no-store"
    assert not re.search(r"<script>|<style>| style=| on[a-z]+=", response.text)


def test_console_without_a_slash_leads_to_the_first_page(http: httpx.Client, server: ServerProcess) -> None:
    response = http.get(f"{server.url}/console")
    assert (response.status_code, response.headers["location"]) == (303, "/console/")


def test_browser_at_the_address_of_the_server_comes_to_the_console(http: httpx.Client, server: ServerProcess) -> None:
    page = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    response = http.get(f"{server.url}/", headers=page)
    assert (response.status_code, response.headers["location"]) == (303, "/console/")
    for method, headers in (("GET", {"accept": "*/*"}), ("POST", page)):
        response = http.request(method, f"{server.url}/", headers=headers)
        assert response.status_code in (404, 405, 406) and response.json()["error"]


def test_namespace_lists_its_tables_with_properties_and_its_path_unfolded(http: httpx.Client) -> None:
    text = http.get("/namespace/cinema").text
    assert "cinema team" in text
    assert text.count('href="/console/table/cinema/films"') == 2  # in the tree, and on the page
    assert 'aria-current="page"><bdi>cinema' in text


def test_empty_namespace_says_what_to_do_next(http: httpx.Client) -> None:
    text = http.get("/namespace/empty").text
    assert "This namespace is empty" in text and "create_table" in text


def test_tree_of_many_tables_continues_where_a_level_ends(http: httpx.Client, server: ServerProcess) -> None:
    with Wire(server.url) as wire:
        wire.good(wire.namespace(["many"], "create"))
        for number in range(130):
            wire.good(wire.table(["many", f"t{number:03}"], "declare"))
    first = http.get("/tree/many", headers={"hx-request": "true"}).text
    following = re.search(r'hx-get="([^"]*cursor=[^"]*)"', first)
    assert following is not None and first.count("/console/table/many/") == 100
    rest = http.get(f"{server.url}{following[1].replace('&amp;', '&')}", headers={"hx-request": "true"}).text
    assert rest.count("/console/table/many/") == 30 and "cursor=" not in rest
    beyond = http.get("/table/many/t129").text
    assert 'aria-current="page"><bdi>t129' in beyond  # it is shown in the tree, although its page is not


@pytest.mark.parametrize(
    ("place", "text", "path"),
    [("name", "FILM", FILMS), ("column", "genre", FILMS), ("column", "tags", ("media", "pictures"))],
)
def test_find_looks_for_tables_by_name_and_column(
    http: httpx.Client, place: str, text: str, path: tuple[str, str]
) -> None:
    found = http.get("/find", params={"q": text, "in": place}).text
    main = found.partition("<main")[2]
    assert re.findall(r'href="/console/table/([^"]+)"', main) == ["/".join(path)]


def test_find_looks_for_tables_by_property(http: httpx.Client, server: ServerProcess) -> None:
    with Wire(server.url) as wire:
        wire.good(wire.table(["empty", "owned"], "declare", {"properties": {"steward": "ann"}}))
    main = http.get("/find", params={"q": "steward=ann", "in": "property"}).text.partition("<main")[2]
    assert "/console/table/empty/owned" in main and "steward = ann" in main
    with Wire(server.url) as wire:
        wire.good(wire.table(["empty", "owned"], "drop"))


def test_find_without_a_hit_says_so(http: httpx.Client) -> None:
    assert "No table has this in its name" in http.get("/find", params={"q": "no such thing"}).text


@pytest.mark.parametrize(
    ("address", "status", "message"),
    [
        ("/namespace/nowhere", 404, "nowhere"),
        ("/table/cinema/nothing", 404, "look in the tree"),
        ("/unknown-page", 404, "no page at this address"),
        ("/find?q=x&in=heart", 400, "Search by name, property, column"),
        ("/namespace/%ff", 400, "not UTF-8"),
        ("/find?q=x&seen=many", 400, "whole number"),
        ("/namespace/" + "a" * 300, 400, "256 at most"),
    ],
)
def test_page_that_cannot_be_shown_says_why_and_what_to_do(
    http: httpx.Client, address: str, status: int, message: str
) -> None:
    response = http.get(address)
    assert response.status_code == status
    assert message in response.text and response.headers["x-request-id"] in response.text
    assert "Traceback" not in response.text and response.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example:2333"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "10.0.0.7:2333"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_request_of_a_foreign_page_is_refused(http: httpx.Client, headers: dict[str, str]) -> None:
    response = http.get("/", headers=headers)
    assert response.status_code == 403 and "cinema" not in response.text


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "console.localhost"])
def test_names_of_this_machine_are_served(http: httpx.Client, host: str) -> None:
    assert http.get("/", headers={"host": f"{host}:{port_of(http)}"}).status_code == 200


def test_change_needs_the_token_of_a_form(http: httpx.Client) -> None:
    for fields in ({}, {"csrf": ""}, {"csrf": "0" * 64}):
        refused = http.post("/sign-out", data=fields)
        assert refused.status_code == 403 and "another session" in refused.text
    token = CSRF.search(http.get("/").text)
    assert token is not None
    assert http.post("/sign-out", data={"csrf": token[1]}).status_code == 303
    foreign = http.post("/sign-out", data={"csrf": token[1]}, headers={"origin": "http://evil.example"})
    assert foreign.status_code == 403


def test_form_that_is_too_large_or_no_form_is_refused(http: httpx.Client) -> None:
    assert http.post("/sign-out", content=b"a=" + b"x" * (2 << 20)).status_code == 413
    assert http.post("/sign-out", json={"csrf": "x"}).status_code == 415
    assert http.post("/sign-out", data={"csrf": "x" * 100_001}).status_code == 400


def test_static_files_are_kept_for_good_and_compressed(http: httpx.Client, server: ServerProcess) -> None:
    text = http.get("/").text
    files = re.findall(r'(?:href|src)="(/console/static/[^"]+)"', text)
    assert len(files) >= 4
    for file in files:
        response = http.get(f"{server.url}{file}")
        assert response.status_code == 200 and "immutable" in response.headers["cache-control"]
    style = http.get(f"{server.url}{next(file for file in files if file.endswith('.css'))}")
    assert style.headers["content-encoding"] == "gzip" and len(style.content) > 5_000
    for name in ("../app.py", "nothing.css", "%2e%2e/app.py", ""):
        assert http.get(f"/static/abc/{name}").status_code == 404


def test_vendored_libraries_are_those_that_are_pinned() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/vendor_console.py", "--check"], cwd=HOME, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_server_without_its_console_has_no_page_there(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "--no-console")
    try:
        assert httpx.get(f"{server.url}/console/").json()["code"] == 0
        assert not any("console" in line for line in server.log)
    finally:
        server.stop()


def test_server_says_where_its_console_is(server: ServerProcess) -> None:
    assert f"The console is at {server.url}/console/\n" in server.log
