"""Pages in a browser on the server's machine, whose name leads to it: they get nothing, on no path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

from tests.attacks.watchdog import attacked_server

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services.server import ServerProcess

PATHS = ("/metrics", "/openapi.json", "/health/live", "/health/ready", "/v1/namespace/$/list")
PAGES: tuple[dict[str, str], ...] = (
    {"host": "evil.example:2333"},
    {"host": "evil.example:2333", "origin": "http://evil.example:2333", "sec-fetch-site": "same-origin"},
    {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
)


def test_page_from_elsewhere_reads_no_path_of_a_server_that_asks_nobody(victim: ServerProcess) -> None:
    for path in PATHS:
        assert httpx.get(victim.url + path).status_code == 200
        for page in PAGES:
            response = httpx.get(victim.url + path, headers=page)
            assert response.status_code == 403, (path, page, response.text)
            assert response.json()["code"] == 15


def test_page_from_elsewhere_is_nobody_who_asks_from_this_machine(tmp_path: Path) -> None:
    with attacked_server(tmp_path, "--auth") as server:
        assert httpx.get(f"{server.url}/metrics").status_code == 200
        for page in PAGES:
            assert httpx.get(f"{server.url}/metrics", headers=page).status_code == 401
