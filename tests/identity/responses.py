"""Requests with and without credentials, and checks of their responses."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx

from tests.services.wire import check_error

SLACK_SECONDS = 5
"""What a busy machine adds to a documented time; without what keeps to that time it would be minutes."""

LIST = "/v1/namespace/$/list"


def ask(url: str, headers: dict[str, str] | None = None) -> httpx.Response:
    """Send a request that every authenticated caller may send."""
    return httpx.get(url + LIST, headers=headers or {}, timeout=30)


def bearer(token: str) -> dict[str, str]:
    """Return the header for a token."""
    return {"authorization": f"Bearer {token}"}


def refused(response: httpx.Response) -> str:
    """Check that a response is a 401 in the form of all routes; return its message."""
    assert response.status_code == 401, (response.status_code, response.text)
    assert check_error(response) == 16
    assert response.headers["www-authenticate"] == 'Bearer realm="tiltyard"'
    message: str = response.json()["error"]
    return message


def wait_for(condition: Callable[[], object], seconds: float = 90) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.02)
