"""Tokens of a mount's OAuth2 client: renewed in time, once at a rejection, fetched by one thread, and never shown."""

from __future__ import annotations

import time
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import parse_qs

import pytest
from lance_namespace.errors import ServiceUnavailableError, UnauthenticatedError

from tests.services.ports import reserve_port
from tests.services.stub_catalog import Answer, StubRequest, stub_catalog
from tiltyard.mounts.catalog_errors import MalformedAnswerError
from tiltyard.mounts.http.client import HttpConnections, HttpSettings, ResponseError
from tiltyard.mounts.http.oauth2 import ClientCredentials, json_client


class TokenService:
    """Issues tokens by number, and takes the newest at other paths, unless `rejects` of them are to be rejected."""

    def __init__(self, expires_in: float | None = 100, seconds: float = 0) -> None:
        self.issued = 0
        self.rejects = 0
        self.expires_in = expires_in
        self.seconds = seconds

    def answer(self, request: StubRequest) -> Answer:
        """Answer a request."""
        if request.path == "/token":
            time.sleep(self.seconds)
            self.issued += 1
            life = {} if self.expires_in is None else {"expires_in": self.expires_in}
            return 200, {"access_token": f"hunter{self.issued}", "token_type": "bearer", **life}
        if self.rejects:
            self.rejects -= 1
            return 401, {}
        return (200, {}) if request.headers["authorization"] == f"Bearer hunter{self.issued}" else (401, {})


def settings(url: str, **more: Any) -> HttpSettings:
    values = {"uri": url, "client_id": "mount", "client_secret": "s:ecret", "oauth2_uri": f"{url}/token", **more}
    return HttpSettings(**{"timeout": 5, "connect_timeout": 1, **values})


def test_a_token_is_used_until_shortly_before_it_expires() -> None:
    now, service = [0.0], TokenService(expires_in=100)
    with stub_catalog(service.answer) as stub:
        http = settings(stub.url)
        tokens = ClientCredentials("It", HttpConnections("It", http), http, lambda: now[0])
        for seconds, number in ((0.0, 1), (79.0, 1), (81.0, 2), (160.0, 2), (162.0, 3)):
            now[0] = seconds
            assert tokens.headers("GET", "/", None) == {"Authorization": f"Bearer hunter{number}"}


def test_a_token_without_an_expiry_is_used_until_it_is_rejected() -> None:
    now, service = [0.0], TokenService(expires_in=None)
    with stub_catalog(service.answer) as stub:
        http = settings(stub.url)
        tokens = ClientCredentials("It", HttpConnections("It", http), http, lambda: now[0])
        for seconds in (0.0, 1e9):
            now[0] = seconds
            headers = tokens.headers("GET", "/", None)
        assert tokens.reject(headers)
        assert tokens.headers("GET", "/", None) == {"Authorization": "Bearer hunter2"}
        assert tokens.reject(headers)  # another thread's, of the token before
        assert tokens.headers("GET", "/", None) == {"Authorization": "Bearer hunter2"}


def test_a_rejected_token_is_renewed_once_and_not_for_ever() -> None:
    service = TokenService()
    with stub_catalog(service.answer) as stub:
        client = json_client("It", settings(stub.url))
        client.request("GET", f"{stub.url}/a")
        service.rejects = 1
        client.request("POST", f"{stub.url}/b", body={"x": 1})
        assert service.issued == 2
        assert [request.json for request in stub.requests if request.path == "/b"] == [{"x": 1}, {"x": 1}]
        service.rejects = 10
        with pytest.raises(ResponseError):
            client.request("GET", f"{stub.url}/c")
        assert (service.issued, service.rejects) == (3, 8)


def test_many_threads_fetch_one_token() -> None:
    service = TokenService(seconds=0.2)
    with stub_catalog(service.answer) as stub, ThreadPoolExecutor(8) as threads:
        client = json_client("It", settings(stub.url))
        list(threads.map(lambda number: client.request("GET", f"{stub.url}/{number}"), range(16)))
    assert service.issued == 1


@pytest.mark.parametrize("style", ["body", "header"])
def test_the_secret_is_in_the_body_or_in_a_header(style: str) -> None:
    with stub_catalog(TokenService().answer) as stub:
        client = json_client("It", settings(stub.url, oauth2_style=style, scope="all of it"))
        client.request("GET", f"{stub.url}/a")
    request = stub.requests[0]
    form = {key: values[0] for key, values in parse_qs(request.body.decode()).items()}
    shared = {"grant_type": "client_credentials", "scope": "all of it"}
    if style == "body":
        assert form == {**shared, "client_id": "mount", "client_secret": "s:ecret"}
        assert "authorization" not in request.headers
    else:
        assert form == shared
        assert b64decode(request.headers["authorization"].removeprefix("Basic ")) == b"mount:s%3Aecret"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((401, {"error": "invalid_client", "error_description": "s:ecret"}), UnauthenticatedError),
        ((400, {"error": "invalid_scope"}), UnauthenticatedError),
        ((503, {}), ServiceUnavailableError),
        ((200, {"token": "s:ecret"}), MalformedAnswerError),
        ((200, b"s:ecret"), MalformedAnswerError),
    ],
)
def test_a_token_service_that_gives_none_is_an_error_without_secrets(answer: Answer, error: type[Exception]) -> None:
    with stub_catalog(lambda _: answer) as stub:
        client = json_client("It", settings(stub.url))
        with pytest.raises(error) as caught:
            client.request("GET", f"{stub.url}/a")
    assert "s:ecret" not in str(caught.value)
    assert "s:ecret" not in repr(settings(stub.url))
    assert len(stub.requests) == 1


def test_a_token_service_that_hangs_or_is_not_there_costs_no_more_than_the_time_of_two_requests() -> None:
    port, reserved = reserve_port()
    with reserved, stub_catalog(TokenService(seconds=3).answer) as hanging, ThreadPoolExecutor(8) as threads:
        for url in (f"http://127.0.0.1:{port}", hanging.url):
            client = json_client("It", settings(url, timeout=0.5))

            def attempt(_: int, url: str = url) -> float:
                started = time.monotonic()
                with pytest.raises(ServiceUnavailableError):
                    client.request("GET", f"{url}/a")  # noqa: B023  # used before the next one is made
                return time.monotonic() - started

            assert max(threads.map(attempt, range(8))) < 2.5
