"""Make the calls of an engine, for `tests.conformance.engines`, in a process that imports nothing of the tests.

    python DRIVER '{"uri": …, "recorded": …, "keys": {"owner": …, "reader": …}}'

Each line of standard output that begins with MARK says what became of one call: `what`, `call`, `rows` or `error`, and
what was expected of it. `recorded` is the server behind a recorder, which only the engine goes through.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import lance.namespace
import lancedb
import pyarrow as pa

MARK = "\x1e"


class Seen(NamedTuple):
    """What lancedb sees of a table by `db://` right behind a call: how many rows, and its latest version."""

    table_id: list[str]
    rows: int
    version: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call: its purpose, its code (`…` for the table), its function, and what is expected of it.

    `refusal` is a part of its error; `known` names a fault of the client, where it is one: with that error, or, without
    any, with those wrong rows.
    """

    what: str
    written: str
    function: Callable[[], Any]
    rows: list[list[Any]] | None = None
    refusal: str = ""
    known: str = ""
    seen: Seen | None = None

    def response(self, server: Server) -> dict[str, Any]:
        """Make the call; return its rows or its error. A refused call, too, leaves what lancedb has to see."""
        try:
            result = self.function()
        except Exception as error:  # noqa: BLE001  # whatever went wrong is the answer
            response = {"error": f"{type(error).__name__}: {error}"}
        else:
            response = {"rows": result if isinstance(result, list) else []}
        if self.seen and ("error" not in response or self.refusal):
            difference = server.difference(self.seen)
            return {"error": difference} if difference else response
        return response

    def expected(self) -> dict[str, Any]:
        return {"what": self.what, "call": self.written, "known": self.known} | {
            "expected": self.rows,
            "refusal": self.refusal,
        }


@dataclass(frozen=True)
class Server:
    """The server of a run, and the keys of its callers: none, where everybody may do everything."""

    uri: str
    recorded: str
    keys: dict[str, str]

    def unrecorded(self) -> Server:
        """Return the server past the recorder: what a driver prepares is no call of its engine."""
        return replace(self, recorded=self.uri)

    def properties(self, caller: str = "owner") -> dict[str, str]:
        """Return the properties with which an engine connects as a caller; a stranger has no key."""
        key = {"header.x-api-key": self.keys[caller]} if caller in self.keys else {}
        return {"uri": self.recorded, **key}

    def location(self, table_id: list[str], caller: str = "owner") -> dict[str, Any]:
        """Return what tells an engine which table, where its calls take that."""
        return {"table_id": table_id, "namespace_impl": "rest", "namespace_properties": self.properties(caller)}

    def dataset(self, table_id: list[str], caller: str = "owner", **options: Any) -> lance.LanceDataset:
        return lance.dataset(namespace_client=self.namespace(caller), table_id=table_id, **options)

    def namespace(self, caller: str = "owner") -> lance.namespace.RestNamespace:
        return lance.namespace.RestNamespace(**self.properties(caller))

    def open_table(self, table_id: list[str]) -> Any:
        """Open a table as lancedb does, by `db://`, past the recorder."""
        *path, name = table_id
        key = self.keys.get("owner", "none")
        return lancedb.connect(f"db://{'/'.join(path)}", api_key=key, host_override=self.uri).open_table(name)

    def difference(self, seen: Seen) -> str:
        """Say what lancedb sees instead of this; nothing where it sees this, with a record of every version."""
        table = self.open_table(seen.table_id)
        versions = [entry["version"] for entry in table.list_versions()]
        found = Seen(seen.table_id, table.count_rows(), max(versions))
        whole = versions == list(range(1, seen.version + 1))
        return "" if found == seen and whole else f"lancedb sees {tuple(found)}, with versions {versions}"

    @property
    def is_guarded(self) -> bool:
        return bool(self.keys)


def table_of(start: int, stop: int) -> pa.Table:
    """Return rows: id, name, and a vector of two dimensions whose first is the id."""
    ids = range(start, stop)
    vectors = pa.array([[float(number), 1.0] for number in ids], pa.list_(pa.float32(), 2))
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{number}" for number in ids], "vector": vectors})


def values(table: pa.Table) -> list[list[Any]]:
    return [list(row.values()) for row in table.to_pylist()]


def added_by_lancedb(server: Server, seen: Seen, start: int, stop: int) -> Call:
    """Return the call in which lancedb adds rows, so that an engine has to see them."""

    def add() -> None:
        server.open_table(seen.table_id).add(table_of(start, stop))

    return Call("what lancedb adds …", "db.open_table(…).add(rows)", add, seen=seen)


def server_of_command() -> Server:
    return Server(**json.loads(sys.argv[1]))


def make(calls: Iterable[Call], server: Server) -> None:
    """Make every call, in an order in which they build on each other."""
    for call in calls:
        line = {**call.expected(), **call.response(server)}
        sys.stdout.write(f"{MARK}{json.dumps(line, default=str)}\n")
        sys.stdout.flush()
