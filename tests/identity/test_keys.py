"""API keys: who is let in, and until when."""

from __future__ import annotations

import httpx
import pytest

from tests.services.secured import Secured
from tests.services.wire import check_error


def refused(response: httpx.Response) -> bool:
    """Whether it is a 401 as every route answers it."""
    if response.status_code != 401:
        return False
    assert check_error(response) == 16
    assert response.headers["www-authenticate"].startswith("Bearer ")
    return True


@pytest.mark.parametrize("path", ["/v1/namespace/$/list", "/v1/table/", "/v1/table"])
def test_list_without_credentials_is_refused(secured: Secured, path: str) -> None:
    with secured.http() as http:
        assert refused(http.get(path))


def test_list_with_a_key_is_answered(secured: Secured) -> None:
    for name in secured.keys:
        with secured.http(name) as http:
            assert http.get("/v1/namespace/$/list").status_code == 200
