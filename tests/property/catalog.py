"""A model of the catalog, and a state machine that applies each operation to the model and to a server."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.services.wire import Wire, stream

Path = tuple[str, ...]

NAMES = ["a", "A", "b c", "a/b", "ü", "表", "..x", "a%2Fb", "a+b", "nul'\";--"]
DELIMITERS = ["$", "::", "\u241f"]

NAMESPACE_MISSING, NAMESPACE_EXISTS, NAMESPACE_NOT_EMPTY = (404, 1), (409, 2), (409, 3)
TABLE_MISSING, TABLE_EXISTS, BAD_INPUT = (404, 4), (409, 5), (400, 13)

numbers = itertools.count(1)

names = st.sampled_from(NAMES)
parents = st.lists(st.sampled_from(NAMES[:3]), max_size=3).map(tuple)
"""Few names, so that most exist; deeper ones mostly do not."""
properties = st.dictionaries(st.sampled_from(["owner", "é", "k"]), st.sampled_from(["", "1", "☃ '"]), max_size=2)
delimiters = st.sampled_from(DELIMITERS)
limits = st.none() | st.integers(1, 3)


@dataclass(frozen=True)
class Table:
    """A table in the model."""

    location: str
    properties: dict[str, str]
    rows: int | None = None
    """How many rows were written; None while the table is only declared."""


@dataclass
class Model:
    """The expected state of the catalog, by paths below the machine's own namespace."""

    namespaces: dict[Path, dict[str, str]] = field(default_factory=lambda: {(): {}})
    tables: dict[Path, Table] = field(default_factory=dict)

    def children(self, path: Path) -> list[str]:
        return sorted((p[-1] for p in self.namespaces if p and p[:-1] == path), key=str.encode)

    def tables_in(self, path: Path) -> list[str]:
        return sorted((p[-1] for p in self.tables if p[:-1] == path), key=str.encode)

    def drop_below(self, path: Path) -> None:
        self.tables = {p: t for p, t in self.tables.items() if p[:-1][: len(path)] != path}
        self.namespaces = {p: n for p, n in self.namespaces.items() if p[: len(path)] != path}


def outcome(response: httpx.Response) -> tuple[int, int] | None:
    """Return status and code of an error, None for a success."""
    return None if response.status_code == 200 else (response.status_code, response.json()["code"])


