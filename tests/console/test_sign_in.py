"""Signing in to the console: by key, at an OpenID provider; its cookie, and how a session ends."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.services.console_data import make_tables
from tests.services.openid import OpenIdProvider, openid_provider
from tests.services.secured import Secured, secured_server
from tests.services.server import ServerProcess

CSRF = re.compile(r'name="csrf" value="([0-9a-f]{64})"')
PATIENCE_SECONDS = 60


@pytest.fixture(scope="module")
def provider() -> Iterator[OpenIdProvider]:
    with openid_provider() as running:
        yield running


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, provider: OpenIdProvider) -> Iterator[Secured]:
    environ = {"TILTYARD_PROVIDERS": json.dumps({"corp": provider.sign_in_settings})}
    with secured_server(tmp_path_factory.mktemp("secured"), environ=environ) as running:
        make_tables(running.url, running.keys["administrator"])
        yield running


@pytest.fixture
def visitor(secured: Secured) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"{secured.url}/console", timeout=60) as client:
        yield client


def sign_in(visitor: httpx.Client, key: str, **fields: str) -> httpx.Response:
    """Send the form of the sign-in page."""
    token = CSRF.search(visitor.get("/sign-in").text)
    assert token is not None
    return visitor.post("/sign-in", data={"csrf": token[1], "key": key, **fields})


def test_visitor_is_sent_to_the_sign_in_and_sees_nothing_else(visitor: httpx.Client) -> None:
    response = visitor.get("/table/cinema/films?x=1")
    assert response.status_code == 303
    assert response.headers["location"] == "/console/sign-in?next=%2Fconsole%2Ftable%2Fcinema%2Ffilms%3Fx%3D1"
    part = visitor.get("/tree/cinema", headers={"hx-request": "true"})
    assert part.headers["hx-redirect"] == "/console/sign-in" and part.text == ""
    page = visitor.get("/sign%2Din").text
    assert "Continue with corp" in page and "cinema" not in page


def test_sign_in_by_key_starts_a_session_in_a_strict_cookie(visitor: httpx.Client, secured: Secured) -> None:
    response = sign_in(visitor, secured.keys["administrator"], next="/console/namespace/cinema")
    assert (response.status_code, response.headers["location"]) == (303, "/console/namespace/cinema")
    cookie = response.headers["set-cookie"]
    assert {"HttpOnly", "Path=/console", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
    assert "Secure" not in cookie  # not under TLS here
    assert secured.keys["administrator"] not in cookie
    text = visitor.get("/namespace/cinema").text
    assert "administrator" in text and "/console/table/cinema/films" in text


def test_session_cookie_is_secure_behind_tls(tmp_path: Path) -> None:
    with (
        secured_server(tmp_path, environ={"TILTYARD_TRUSTED_PROXIES": '["127.0.0.1"]'}) as secured,
        httpx.Client(base_url=f"{secured.url}/console", headers={"x-forwarded-proto": "https"}, timeout=60) as visitor,
    ):
        cookie = sign_in(visitor, secured.keys["ann"]).headers["set-cookie"]
        assert "; Secure" in cookie and cookie.startswith("__Secure-")


def test_each_sign_in_starts_another_session(visitor: httpx.Client, secured: Secured) -> None:
    first = sign_in(visitor, secured.keys["ann"]).headers["set-cookie"]
    first_token = CSRF.search(visitor.get("/").text)
    assert first != sign_in(visitor, secured.keys["ann"]).headers["set-cookie"]
    second_token = CSRF.search(visitor.get("/").text)
    assert first_token is not None and second_token is not None
    assert first_token[1] != second_token[1]
    assert visitor.post("/sign-out", data={"csrf": first_token[1]}).status_code == 403


@pytest.mark.parametrize("key", ["", "tilt_0123456789abcdef_" + "x" * 43, "nonsense", "x" * 10_000])
def test_wrong_key_gets_the_form_again(visitor: httpx.Client, key: str) -> None:
    response = sign_in(visitor, key)
    assert response.status_code == 401 and 'role="alert"' in response.text
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize(
    "address",
    [
        *("https://evil.example/", "//evil.example/", "/\\evil.example", "javascript:alert(1)", "/v1/table"),
        *("/console/\r\nset-cookie: x=y", "/console/../v1/table\\"),
    ],
)
def test_sign_in_goes_on_within_the_console_alone(visitor: httpx.Client, secured: Secured, address: str) -> None:
    response = sign_in(visitor, secured.keys["ann"], next=address)
    assert response.headers["location"] == "/console/"


def test_sign_out_ends_the_session_of_the_browser(visitor: httpx.Client, secured: Secured) -> None:
    sign_in(visitor, secured.keys["ann"])
    token = CSRF.search(visitor.get("/").text)
    assert token is not None
    assert visitor.post("/sign-out", data={"csrf": token[1]}).headers["location"] == "/console/sign-in"
    assert visitor.get("/").status_code == 303


def test_cookie_that_was_changed_or_is_of_another_server_is_no_session(visitor: httpx.Client, secured: Secured) -> None:
    sign_in(visitor, secured.keys["ann"])
    [(name, value)] = visitor.cookies.items()
    for changed in (value[:-4] + "AAAA", value[:20], "", "é", "x" * 5_000, value + "=", value.swapcase()):
        response = httpx.get(f"{secured.url}/console/", headers={"cookie": f"{name}={changed}".encode()})
        assert response.status_code == 303, changed


def test_session_ends_when_its_key_is_revoked(visitor: httpx.Client, secured: Secured) -> None:
    with secured.http("administrator") as http:
        created = http.post("/tiltyard/v1/key/create", json={"principal": "carl"}).json()
        sign_in(visitor, created["api_key"])
        assert visitor.get("/").status_code == 200
        assert http.post("/tiltyard/v1/key/revoke", json={"key_id": created["key"]["key_id"]}).status_code == 200
    deadline = time.monotonic() + PATIENCE_SECONDS
    while visitor.get("/").status_code == 200:
        assert time.monotonic() < deadline, "the session goes on"
        time.sleep(0.2)
    assert visitor.get("/").status_code == 303


def test_principal_sees_what_it_was_granted_and_nothing_else(visitor: httpx.Client, secured: Secured) -> None:
    sign_in(visitor, secured.keys["bob"])
    assert "/console/namespace/cinema" not in visitor.get("/").text
    assert visitor.get("/namespace/cinema").status_code == 404
    with secured.http("administrator") as http:
        grant = {"object_kind": "namespace", "id": ["cinema"], "grantee": "bob", "privileges": ["read"]}
        granted = http.post("/tiltyard/v1/grant/add", json=grant)
        assert granted.status_code == 200, granted.text
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "/console/namespace/cinema" not in visitor.get("/").text:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert "/console/namespace/media" not in visitor.get("/").text


def test_sign_in_at_a_provider_by_code_and_challenge(visitor: httpx.Client, provider: OpenIdProvider) -> None:
    left = visitor.get("/sign-in/corp", params={"next": "/console/namespace/cinema"})
    query = parse_qs(urlsplit(left.headers["location"]).query)
    assert query["code_challenge_method"] == ["S256"] and query["response_type"] == ["code"]
    assert "SameSite=lax" in left.headers["set-cookie"]
    back = httpx.get(left.headers["location"]).headers["location"]
    arrived = visitor.get(back)
    assert arrived.status_code == 200 and 'content="0; url=/console/namespace/cinema"' in arrived.text
    assert any("SameSite=strict" in cookie for cookie in arrived.headers.get_list("set-cookie"))
    assert "corp:dana" in visitor.get("/").text
    assert visitor.get(back).status_code == 401  # neither its state nor its code counts twice


def test_response_of_a_provider_that_nobody_asked_for_is_refused(
    visitor: httpx.Client, secured: Secured, provider: OpenIdProvider
) -> None:
    left = visitor.get("/sign-in/corp")
    back = httpx.get(left.headers["location"]).headers["location"]
    with httpx.Client(base_url=f"{secured.url}/console", timeout=60) as other:
        assert other.get(back).status_code == 401  # another browser: signing it in as somebody else
        assert not other.cookies
    forged = back.replace("state=", "state=x")
    assert visitor.get(forged).status_code == 401
    left = visitor.get("/sign-in/corp")
    back = httpx.get(left.headers["location"]).headers["location"]
    code = parse_qs(urlsplit(back).query)["code"][0]
    provider.codes[code]["code_challenge"] = "of another verifier"
    assert visitor.get(back).status_code == 401
    assert visitor.get("/sign-in/unknown").status_code == 404


@pytest.mark.parametrize("address", ["/access/keys", "/versions/cinema/films", "/job", "/sign-out"])
def test_form_that_is_sent_after_its_key_was_revoked_says_that_the_session_has_ended(
    visitor: httpx.Client, secured: Secured, address: str
) -> None:
    with secured.http("administrator") as http:
        created = http.post("/tiltyard/v1/key/create", json={"principal": "ann"}).json()
        sign_in(visitor, created["api_key"])
        token = CSRF.search(visitor.get("/access/keys").text)
        assert token is not None
        assert http.post("/tiltyard/v1/key/revoke", json={"key_id": created["key"]["key_id"]}).status_code == 200
    deadline = time.monotonic() + PATIENCE_SECONDS
    while visitor.get("/access/keys").status_code == 200:
        assert time.monotonic() < deadline
    data = {"csrf": token[1], "action": "revoke", "key": "x"}
    for headers in ({}, {"hx-request": "true"}):
        answer = visitor.post(address, data=data, headers=headers)
        leads_to = answer.headers.get("location") or answer.headers["hx-redirect"]
        assert leads_to.startswith("/console/sign-in?ended=")
    page = visitor.get(f"{secured.url}{leads_to}")
    assert page.status_code == 200 and "Your session has ended" in page.text and "not allowed" not in page.text


@pytest.mark.extended
def test_session_holds_in_every_process_and_replica(tmp_path: Path) -> None:
    with secured_server(tmp_path, "--workers", "2") as secured:
        other = ServerProcess(tmp_path, "--auth")
        try:
            with httpx.Client(base_url=f"{secured.url}/console", timeout=60) as visitor:
                sign_in(visitor, secured.keys["ann"])
                cookies = dict(visitor.cookies)
                for url in (secured.url,) * 8 + (other.url,):
                    response = httpx.get(
                        f"{url}/console/", cookies=cookies, headers={"connection": "close"}, timeout=60
                    )
                    assert response.status_code == 200 and "ann" in response.text
        finally:
            other.stop()
