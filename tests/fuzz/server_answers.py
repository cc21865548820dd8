"""What the server's own answers say: names, versions, tags, branches, indexes, transactions and tokens of pages."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import httpx
import pyarrow as pa

from tests.services.server import SECRETS
from tests.services.wire import check, stream
from tiltyard.api.errors import STATUS
from tiltyard.model.spec import Operation, Shape, operations

Fields = dict[str, Any]
Path = tuple[str, ...]

DIALECT = {"x-lancedb-database": "db"}
"""The header by which a client of lancedb is known."""
HARVESTED = {
    "page_token", "version", "transaction_id", "index_name", "upload_id", "location", "branch", "snapshot", "row_id",
    "job_id",
}  # fmt: skip
"""Fields of answers whose values later requests have."""
LISTED = {"namespaces": "namespace", "tables": "table", "tags": "tag", "branches": "branch"}


def rows(ids: list[int]) -> bytes:
    """Return a body of rows with these ids."""
    vectors = pa.array([[float(each), 1.0] for each in ids], pa.list_(pa.float32(), 2))
    texts = [f"word{each % 7} fish" for each in ids]
    return stream(pa.table({"id": pa.array(ids, pa.int64()), "text": pa.array(texts, pa.string()), "vector": vectors}))


class Answers:
    """Values that answers had, by the names of their fields; the newest are drawn most."""

    def __init__(self) -> None:
        self._values: dict[str, list[Any]] = {}

    def read(self, body: Any) -> None:
        """Take the values of an answer."""
        if isinstance(body, list):
            for item in body[:20]:
                self.read(item)
        if not isinstance(body, dict):
            return
        for name, value in body.items():
            if name in HARVESTED and isinstance(value, int | str) and not isinstance(value, bool):
                self.add(name, value)
            if name in LISTED and isinstance(value, dict | list):
                for item in list(value)[:20]:
                    if isinstance(item, str):
                        self.add(LISTED[name], item)
            self.read(value)

    def add(self, name: str, value: Any) -> None:
        """Keep a value as the newest of its name."""
        values = self._values.setdefault(name, [])
        if value in values:
            values.remove(value)
        values.append(value)

    def draw(self, name: str, chance: random.Random, otherwise: Any = None) -> Any:
        """Return one of the last values of a name."""
        values = self._values.get(name, [])[-4:]
        return chance.choice(values) if values else otherwise


class Statuses:
    """How many requests were answered by which status, by operation."""

    def __init__(self) -> None:
        self.by_status: Counter[int] = Counter()
        self.refused: Counter[str] = Counter()

    def count(self, operation: Operation, response: httpx.Response) -> None:
        """Count an answer."""
        self.by_status[response.status_code] += 1
        if response.status_code >= 400:
            self.refused[f"{operation.name} {response.status_code}: {response.text[:110]}"] += 1

    @property
    def success(self) -> float:
        """The share of requests that succeeded."""
        return sum(n for status, n in self.by_status.items() if status < 300) / max(1, self.by_status.total())

    def report(self) -> str:
        """Return the share of each status."""
        total = max(1, self.by_status.total())
        shares = ", ".join(f"{status}: {n / total:.1%}" for status, n in sorted(self.by_status.items()))
        return f"{total} requests, {shares}"


def check_answer(operation: Operation, response: httpx.Response, document: Any) -> None:
    """An answer is a success of its schema, or an error with the code of its status; it has no secret of others."""
    check(response)
    is_dialect = next(iter(DIALECT)) in response.request.headers  # which has fields and statuses of its own
    if response.status_code >= 400:
        body = response.json()
        assert is_dialect or STATUS[body["code"]] == response.status_code, body
    elif response.headers.get("content-type") == "application/json" and not is_dialect:
        document[operation.path][operation.method].validate_response(response)
    if not operation.name.endswith("ApiKey"):
        assert not SECRETS.search(response.text), operation.name


def request_of(operation: Operation, fields: Fields, body: bytes | None) -> Fields:
    """Return the request of an operation for httpx; fields that are not in the path are in the body, or the query."""
    path, remaining = operation.path, dict(fields)
    for name in [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]:
        value = remaining.pop(name, "none")
        text = "$".join(value) if isinstance(value, list | tuple) else str(value)
        path = path.replace(f"{{{name}}}", httpx.QueryParams({"": text or "$"}).__str__()[1:].replace("+", "%20"))
    given = {name: value for name, value in remaining.items() if value is not None}
    if body is not None or operation.method == "GET" or operation.request_shape is Shape.EMPTY:
        flat = {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items()}
        return {"method": operation.method, "url": path, "params": flat, **({"content": body} if body else {})}
    sent = given.get("metadata", {}) if operation.request_shape is Shape.MAP else given
    return {"method": operation.method, "url": path, "json": sent}


OPERATIONS = operations()
