"""One call of every operation, and what its answer has to say: run through each client that can make it."""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import lance
import obstore
import pyarrow as pa

numbers = itertools.count(1)

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "text": ["one fish", "two fish", "red fish"],
        "vector": pa.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], pa.list_(pa.float32(), 2)),
    }
)


def ipc(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def arrow(data: Any) -> pa.Table:
    """An Arrow answer, however the client hands it over."""
    raw = bytes(getattr(data, "data", data))
    return pa.ipc.open_file(raw).read_all()


@dataclass
class World:
    """Makes what a case needs, by plain HTTP; `options` open the server's storage."""

    raw: Any
    options: dict[str, str]

    def name(self, stem: str) -> str:
        return f"{stem}{next(numbers)}_{uuid4().hex[:6]}"

    def post(self, path: str, body: Any = None, **options: Any) -> Any:
        response = self.raw.post(path, body, **options)
        assert response.status_code < 300, response.text
        return response.json()

    def namespace(self) -> list[str]:
        name = self.name("space")
        self.post(f"/v1/namespace/{name}/create", {"properties": {"k": "v"}})
        return [name]

    def table(self) -> list[str]:
        name = self.name("table")
        response = self.raw.http.post(f"/v1/table/{name}/create", content=ipc(ROWS))
        assert response.status_code == 200, response.text
        return [name]

    def describe(self, table: list[str]) -> Any:
        return self.post(f"/v1/table/{table[0]}/describe?load_detailed_metadata=true")

    def count(self, table: list[str]) -> int:
        return int(self.raw.post(f"/v1/table/{table[0]}/count_rows").text)

    def index(self, table: list[str], **fields: Any) -> None:
        created = self.post(
            f"/v1/table/{table[0]}/create_index", {"column": "id", "index_type": "BTREE", "name": "by_id"} | fields
        )
        self.wait(created["transaction_id"])

    def wait(self, transaction: str) -> None:
        until = time.monotonic() + 90
        while time.monotonic() < until:
            status = self.post(f"/v1/transaction/{transaction}/describe")["status"]
            if status not in ("Queued", "Running"):
                assert status == "Succeeded", status
                return
            time.sleep(0.02)
        raise AssertionError("the transaction did not end")

    def transaction(self) -> str:
        table = self.table()
        created = self.post(
            f"/v1/table/{table[0]}/create_index", {"column": "id", "index_type": "BTREE", "name": "by_id"}
        )
        self.wait(created["transaction_id"])
        return str(created["transaction_id"])

    def staged(self, table: list[str]) -> dict[str, Any]:
        """A manifest written but not committed: the next version of a table, as a managed client stages it.

        It is made by a real delete on a copy of the table.
        """
        location = self.describe(table)["location"]
        table_files, copy = self.files(location), f"{location}-copy-{uuid4().hex}"
        copy_files = self.files(copy)
        for path in paths(table_files):
            obstore.put(copy_files, path, obstore.get(table_files, path).bytes())
        version = lance.dataset(copy, storage_options=self.options).version + 1
        lance.dataset(copy, storage_options=self.options).delete("id = 1")
        manifest = f"_versions/{2**64 - 1 - version}.manifest"
        staged, content = f"{manifest}-{uuid4()}", bytes(obstore.get(copy_files, manifest).bytes())
        obstore.put(table_files, staged, content)
        for path in paths(copy_files):
            if path.startswith(("_deletions", "_transactions")):
                obstore.put(table_files, path, obstore.get(copy_files, path).bytes())
            obstore.delete(copy_files, path)
        return {
            "version": version,
            "manifest_path": f"{urlsplit(location).path.strip('/')}/{staged}",
            "manifest_size": len(content),
            "naming_scheme": "V2",
        }

    def files(self, location: str) -> Any:
        """The files below a location, on whatever storage."""
        if "://" in location:
            config = {name: value for name, value in self.options.items() if name.startswith("aws_")}
            return obstore.store.from_url(location, config=config, client_options={"allow_http": True})
        return obstore.store.LocalStore(location, mkdir=True)


def paths(store: Any) -> list[str]:
    return [entry["path"] for batch in obstore.list(store) for entry in batch]


Fields = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """`prepare` makes the request's fields, `check` looks at the answer; `body` is Arrow, where the wire carries it."""

    operation: str
    prepare: Callable[[World], Fields]
    check: Callable[[World, Fields, Any], None]
    body: bytes | None = None


CASES: list[Case] = []


def case(operation: str, prepare: Callable[[World], Fields], body: bytes | None = None) -> Callable[[Any], Any]:
    """Add a case whose check is the decorated function."""

    def register(check: Callable[[World, Fields, Any], None]) -> Callable[[World, Fields, Any], None]:
        CASES.append(Case(operation, prepare, check, body))
        return check

    return register


@case("CreateNamespace", lambda w: {"id": [w.name("n")], "properties": {"a": "b"}})
def _(w: World, f: Fields, r: Any) -> None:
    assert r.properties == {"a": "b"}


@case("ListNamespaces", lambda w: {"id": w.namespace()})
def _(w: World, f: Fields, r: Any) -> None:
    assert r.namespaces == []


@case("DescribeNamespace", lambda w: {"id": w.namespace()})
def _(w: World, f: Fields, r: Any) -> None:
    assert r.properties == {"k": "v"}


@case("DropNamespace", lambda w: {"id": w.namespace()})
def _(w: World, f: Fields, r: Any) -> None:
    assert w.raw.post(f"/v1/namespace/{f['id'][0]}/exists").status_code == 404


@case("NamespaceExists", lambda w: {"id": w.namespace()})
def _(w: World, f: Fields, r: Any) -> None: ...


@case("ListTables", lambda w: {"id": w.namespace()})
def _(w: World, f: Fields, r: Any) -> None:
    assert r.tables == []


@case("ListAllTables", lambda w: {"limit": 1000} if w.table() else {})
def _(w: World, f: Fields, r: Any) -> None:
    assert r.tables


def _registered(w: World) -> Fields:
    location = w.describe(table := w.table())["location"]
    w.post(f"/v1/table/{table[0]}/deregister")
    return {"id": [w.name("r")], "location": location}


@case("RegisterTable", _registered)
def _(w: World, f: Fields, r: Any) -> None:
    assert w.count(f["id"]) == 3


@case("DescribeTable", lambda w: {"id": w.table(), "load_detailed_metadata": True})
def _(w: World, f: Fields, r: Any) -> None:
    assert r.version == 1 and r.location and [column.name for column in r.var_schema.fields] == ROWS.column_names


@case("TableExists", lambda w: {"id": w.table()})
def _(w: World, f: Fields, r: Any) -> None: ...


@case("DropTable", lambda w: {"id": w.table()})
def _(w: World, f: Fields, r: Any) -> None:
    assert w.raw.post(f"/v1/table/{f['id'][0]}/exists").status_code == 404


@case("DeregisterTable", lambda w: {"id": w.table()})
def _(w: World, f: Fields, r: Any) -> None:
    assert lance.dataset(r.location, storage_options=w.options).count_rows() == 3


def _two_versions(w: World) -> Fields:
    table = w.table()
    w.post(f"/v1/table/{table[0]}/delete", {"predicate": "id = 1"})
    return {"id": table, "version": 1}


@case("RestoreTable", _two_versions)
def _(w: World, f: Fields, r: Any) -> None:
    assert w.count(f["id"]) == 3


@case("RenameTable", lambda w: {"id": w.table(), "new_table_name": w.name("renamed")})
def _(w: World, f: Fields, r: Any) -> None:
    assert w.count([f["new_table_name"]]) == 3


@case("UpdateTableSchemaMetadata", lambda w: {"id": w.table(), "metadata": {"owner": "ada"}})
def _(w: World, f: Fields, r: Any) -> None:
    assert (r if isinstance(r, dict) and "owner" in r else r.metadata) == {"owner": "ada"}


@case("ListTableVersions", lambda w: {"id": _two_versions(w)["id"]})
def _(w: World, f: Fields, r: Any) -> None:
    assert {entry.version for entry in r.versions} == {1, 2}


def _create_version(w: World) -> Fields:
    table = w.table()
    return {"id": table, **w.staged(table)}


@case("CreateTableVersion", _create_version)
def _(w: World, f: Fields, r: Any) -> None:
    assert w.count(f["id"]) == 2


@case("DescribeTableVersion", _two_versions)
def _(w: World, f: Fields, r: Any) -> None:
    version = r["version"] if isinstance(r, dict) else r.version.to_dict()
    assert version["version"] == 1 and version["manifest_path"]


@case(
    "BatchDeleteTableVersions",
    lambda w: {"id": _two_versions(w)["id"], "ranges": [{"start_version": 1, "end_version": 2}]},
)
def _(w: World, f: Fields, r: Any) -> None:
    assert w.count(f["id"]) == 2


def _batch_versions(w: World) -> Fields:
    tables = [w.table(), w.table()]
    return {"entries": [{"id": table, **w.staged(table)} for table in tables]}


@case("BatchCreateTableVersions", _batch_versions)
def _(w: World, f: Fields, r: Any) -> None:
    assert [w.count(entry["id"]) for entry in f["entries"]] == [2, 2]


def _batch_commit(w: World) -> Fields:
    table, to_drop = w.table(), w.table()
    return {
        "operations": [
            {"declare_table": {"id": [w.name("declared")]}},
            {"create_table_version": {"id": table, **w.staged(table)}},
            {"deregister_table": {"id": to_drop}},
        ]
    }


@case("BatchCommitTables", _batch_commit)
def _(w: World, f: Fields, r: Any) -> None:
    assert len(r.results) == 3
    assert w.count(f["operations"][1]["create_table_version"]["id"]) == 2


@case("AlterTableAlterColumns", lambda w: {"id": w.table(), "alterations": [{"path": "text", "rename": "words"}]})
def _(w: World, f: Fields, r: Any) -> None:
    assert r.version == 2


@case("AlterTableDropColumns", lambda w: {"id": w.table(), "columns": ["text"]})
def _(w: World, f: Fields, r: Any) -> None:
    assert [column["name"] for column in w.describe(f["id"])["schema"]["fields"]] == ["id", "vector"]


@case("AlterTableAddColumns", lambda w: {"id": w.table(), "new_columns": [{"name": "twice", "expression": "id * 2"}]})
def _(w: World, f: Fields, r: Any) -> None:
    assert w.describe(f["id"])["schema"]["fields"][-1]["name"] == "twice"


@case("GetTableStats", lambda w: {"id": w.table()})
def _(w: World, f: Fields, r: Any) -> None:
    assert r.num_rows == 3 and r.fragment_stats.num_fragments == 1


@case("InsertIntoTable", lambda w: {"id": w.table()}, ipc(ROWS))
def _(w: World, f: Fields, r: Any) -> None:
    assert w.count(f["id"]) == 6


_UPSERT: Fields = {"on": ["id"], "when_matched_update_all": True, "when_not_matched_insert_all": True}


@case("MergeInsertIntoTable", lambda w: {"id": w.table(), **_UPSERT}, ipc(ROWS))
def _(w: World, f: Fields, r: Any) -> None:
    assert r.num_updated_rows == 3 and r.num_inserted_rows == 0


@case("UpdateTable", lambda w: {"id": w.table(), "predicate": "id = 1", "updates": [["text", "'changed'"]]})
def _(w: World, f: Fields, r: Any) -> None:
    assert r.updated_rows == 1 and r.version == 2


@case("DeleteFromTable", lambda w: {"id": w.table(), "predicate": "id = 1"})
def _(w: World, f: Fields, r: Any) -> None:
    assert r.version == 2 and w.count(f["id"]) == 2


_NEAREST: Fields = {"vector": {"single_vector": [1.0, 0.0]}, "k": 1}


@case("QueryTable", lambda w: {"id": w.table(), **_NEAREST})
def _(w: World, f: Fields, r: Any) -> None:
    assert arrow(r)["id"].to_pylist() == [1]


@case("CountTableRows", lambda w: {"id": w.table(), "predicate": "id > 1"})
def _(w: World, f: Fields, r: Any) -> None:
    assert (r if isinstance(r, int) else r.count) == 2


@case("CreateTable", lambda w: {"id": [w.name("t")]}, ipc(ROWS))
def _(w: World, f: Fields, r: Any) -> None:
    assert r.version == 1 and r.location


@case("ExplainTableQueryPlan", lambda w: {"id": w.table(), "query": {"k": 1, "vector": {"single_vector": [1.0, 0.0]}}})
def _(w: World, f: Fields, r: Any) -> None:
    assert "KNN" in str(r)


@case("AnalyzeTableQueryPlan", lambda w: {"id": w.table(), **_NEAREST})
def _(w: World, f: Fields, r: Any) -> None:
    assert "metrics" in str(r)


@case(
    "CreateTableIndex", lambda w: {"id": w.table(), "column": "vector", "index_type": "IVF_FLAT", "distance_type": "l2"}
)
def _(w: World, f: Fields, r: Any) -> None:
    w.wait(r.transaction_id)


@case("CreateTableScalarIndex", lambda w: {"id": w.table(), "column": "id", "index_type": "BTREE"})
def _(w: World, f: Fields, r: Any) -> None:
    w.wait(r.transaction_id)


def _indexed(w: World) -> Fields:
    table = w.table()
    w.index(table)
    return {"id": table}


@case("ListTableIndices", _indexed)
def _(w: World, f: Fields, r: Any) -> None:
    assert [(index.index_name, index.columns) for index in r.indexes] == [("by_id", ["id"])]


@case("DescribeTableIndexStats", lambda w: {**_indexed(w), "index_name": "by_id"})
def _(w: World, f: Fields, r: Any) -> None:
    assert r.num_indexed_rows == 3 and r.num_unindexed_rows == 0


@case("DropTableIndex", lambda w: {**_indexed(w), "index_name": "by_id"})
def _(w: World, f: Fields, r: Any) -> None:
    assert w.post(f"/v1/table/{f['id'][0]}/index/list")["indexes"] == []


def _tagged(w: World) -> Fields:
    fields = _two_versions(w)
    w.post(f"/v1/table/{fields['id'][0]}/tags/create", {"tag": "first", "version": 1})
    return {"id": fields["id"], "tag": "first"}


@case("ListTableTags", lambda w: {"id": _tagged(w)["id"]})
def _(w: World, f: Fields, r: Any) -> None:
    assert r.tags["first"].version == 1


@case("GetTableTagVersion", _tagged)
def _(w: World, f: Fields, r: Any) -> None:
    assert r.version == 1


@case("DeclareTable", lambda w: {"id": [w.name("d")]})
def _(w: World, f: Fields, r: Any) -> None:
    assert r.location


@case("CreateEmptyTable", lambda w: {"id": [w.name("e")]})
def _(w: World, f: Fields, r: Any) -> None:
    assert r.location


@case("CreateTableTag", lambda w: {"id": w.table(), "tag": "t", "version": 1})
def _(w: World, f: Fields, r: Any) -> None:
    assert w.post(f"/v1/table/{f['id'][0]}/tags/list")["tags"]["t"]["version"] == 1


@case("DeleteTableTag", _tagged)
def _(w: World, f: Fields, r: Any) -> None:
    assert w.post(f"/v1/table/{f['id'][0]}/tags/list")["tags"] == {}


@case("UpdateTableTag", lambda w: {**_tagged(w), "version": 2})
def _(w: World, f: Fields, r: Any) -> None:
    assert w.post(f"/v1/table/{f['id'][0]}/tags/list")["tags"]["first"]["version"] == 2


@case("DescribeTransaction", lambda w: {"id": [w.transaction()]})
def _(w: World, f: Fields, r: Any) -> None:
    assert r.status == "Succeeded"


@case(
    "AlterTransaction",
    lambda w: {"id": [w.transaction()], "actions": [{"setPropertyAction": {"key": "note", "value": "seen"}}]},
)
def _(w: World, f: Fields, r: Any) -> None:
    assert r.properties["note"] == "seen"


@case("CreateTableBranch", lambda w: {"id": w.table(), "name": "try"})
def _(w: World, f: Fields, r: Any) -> None:
    assert "try" in w.post(f"/v1/table/{f['id'][0]}/branches/list")["branches"]


def _branched(w: World) -> Fields:
    table = w.table()
    w.post(f"/v1/table/{table[0]}/branches/create", {"name": "try"})
    return {"id": table}


@case("ListTableBranches", _branched)
def _(w: World, f: Fields, r: Any) -> None:
    assert list(r.branches) == ["try"]


@case("DeleteTableBranch", lambda w: {**_branched(w), "name": "try"})
def _(w: World, f: Fields, r: Any) -> None:
    assert w.post(f"/v1/table/{f['id'][0]}/branches/list")["branches"] == {}


@case("UpdateFieldMetadata", lambda w: {"id": w.table(), "updates": [{"path": "id", "metadata": {"unit": "m"}}]})
def _(w: World, f: Fields, r: Any) -> None:
    assert r.version == 2
