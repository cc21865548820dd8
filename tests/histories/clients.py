"""What clients do to objects by plain HTTP, and what the answers say: rows, tables by their names, tags, grants."""

from __future__ import annotations

import random
from dataclasses import dataclass

import httpx
import pyarrow as pa

from tests.histories.history import DONE, REFUSED, Call, History
from tests.services.wire import stream

ROWS = 24
"""Different rows that are inserted into and deleted from one table."""
VERSIONS = 4
"""Versions that tags are set to."""
REFUSALS = (400, 403, 404, 409)
GRANTED_MS = 300
"""How long after the answer another server may go by the grants that were: it looks for changes each 50 ms."""


@dataclass(frozen=True, slots=True)
class Client:
    """A client of one server; `granted` is one whose right to the table comes from a grant."""

    number: int
    http: httpx.Client
    granted: httpx.Client
    history: History

    def call_at_random(self, source: random.Random) -> None:
        """Call one operation on one object."""
        number = source.randrange(2)
        rows, others = (self.change_rows, self.read_rows), (self.change_table, self.change_tag, self.change_grant)
        source.choice(rows + others)(source, number)

    def change_rows(self, source: random.Random, number: int) -> None:
        """Insert or delete one row."""
        row = source.randrange(ROWS)
        if source.random() < 0.7:
            body, call = stream(pa.table({"n": pa.array([row], pa.int64())})), self._call("rows", number, "add", row)
            path, content = f"/v1/table/rows{number}/insert", {"content": body}
        else:
            call = self._call("rows", number, "remove", row)
            path, content = f"/v1/table/rows{number}/delete", {"json": {"predicate": f"n = {row}"}}
        self.history.record(call, lambda: self.http.post(path, **content), _read_done)  # type: ignore[arg-type]

    def read_rows(self, source: random.Random, number: int) -> None:
        """Read all rows of a table."""
        body = {"k": 100_000, "vector": {}, "columns": {"column_names": ["n"]}}
        call = self._call("rows", number, "read")

        def read(call: Call, response: httpx.Response) -> None:
            assert response.status_code == 200, response.text
            call.values = sorted(set(pa.ipc.open_file(response.content).read_all()["n"].to_pylist()))

        self.history.record(call, lambda: self.http.post(f"/v1/table/rows{number}/query", json=body), read)

    def change_table(self, source: random.Random, number: int) -> None:
        """Declare a table, drop it, or ask whether it exists."""
        action, path = source.choice((("create", "declare"), ("drop", "drop"), ("has", "exists")))
        call = self._call("name", number, action)
        read = _read_has if action == "has" else _read_outcome
        self.history.record(call, lambda: self.http.post(f"/v1/table/name{number}/{path}", json={}), read)

    def change_tag(self, source: random.Random, number: int) -> None:
        """Create a tag, move it, delete it, or ask for its version."""
        version = source.randrange(1, VERSIONS + 1)
        action, path, body = source.choice(
            (
                ("create", "create", {"tag": f"t{number}", "version": version}),
                ("move", "update", {"tag": f"t{number}", "version": version}),
                ("drop", "delete", {"tag": f"t{number}"}),
                ("get", "version", {"tag": f"t{number}"}),
            )
        )
        call = self._call("tag", number, action, version if action in ("create", "move") else 0, kind="register")
        read = _read_version if action == "get" else _read_outcome
        self.history.record(call, lambda: self.http.post(f"/v1/table/tagged/tags/{path}", json=body), read)

    def change_grant(self, source: random.Random, number: int) -> None:
        """Grant a right, revoke it, or use it."""
        action = source.choice(("add", "remove", "has", "has"))
        call = self._call("grant", 0, action)
        if action == "has":
            self.history.record(call, lambda: self.granted.post("/v1/table/granted/count_rows", json={}), _read_has)
            return
        path = "/tiltyard/v1/grant/" + ("add" if action == "add" else "revoke")
        body = {"object_kind": "table", "id": ["granted"], "grantee": "ann", "privileges": ["read"]}
        self.history.record(call, lambda: self.http.post(path, json=body), _read_granted)

    def _call(self, name: str, number: int, action: str, value: int = 0, kind: str = "set") -> Call:
        return Call(f"{name}{number}", kind, self.number, action, value)


def _read_done(call: Call, response: httpx.Response) -> None:
    assert response.status_code == 200, response.text
    call.result = DONE


def _read_granted(call: Call, response: httpx.Response) -> None:
    assert response.status_code in (200, *REFUSALS), response.text
    call.result = DONE


def _read_outcome(call: Call, response: httpx.Response) -> None:
    assert response.status_code in (200, *REFUSALS), response.text
    call.result = DONE if response.status_code == 200 else REFUSED


def _read_has(call: Call, response: httpx.Response) -> None:
    assert response.status_code in (200, *REFUSALS), response.text
    call.result = "yes" if response.status_code == 200 else "no"


def _read_version(call: Call, response: httpx.Response) -> None:
    assert response.status_code in (200, 404), response.text
    call.value = response.json()["version"] if response.status_code == 200 else 0


def settle_grants(history: History) -> None:
    """Let changes of grants have their effect up to GRANTED_MS after their answers, as is promised."""
    for call in history.calls:
        if call.object.startswith("grant") and call.action != "has" and call.end is not None:
            call.end += GRANTED_MS * 1_000_000
