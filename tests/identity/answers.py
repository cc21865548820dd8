"""What a caller is told who is let in, or not."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx

from tests.services.wire import check_error

SLACK_SECONDS = 5
"""What a busy machine adds to a time that is promised; without what keeps the promise it would be minutes."""

LIST = "/v1/namespace/$/list"


def ask(url: str, headers: dict[str, str] | None = None) -> httpx.Response:
    """A call that everybody who is known may make."""
    return httpx.get(url + LIST, headers=headers or {}, timeout=30)


def bearer(token: str) -> dict[str, str]:
    """The header that shows a token."""
    return {"authorization": f"Bearer {token}"}


def refused(response: httpx.Response) -> str:
    """The message of a 401, once it is seen to be one as every route answers it."""
    assert response.status_code == 401, (response.status_code, response.text)
    assert check_error(response) == 16
    assert response.headers["www-authenticate"] == 'Bearer realm="tiltyard"'
    message: str = response.json()["error"]
    return message


def wait_for(condition: Callable[[], object], seconds: float = 90) -> None:
    """Return once it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.02)
