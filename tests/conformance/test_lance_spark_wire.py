"""The requests of lance-spark 0.4.0, as they were on the wire (`tests.conformance.lance_spark` runs the connector)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.conftest import Raw

SPACE = '{"context":{},"id":["SPACE"]}'
TABLE = '{"context":{},"id":["SPACE","people"]}'
REQUESTS = (
    ("GET", "/v1/namespace/%24/list?delimiter=%24", "", 200),
    ("POST", "/v1/namespace/SPACE/exists?delimiter=%24", SPACE, 404),
    ("POST", "/v1/namespace/SPACE/create?delimiter=%24", SPACE[:-1] + ',"properties":{"owner":"root"}}', 200),
    ("POST", "/v1/namespace/SPACE/exists?delimiter=%24", SPACE, 200),
    ("POST", "/v1/namespace/SPACE/describe?delimiter=%24", SPACE, 200),
    ("POST", "/v1/table/SPACE%24people/exists?delimiter=%24", TABLE, 404),
    ("POST", "/v1/table/SPACE%24people/declare?delimiter=%24", TABLE[:-1] + ',"properties":{}}', 200),
    ("POST", "/v1/table/SPACE%24people/exists?delimiter=%24", TABLE, 200),
    (
        "POST",
        "/v1/table/SPACE%24people/describe?delimiter=%24&with_table_uri=false",
        TABLE[:-1] + ',"with_table_uri":false}',
        200,
    ),
    ("POST", "/v1/table/SPACE%24people/version/list?delimiter=%24&limit=1&descending=true", "null", 200),
    ("GET", "/v1/namespace/SPACE/table/list?delimiter=%24", "", 200),
    ("POST", "/v1/namespace/SPACE/drop?delimiter=%24", SPACE[:-1] + ',"behavior":"Restrict"}', 409),
    ("POST", "/v1/table/SPACE%24people/deregister?delimiter=%24", TABLE, 200),
    ("POST", "/v1/table/SPACE%24people/deregister?delimiter=%24", TABLE, 404),
    ("POST", "/v1/namespace/SPACE/drop?delimiter=%24", SPACE[:-1] + ',"behavior":"Cascade"}', 200),
    ("POST", "/v1/namespace/SPACE/exists?delimiter=%24", SPACE, 404),
)


@pytest.fixture
def results(raw: Raw, fresh: Callable[[str], str]) -> list[tuple[str, int, Any]]:
    """Send each request; return its action, status and body."""
    name, results = fresh("spark"), []
    for method, target, body, _ in REQUESTS:
        headers = {"content-type": "application/json"} if body else {}
        url = target.replace("SPACE", name)
        response = raw.http.request(method, url, content=body.replace("SPACE", name), headers=headers)
        json_body = response.json() if response.content else {}
        results.append((url.partition("?")[0].rsplit("/", 1)[1], response.status_code, json_body))
    return results


def test_requests_as_lance_spark_sends_them_are_answered_as_it_needs(results: list[tuple[str, int, Any]]) -> None:
    assert [status for _, status, _ in results] == [status for *_, status in REQUESTS]
    declared = next(body for action, _, body in results if action == "declare")
    described = [body for action, status, body in results if action == "describe" and "location" in body]
    assert declared["managed_versioning"] is True
    assert described[0]["location"] == declared["location"]
    assert [body["tables"] for action, _, body in results if action == "list" and "tables" in body] == [["people"]]
    conflict = next(body for _, status, body in results if status == 409)
    assert conflict["code"] == 3 and "not empty" in conflict["error"]