class CatalogMachine(RuleBasedStateMachine):
    """Random histories of catalog operations, each compared with the model."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.wire = Wire(url)
        self.root: Path = (f"run{os.getpid()}_{next(numbers)}",)
        self.model = Model()
        self.deregistered: dict[str, int] = {}
        assert outcome(self.wire.namespace(self.root, "create")) is None

    def teardown(self) -> None:
        with self.wire:
            self.wire.namespace(self.root, "drop", {"behavior": "Cascade"})

    def full(self, path: Path) -> Path:
        return (*self.root, *path)

    def namespace(self, path: Path, action: str, body: Any = None, delimiter: str = "$") -> httpx.Response:
        return self.wire.namespace(self.full(path), action, body, delimiter=delimiter)

    def table(self, path: Path, action: str, body: Any = None, **options: Any) -> httpx.Response:
        return self.wire.table(self.full(path), action, body, **options)

    def table_error(self, path: Path) -> tuple[int, int] | None:
        """Return the error of an operation on this table if it does not exist."""
        if path in self.model.tables:
            return None
        return TABLE_MISSING if path[:-1] in self.model.namespaces else NAMESPACE_MISSING

    # Namespaces.

    @rule(parent=parents, name=names, mode=st.sampled_from([None, "Create", "exist_ok", "Overwrite"]),
          requested=properties, delimiter=delimiters)  # fmt: skip
    def create_namespace(
        self, parent: Path, name: str, mode: str | None, requested: dict[str, str], delimiter: str
    ) -> None:
        path = (*parent, name)
        response = self.namespace(path, "create", {"mode": mode, "properties": requested}, delimiter)
        if parent not in self.model.namespaces:
            assert outcome(response) == NAMESPACE_MISSING
        elif path in self.model.namespaces and mode in (None, "Create"):
            assert outcome(response) == NAMESPACE_EXISTS
        else:
            if mode == "Overwrite":
                self.model.drop_below(path)
            expected = self.model.namespaces.setdefault(path, requested)
            assert self.wire.good(response)["properties"] == expected

    @rule(path=parents, mode=st.sampled_from([None, "Fail", "Skip"]),
          behavior=st.sampled_from([None, "Restrict", "Cascade"]), delimiter=delimiters)  # fmt: skip
    def drop_namespace(self, path: Path, mode: str | None, behavior: str | None, delimiter: str) -> None:
        if not path:
            return
        response = self.namespace(path, "drop", {"mode": mode, "behavior": behavior}, delimiter)
        if path not in self.model.namespaces:
            assert outcome(response) == (None if mode == "Skip" else NAMESPACE_MISSING)
        elif behavior != "Cascade" and (self.model.children(path) or self.model.tables_in(path)):
            assert outcome(response) == NAMESPACE_NOT_EMPTY
        else:
            assert self.wire.good(response)["properties"] == self.model.namespaces[path]
            self.model.drop_below(path)

    @rule(path=parents, name=st.none() | names, delimiter=delimiters)
    def describe_namespace(self, path: Path, name: str | None, delimiter: str) -> None:
        path = path if name is None else (*path, name)
        described, exists = (self.namespace(path, action, None, delimiter) for action in ("describe", "exists"))
        if path in self.model.namespaces:
            assert self.wire.good(described)["properties"] == self.model.namespaces[path]
            assert outcome(exists) is None
        else:
            assert outcome(described) == outcome(exists) == NAMESPACE_MISSING

    # Tables as entries.

    @rule(parent=parents, name=names, requested=properties, delimiter=delimiters)
    def declare_table(self, parent: Path, name: str, requested: dict[str, str], delimiter: str) -> None:
        path = (*parent, name)
        response = self.table(path, "declare", {"properties": requested}, delimiter=delimiter)
        if parent not in self.model.namespaces:
            assert outcome(response) == NAMESPACE_MISSING
        elif path in self.model.tables:
            assert outcome(response) == TABLE_EXISTS
        else:
            body = self.wire.good(response)
            assert body["properties"] == requested
            assert body["location"] not in {table.location for table in self.model.tables.values()}
            self.model.tables[path] = Table(body["location"], requested)

    @rule(parent=parents, name=names, rows=st.integers(0, 3), mode=st.sampled_from([None, "create", "exist_ok"]))
    def create_table(self, parent: Path, name: str, rows: int, mode: str | None) -> None:
        path = (*parent, name)
        declared = path in self.model.tables and self.model.tables[path].rows is None
        body = stream(pa.table({"id": pa.array(range(rows), pa.int64())}))
        response = self.table(path, "create", body, query={"mode": mode} if mode else {})
        if parent not in self.model.namespaces:
            assert outcome(response) == NAMESPACE_MISSING
        elif path in self.model.tables and not declared and mode != "exist_ok":
            assert outcome(response) == TABLE_EXISTS
        else:
            location = self.wire.good(response)["location"]
            self.model.tables.setdefault(path, Table(location, {}, rows))
            if declared:
                self.model.tables[path] = replace(self.model.tables[path], rows=rows)
            assert location == self.model.tables[path].location

    @rule(source=parents, name=names, into=st.none() | parents, new=names, delimiter=delimiters)
    def rename_table(self, source: Path, name: str, into: Path | None, new: str, delimiter: str) -> None:
        path, moved = (*source, name), (*(source if into is None else into), new)
        body: dict[str, Any] = {"new_table_name": new}
        if into is not None:
            body["new_namespace_id"] = list(self.full(into))
        response = self.table(path, "rename", body, delimiter=delimiter)
        if (missing := self.table_error(path)) is not None:
            assert outcome(response) in (missing, NAMESPACE_MISSING)
        elif moved[:-1] not in self.model.namespaces:
            assert outcome(response) == NAMESPACE_MISSING
        elif moved in self.model.tables and moved != path:
            assert outcome(response) == TABLE_EXISTS
        else:
            assert outcome(response) is None
            self.model.tables[moved] = self.model.tables.pop(path)

    @rule(parent=parents, name=names, delimiter=delimiters)
    def deregister_table(self, parent: Path, name: str, delimiter: str) -> None:
        path = (*parent, name)
        response = self.table(path, "deregister", delimiter=delimiter)
        assert outcome(response) == self.table_error(path)
        if path in self.model.tables:
            table = self.model.tables.pop(path)
            assert response.json()["location"] == table.location
            if table.rows is not None:
                self.deregistered[table.location] = table.rows

    @rule(parent=parents, name=names, mode=st.sampled_from([None, "Overwrite"]), data=st.data())
    def register_table(self, parent: Path, name: str, mode: str | None, data: st.DataObject) -> None:
        if not self.deregistered:
            return
        path, location = (*parent, name), data.draw(st.sampled_from(sorted(self.deregistered)))
        response = self.table(path, "register", {"location": location, "mode": mode, "properties": {"k": "r"}})
        if parent not in self.model.namespaces:
            assert outcome(response) == NAMESPACE_MISSING
        elif path in self.model.tables and mode is None:
            assert outcome(response) == TABLE_EXISTS
        else:
            assert self.wire.good(response)["location"] == location
            before = self.model.tables.get(path)
            if before is not None and before.rows is not None:
                self.deregistered[before.location] = before.rows
            self.model.tables[path] = Table(location, {"k": "r"}, self.deregistered.pop(location))

    @rule(parent=parents, name=names)
    def drop_table(self, parent: Path, name: str) -> None:
        path = (*parent, name)
        assert outcome(self.table(path, "drop")) == self.table_error(path)
        self.model.tables.pop(path, None)

    @rule(parent=parents, name=names, delimiter=delimiters)
    def describe_table(self, parent: Path, name: str, delimiter: str) -> None:
        path = (*parent, name)
        described, exists = (self.table(path, action, delimiter=delimiter) for action in ("describe", "exists"))
        assert outcome(described) == outcome(exists) == self.table_error(path)
        if (table := self.model.tables.get(path)) is not None:
            body = described.json()
            assert (body["location"], body["properties"]) == (table.location, table.properties)
            assert (body["table"], body["namespace"]) == (name, list(self.full(parent)))
        if table is not None and table.rows is not None:
            assert self.table(path, "count_rows").text == str(table.rows)

    # Lists.

    @rule(path=parents, limit=limits)
    def list_namespace(self, path: Path, limit: int | None) -> None:
        if path not in self.model.namespaces:
            for action in ("list", "table/list"):
                assert outcome(self.wire.namespace(self.full(path), action, method="GET")) == NAMESPACE_MISSING
            return
        base = f"/v1/namespace/{quote('$'.join(self.full(path)), safe='')}"
        assert self.wire.pages(f"{base}/list", "namespaces", limit) == self.model.children(path)
        assert self.wire.pages(f"{base}/table/list", "tables", limit) == self.model.tables_in(path)
        written = [name for name in self.model.tables_in(path) if self.model.tables[*path, name].rows is not None]
        assert self.wire.pages(f"{base}/table/list", "tables", limit, include_declared="false") == written

    @invariant()
    def all_tables_are_listed(self) -> None:
        entries = self.wire.pages("/v1/table", "tables", None, delimiter="\n")
        listed = {tuple(entry.split("\n"))[1:] for entry in entries if entry.split("\n")[0] == self.root[0]}
        assert listed == set(self.model.tables)
