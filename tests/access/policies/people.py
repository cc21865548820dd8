"""A table of people, two policies on it, and how it is called."""

from __future__ import annotations

import io
import re
from typing import Any

import httpx
import pyarrow as pa

from tests.access.scenes import send
from tiltyard.model.spec import operations

TABLE = ["hr", "people"]
VECTOR = pa.list_(pa.float32(), 2)
PEOPLE = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "team": ["red", "red", "blue", "blue"],
        "name": ["Ann", "Bob", "Cleo", "Dan"],
        "ssn": ["111-1", "222-2", "333-3", "444-4"],
        "pay": pa.array([10, 20, 30, 40], pa.int64()),
        "note": ["likes tea", "likes rum", "secret gin", "likes gin"],
        "place": pa.array([[0, 0], [1, 0], [0.1, 0], [9, 9]], VECTOR),
        "face": pa.array([[0, 0], [1, 1], [2, 2], [3, 3]], VECTOR),
        "seen": pa.array([1, 2, 3, 4], pa.timestamp("us")),
    }
)
RED = {"name": "own team", "filter": "team = 'red' OR in_group('chiefs')", "exempt_roles": ["auditors"]}
MASKS = {
    "name": "masks",
    "masks": [
        {"column": "ssn", "mask": "expression", "expression": "concat('***', right(ssn, 1))"},
        {"column": "pay", "mask": "null"},
        {"column": "face", "mask": "hide"},
    ],
    "exempt_roles": ["auditors"],
}


def call(http: httpx.Client, name: str, body: bytes | None = None, /, **fields: Any) -> httpx.Response:
    request = {"id": TABLE, "vector": None} if name == "QueryTable" else {"id": TABLE}
    return send(http, operations()[name], {**request, **fields}, body)


def rows(http: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    response = call(http, "QueryTable", **{"k": 100, **fields})
    assert response.status_code == 200, response.text
    return pa.ipc.open_file(io.BytesIO(response.content)).read_all().to_pylist()


def ids(http: httpx.Client, **fields: Any) -> list[int]:
    return [row["id"] for row in rows(http, columns={"column_names": ["id"]}, **fields)]


def good(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def refused(response: httpx.Response, status: int = 403) -> str:
    """Return the text of a refusal; it quotes no value of a hidden row or masked column."""
    assert response.status_code == status, response.text
    text = str(response.json()["error"])
    assert not re.search(r"333|444|222-|111-|Cleo|Dan|secret", text), text
    return text
