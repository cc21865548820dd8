"""No response of the console or the API may stay in a cache: a policy or a revoked grant may hide it later."""

from __future__ import annotations

import httpx
import pytest

from tests.services.console_data import FILMS
from tests.services.server import ServerProcess
from tiltyard.api.pages import PATHS
from tiltyard.console.routes import ROUTES, PageRoute
from tiltyard.model.spec import operations

TABLE = "/".join(FILMS)
PICTURE = "media/pictures?column=picture&row=0&at=v1"
ADDRESSES = {
    "namespace": "namespace/cinema",
    "tree": "tree/cinema",
    "access/grants": "access/grants/cinema",
    "bytes": f"bytes/{PICTURE}",
    "cell": f"cell/{PICTURE}",
    "map-row": f"map-row/{TABLE}?at=v1&row=0",
    "compare": f"compare/{TABLE}?from=v1&to=v1",
    "restore": f"restore/{TABLE}?version=1",
    "see-as": f"see-as/{TABLE}?principal=dana",
    "branch": f"branch/{TABLE}?name=none",
    "find": "find?q=films",
}
"""Addresses of pages that need more than the name of a table."""
MISSING = {"sign-in/{provider}", "sign-in/{provider}/callback", "access/principal", "access/erasure", "branch"}
MISSING |= {"job", "job/changes", "events/changes", "events/dead-letters"}
"""Pages of what this server does not have, or that need more than an address, which are errors here; so are forms that
are sent without their token."""


def fetch_each(http: httpx.Client, route: PageRoute) -> list[httpx.Response]:
    """Request a page of its table whole, as a part, by a range, and in a way that it does not have."""
    names = route.names_object or "?" in ADDRESSES.get(route.view, "")
    address = ADDRESSES.get(route.view, f"{route.view}/{TABLE}") if names else route.view
    variants = ({}, {"hx-request": "true"}, {"range": "bytes=0-3"}, {"origin": "http://evil.example"})
    sent = [http.request(route.method, f"/{address}", headers=headers) for headers in variants]
    assert all(response.status_code < 500 for response in sent)
    if route.method == "GET" and route.view not in MISSING:
        assert {response.status_code for response in sent[:3]} <= {200, 206, 303}, (address, sent[0].text)
    return [*sent, http.request("PUT", f"/{address}")]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.view} {route.names_object}")
def test_page_of_the_console_is_not_stored(http: httpx.Client, route: PageRoute) -> None:
    for response in fetch_each(http, route):
        assert response.headers["cache-control"] == "no-store", (response.status_code, response.headers)


def test_response_of_the_api_is_not_stored(server: ServerProcess) -> None:
    """Those of all operations are checked wherever tests send requests (`tests/services/wire.py`)."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        paths = [*sorted(path.decode() for path in PATHS), "/", "/nothing", "/v1/nothing"]
        sent = [client.request(method, path) for path in paths for method in ("GET", "OPTIONS", "DELETE")]
        for operation in operations().values():
            path = operation.path.format(id="$".join(FILMS), index_name="x", column="title", row_id="0")
            sent += [client.request(method, path) for method in (operation.method, "TRACE")]
    for response in sent:
        assert response.headers["cache-control"] == "no-store", (str(response.url), response.headers)
