"""Functions, secrets and lists as lancedb 0.41 calls them, by plain HTTP."""

from __future__ import annotations

import base64
import hashlib
import itertools
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.conformance.test_remote_wire import STREAM, to_stream
from tests.services.secured import Secured

ROWS = to_stream(pa.table({"id": [1]}))
numbers = itertools.count(1)


def fresh() -> str:
    return f"wire_{next(numbers)}"


def client(secured: Secured, database: str) -> httpx.Client:
    headers = {"x-api-key": secured.keys["administrator"], "x-lancedb-database": database}
    return httpx.Client(base_url=secured.url, timeout=60, headers=headers)


@pytest.fixture(scope="module")
def wire(secured: Secured) -> Iterator[httpx.Client]:
    with client(secured, "tilt") as opened:
        yield opened


FUNCTION = """from __future__ import annotations

def twice(x: int) -> int:
    return 2 * x
"""


def function_body(**first_input: Any) -> dict[str, Any]:
    """Return the body that registers FUNCTION."""
    source = FUNCTION.encode()
    content = {"encoding": "base64", "data": base64.b64encode(source).decode()}
    digest = f"sha256:{hashlib.sha256(source).hexdigest()}"
    adapter = {"kind": "scalar_to_arrow_batch", "version": 1}
    parameter = {"name": "x", "arrow_type": "int64", "nullable": False} | first_input
    environment = {"kind": "pip", "packages": []}
    python = f"3.{sys.version_info.minor}"
    return {
        "artifact": {
            "kind": "python_callable",
            "digest": digest,
            "entrypoint": "twice",
            "content": content,
            "adapter": adapter,
        },
        "signature": {
            "inputs": [parameter],
            "output": {"kind": "scalar", "arrow_type": "int64", "nullable": False},
        },
        "runtime": {"kind": "python", "python_version": python, "environment": environment},
    }


def test_functions_say_when_they_were_created_in_both_forms(wire: httpx.Client) -> None:
    name = fresh()
    created = wire.post(f"/v1/function/{name}/create", json=function_body(arrow_type="large_binary"))
    assert created.status_code in (200, 202), created.text
    described = wire.post(f"/v1/function/{name}/describe", json={"version": "1"}).json()
    listed = wire.get("/v1/namespace/$/function/list", params={"include_definition": "true", "limit": 1}).json()
    job = wire.post("/v1/jobs/describe", json={"job_id": created.json()["job_id"]}).json()
    for version in (described, listed["functions"][0]["definition"], job["result"]):
        stamp = datetime.fromisoformat(version["created_at"])
        assert version["created_at_millis"] == round(stamp.timestamp() * 1000)


@pytest.mark.parametrize(
    ("changes", "status", "said"),
    [
        ({"blob_access": "bytes"}, 400, "blob_access"),
        ({"arrow_type": "blob_v2", "blob_access": "reader"}, 501, "blobs"),
    ],
)
def test_functions_that_take_blobs_are_refused(
    wire: httpx.Client, changes: dict[str, Any], status: int, said: str
) -> None:
    refused = wire.post(f"/v1/function/{fresh()}/create", json=function_body(**changes))
    assert (refused.status_code, said in refused.text) == (status, True), refused.text


def pages(wire: httpx.Client, path: str, key: str, token: str | None = None, limit: int = 2) -> list[list[str]]:
    """Return the names of each page of a list, by the tokens that the server answers."""
    found: list[list[str]] = []
    while True:
        query = {"limit": limit} | ({} if token is None else {"page_token": token})
        page = wire.get(path, params=query).json()
        found.append([entry if isinstance(entry, str) else entry["name"] for entry in page[key]])
        if not (token := page.get("page_token")):
            return found


def test_lists_are_paged_by_the_tokens_of_the_server_and_tables_by_names_too(secured: Secured) -> None:
    with client(secured, "paged") as wire:
        made = wire.post("/v1/namespace/paged/create", json={}, headers={"x-lancedb-database": ""})
        assert made.status_code == 200, made.text
        for name in "abcde":
            assert wire.post(f"/v1/table/{name}/create/", content=ROWS, headers=STREAM).status_code == 200
            assert wire.post(f"/v1/secret/{name}/create", json={"value": "v"}).status_code < 300
            view = wire.post(f"/v1/view/view_{name}/create", json={"query": f"SELECT id FROM {name}"})
            assert view.status_code == 200, view.text
            assert wire.post(f"/v1/namespace/{name}/create", json={}).status_code == 200
        expected = [["a", "b"], ["c", "d"], ["e"]]
        assert pages(wire, "/v1/namespace/$/secret/list", "secrets") == expected
        assert pages(wire, "/v1/namespace/$/list", "namespaces") == expected
        views = pages(wire, "/v1/namespace/$/view/list", "views", limit=3)
        assert views == [["view_a", "view_b", "view_c"], ["view_d", "view_e"]]
        tables = [name for page in pages(wire, "/v1/table/", "tables") for name in page]
        assert tables[:5] == list("abcde")
        assert pages(wire, "/v1/table/", "tables", token="b")[0] == ["c", "d"]
