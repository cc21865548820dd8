"""Requests that a browser sends for a foreign page, and repeated headers."""

from __future__ import annotations

import pytest
from lance_namespace.errors import InvalidInputError, PermissionDeniedError

from tiltyard.api.authentication import check_page, check_single

OWN = b"127.0.0.1:2333"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {b"host": OWN},
        {b"host": b"localhost:2333"},
        {b"host": b"LOCALHOST"},
        {b"host": b"[::1]:2333"},
        {b"host": b"tiltyard.localhost:2333"},
        {b"host": b"server"},
        {b"host": OWN, b"origin": b"http://127.0.0.1:2333", b"sec-fetch-site": b"same-origin"},
        {b"host": OWN, b"sec-fetch-site": b"none"},
    ],
)
def test_check_page_of_a_client_or_of_the_servers_own_page_is_let_through(headers: dict[bytes, bytes]) -> None:
    check_page(headers, by_any_name=False)


@pytest.mark.parametrize(
    "headers",
    [
        {b"host": OWN, b"origin": b"https://evil.example"},
        {b"host": OWN, b"origin": b"null"},
        {b"host": OWN, b"origin": b"http://127.0.0.1:8080"},
        {b"host": OWN, b"origin": b"http://127.0.0.1:2333.evil.example"},
        {b"host": OWN, b"sec-fetch-site": b"cross-site"},
        {b"host": OWN, b"sec-fetch-site": b"same-site"},
        {b"origin": b"https://"},
    ],
)
@pytest.mark.parametrize("by_any_name", [False, True])
def test_check_page_from_elsewhere_is_refused(headers: dict[bytes, bytes], by_any_name: bool) -> None:
    with pytest.raises(PermissionDeniedError, match="page of another origin"):
        check_page(headers, by_any_name=by_any_name)


@pytest.mark.parametrize(
    "host", [b"evil.example:2333", b"evil.example", b"127.0.0.1.evil.example", b"a.b:x", b"\xff.a"]
)
def test_check_page_by_a_name_of_the_network_is_refused_on_loopback(host: bytes) -> None:
    page = {b"host": host, b"origin": b"http://" + host, b"sec-fetch-site": b"same-origin"}
    with pytest.raises(PermissionDeniedError, match="use localhost"):
        check_page(page, by_any_name=False)
    check_page(page, by_any_name=True)


def test_check_single_of_a_header_that_comes_twice_is_refused() -> None:
    check_single([(b"accept", b"a"), (b"accept", b"b"), (b"x-api-key", b"k")])
    for name in (b"x-api-key", b"authorization", b"host", b"idempotency-key"):
        with pytest.raises(InvalidInputError, match="came twice"):
            check_single([(name, b"a"), (b"accept", b"a"), (name, b"a")])
