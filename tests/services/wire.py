"""Plain HTTP, with checks of every response: no unexpected 5xx, one shape for every error."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Self
from urllib.parse import quote

import httpx
import pyarrow as pa

STACK_TRACE = re.compile(r"Traceback|\.py\b.{0,2}(line |:?\d)|File \"|panicked at")
ERROR_FIELDS = {"error", "code", "type", "detail", "instance"}


def check_error(response: httpx.Response) -> int:
    """The code of an error, once its shape is seen to be the one that every route has."""
    assert response.headers["content-type"] == "application/json", response.headers
    body = response.json()
    assert set(body) <= ERROR_FIELDS, body
    assert isinstance(body["error"], str) and body["error"], body
    assert type(body["code"]) is int and 0 <= body["code"] <= 23, body
    assert body["instance"] == response.headers["x-request-id"], body
    assert not STACK_TRACE.search(body["error"]), body
    assert body.get("detail") is None or isinstance(body["detail"], str), body
    code: int = body["code"]
    return code


def check(response: httpx.Response) -> httpx.Response:
    """The same answer; it is a success, or an error of the client's in its one shape."""
    assert response.status_code < 500, f"{response.request.method} {response.request.url}: {response.text}"
    assert response.headers["x-request-id"]
    assert response.headers["cache-control"] == "no-store"
    if response.status_code >= 400:
        check_error(response)
    return response


def stream(table: pa.Table | pa.Schema, most_rows: int | None = None, **options: Any) -> bytes:
    """A table in batches of at most so many rows, or a schema without rows, as an Arrow IPC stream."""
    schema = table if isinstance(table, pa.Schema) else table.schema
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, **options) as writer:
        if isinstance(table, pa.Table):
            writer.write_table(table, most_rows)
    return bytes(sink.getvalue())


class Wire:
    """Calls operations by their routes."""

    def __init__(self, url: str, timeout: float = 60) -> None:
        # Certificates are loaded where there are some to verify: that takes a client longer than many a request.
        self.http = httpx.Client(base_url=url, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.http.close()

    def call(
        self,
        what: str,
        path: Sequence[str],
        action: str,
        body: Any = None,
        *,
        method: str = "POST",
        query: Mapping[str, Any] | None = None,
        delimiter: str = "$",
    ) -> httpx.Response:
        """One operation on a namespace, table or transaction; bytes are sent as an Arrow stream, the rest as JSON."""
        identifier = quote(delimiter.join(path) or delimiter, safe="")
        further = {"delimiter": delimiter} if delimiter != "$" else {}
        content: dict[str, Any] = {}
        if isinstance(body, bytes):
            content = {"content": body, "headers": {"content-type": "application/vnd.apache.arrow.stream"}}
        elif method == "POST":
            content = {"json": {} if body is None else body}
        url = f"/v1/{what}/{identifier}/{action}"
        return check(self.http.request(method, url, params={**(query or {}), **further}, **content))

    def table(self, path: Sequence[str], action: str, body: Any = None, **options: Any) -> httpx.Response:
        """One operation on a table."""
        return self.call("table", path, action, body, **options)

    def namespace(self, path: Sequence[str], action: str, body: Any = None, **options: Any) -> httpx.Response:
        """One operation on a namespace."""
        return self.call("namespace", path, action, body, **options)

    def good(self, response: httpx.Response) -> Any:
        """Return the JSON of a successful response."""
        assert response.status_code == 200, response.text
        return response.json()

    def pages(self, path: str, entries: str, limit: int | None, **query: Any) -> list[str]:
        """Return all entries of a list, page by page; none is longer than requested, and only the last is shorter."""
        names: list[str] = []
        token = None
        while True:
            parameters = {**query, "limit": limit, "page_token": token}
            response = check(self.http.get(path, params={k: v for k, v in parameters.items() if v is not None}))
            page = self.good(response)
            names += page[entries]
            token = page.get("page_token")
            assert limit is None or len(page[entries]) <= limit
            if not token:
                return names
            assert len(page[entries]) == (limit or 1000)
