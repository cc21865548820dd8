"""Calls of the operations by lancedb: through its remote protocol (D), and its namespace connection (N).

Each function makes what it needs and asserts what came of it.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any

import lance
import pyarrow as pa
from lancedb import LsmWriteSpec

from tiltyard_conformance.cases import ROWS, World

Call = Callable[[World, Any], None]
WAIT = datetime.timedelta(seconds=60)


def _table(w: World, db: Any) -> Any:
    return db.create_table(w.name("t"), ROWS)


def create_namespace(w: World, db: Any) -> None:
    db.create_namespace([name := w.name("n")])
    assert w.raw.post(f"/v1/namespace/{name}/exists").status_code == 200


def list_namespaces(w: World, db: Any) -> None:
    name = w.namespace()[0]
    assert name in db.list_namespaces(limit=1000).namespaces


def describe_namespace(w: World, db: Any) -> None:
    assert db.describe_namespace(w.namespace()).properties == {"k": "v"}


def drop_namespace(w: World, db: Any) -> None:
    db.drop_namespace(name := w.namespace())
    assert w.raw.post(f"/v1/namespace/{name[0]}/exists").status_code == 404


def list_tables(w: World, db: Any) -> None:
    name = w.table()[0]
    assert name in db.list_tables(limit=1000).tables


def create_table(w: World, db: Any) -> None:
    assert _table(w, db).count_rows() == 3


def describe_table(w: World, db: Any) -> None:
    assert db.open_table(w.table()[0]).schema.names == ROWS.column_names


def drop_table(w: World, db: Any) -> None:
    db.drop_table(name := w.table()[0])
    assert w.raw.post(f"/v1/table/{name}/exists").status_code == 404


def rename_table(w: World, db: Any) -> None:
    db.rename_table(w.table()[0], new := w.name("renamed"))
    assert w.count([new]) == 3


def insert(w: World, db: Any) -> None:
    table = _table(w, db)
    table.add(ROWS)
    assert w.count([table.name]) == 6


def merge_insert(w: World, db: Any) -> None:
    table = _table(w, db)
    table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(ROWS)
    assert w.count([table.name]) == 3


def update(w: World, db: Any) -> None:
    table = _table(w, db)
    assert table.update(where="id = 1", values={"text": "new"}).rows_updated == 1


def delete(w: World, db: Any) -> None:
    table = _table(w, db)
    table.delete("id = 1")
    assert w.count([table.name]) == 2


def query(w: World, db: Any) -> None:
    assert _table(w, db).search([1.0, 0.0]).limit(1).to_list()[0]["id"] == 1


def count(w: World, db: Any) -> None:
    assert _table(w, db).count_rows("id > 1") == 2


def explain(w: World, db: Any) -> None:
    assert "KNN" in _table(w, db).search([1.0, 0.0]).limit(1).explain_plan()


def analyze(w: World, db: Any) -> None:
    assert "metrics" in _table(w, db).search([1.0, 0.0]).limit(1).analyze_plan()


def add_columns(w: World, db: Any) -> None:
    table = _table(w, db)
    table.add_columns({"twice": "id * 2"})
    assert w.describe([table.name])["schema"]["fields"][-1]["name"] == "twice"


def alter_columns(w: World, db: Any) -> None:
    table = _table(w, db)
    table.alter_columns({"path": "text", "rename": "words"})
    assert w.describe([table.name])["schema"]["fields"][1]["name"] == "words"


def drop_columns(w: World, db: Any) -> None:
    table = _table(w, db)
    table.drop_columns(["text"])
    assert len(w.describe([table.name])["schema"]["fields"]) == 2


def update_field_metadata(w: World, db: Any) -> None:
    table = _table(w, db)
    table.update_field_metadata({"path": "id", "metadata": {"unit": "m"}})
    assert table.schema.field("id").metadata == {b"unit": b"m"}


def stats(w: World, db: Any) -> None:
    assert _table(w, db).stats()["num_rows"] == 3


def lsm_write_spec(w: World, db: Any) -> None:
    table = _table(w, db)
    assert table.get_lsm_write_spec() is None and table.get_lsm_stats() is None
    table.set_lsm_write_spec(LsmWriteSpec.bucket("id", 4))
    assert (table.get_lsm_write_spec().num_buckets, table.get_lsm_stats()) == (4, {"buckets": []})
    table.unset_lsm_write_spec()


def flush_and_compact(w: World, db: Any) -> None:
    table = _table(w, db)
    table.flush_lsm()
    table.compact_lsm()
    table.checkpoint_lsm()
    assert table.count_rows() == 3


def list_versions(w: World, db: Any) -> None:
    assert [entry["version"] for entry in _table(w, db).list_versions()] == [1]


def restore(w: World, db: Any) -> None:
    table = _table(w, db)
    table.delete("id = 1")
    table.checkout(1)
    table.restore()
    assert w.count([table.name]) == 3


def create_index(w: World, db: Any) -> None:
    table = _table(w, db)
    table.create_scalar_index("id", **_waiting(db))
    assert len(table.list_indices()) == 1


def create_text_index(w: World, db: Any) -> None:
    table = _table(w, db)
    table.create_fts_index("text", **_waiting(db))
    assert table.search("red", query_type="fts").to_list()[0]["id"] == 3


def _waiting(db: Any) -> dict[str, Any]:
    return {"wait_timeout": WAIT} if type(db).__name__ == "RemoteDBConnection" else {}


def index_stats(w: World, db: Any) -> None:
    table = _table(w, db)
    table.create_scalar_index("id", **_waiting(db))
    assert table.index_stats("id_idx").num_indexed_rows == 3


def drop_index(w: World, db: Any) -> None:
    table = _table(w, db)
    table.create_scalar_index("id", **_waiting(db))
    table.drop_index("id_idx")
    assert list(table.list_indices()) == []


def tags(w: World, db: Any) -> None:
    table = _table(w, db)
    table.tags.create("first", 1)
    assert table.tags.list()["first"]["version"] == 1 == table.tags.get_version("first")


def update_tag(w: World, db: Any) -> None:
    table = _table(w, db)
    table.tags.create("first", 1)
    table.delete("id = 1")
    table.tags.update("first", 2)
    assert table.tags.get_version("first") == 2


def delete_tag(w: World, db: Any) -> None:
    table = _table(w, db)
    table.tags.create("first", 1)
    table.tags.delete("first")
    assert table.tags.list() == {}


def branches(w: World, db: Any) -> None:
    table = _table(w, db)
    table.branches.create("try").add(ROWS)
    assert table.count_rows() == 3 and "try" in table.branches.list()


def delete_branch(w: World, db: Any) -> None:
    table = _table(w, db)
    table.branches.create("try")
    table.branches.delete("try")
    assert "try" not in table.branches.list()


def diff_branch(w: World, db: Any) -> None:
    table = _table(w, db)
    table.branches.create("try").add_columns({"twice": "id * 2"})
    assert [column["name"] for column in table.branches.diff("try")["addedColumns"]] == ["twice"]


def cherry_pick(w: World, db: Any) -> None:
    table = _table(w, db)
    table.branches.create("try").add_columns({"twice": "id * 2"})
    assert table.branches.cherry_pick("try")["status"] == "cherryPicked"
    assert "twice" in table.schema.names


def clone(w: World, db: Any) -> None:
    assert db.clone_table(w.name("copy"), _table(w, db).uri).count_rows() == 3


def prewarm(w: World, db: Any) -> None:
    table = _table(w, db)
    table.create_scalar_index("id", **_waiting(db))
    table.prewarm_index("id_idx")


def prewarm_data(w: World, db: Any) -> None:
    _table(w, db).prewarm_data(["id"])


def multipart(w: World, db: Any) -> None:
    """Rows enough that lancedb sends them in several parts; in one batch, since each of three rows takes a message."""
    table = _table(w, db)
    many = pa.concat_tables([ROWS] * 300_000).combine_chunks()
    table.add(many)
    assert w.count([table.name]) == 900_003


_BLOBS = pa.schema([pa.field("id", pa.int64()), lance.blob_field("image")])


def fetch_blobs(w: World, db: Any) -> None:
    table = db.create_table(w.name("t"), pa.table([pa.array([1]), lance.blob_array([b"bytes"])], schema=_BLOBS))
    assert table.blob_columns() == ["image"]
    assert table.fetch_blobs("image", [0]).to_pylist() == [b"bytes"]


def blob_files(w: World, db: Any) -> None:
    table = db.create_table(w.name("t"), pa.table([pa.array([1]), lance.blob_array([b"bytes"])], schema=_BLOBS))
    (file,) = table.fetch_blob_files("image", [0])
    assert (file.read(2), file.read_range(3, 2)) == (b"by", b"es")


BOTH: Mapping[str, Call] = {
    "CreateNamespace": create_namespace,
    "ListNamespaces": list_namespaces,
    "DescribeNamespace": describe_namespace,
    "DropNamespace": drop_namespace,
    "ListTables": list_tables,
    "CreateTable": create_table,
    "DescribeTable": describe_table,
    "DropTable": drop_table,
    "RenameTable": rename_table,
    "InsertIntoTable": insert,
    "MergeInsertIntoTable": merge_insert,
    "UpdateTable": update,
    "DeleteFromTable": delete,
    "QueryTable": query,
    "CountTableRows": count,
    "ExplainTableQueryPlan": explain,
    "AnalyzeTableQueryPlan": analyze,
    "AlterTableAddColumns": add_columns,
    "AlterTableAlterColumns": alter_columns,
    "AlterTableDropColumns": drop_columns,
    "ListTableVersions": list_versions,
    "RestoreTable": restore,
    "CreateTableIndex": create_text_index,
    "CreateTableScalarIndex": create_index,
    "DescribeTableIndexStats": index_stats,
    "ListTableIndices": create_index,
    "DropTableIndex": drop_index,
    "CreateTableTag": tags,
    "ListTableTags": tags,
    "GetTableTagVersion": tags,
    "UpdateTableTag": update_tag,
    "DeleteTableTag": delete_tag,
    "CreateTableBranch": branches,
    "ListTableBranches": branches,
    "DeleteTableBranch": delete_branch,
    "GetTableStats": stats,
}
"""What both connections can do; where the namespace connection reads and writes by itself, its catalog is ours."""

REMOTE: Mapping[str, Call] = {
    **BOTH,
    "FetchTableBlobs": fetch_blobs,
    "ReadTableBlob": blob_files,
    "UpdateFieldMetadata": update_field_metadata,
    "CherryPickTableBranch": cherry_pick,
    "CloneTable": clone,
    "CompactTableRte": flush_and_compact,
    "DiffTableBranch": diff_branch,
    "FlushTableRte": flush_and_compact,
    "PrewarmTableIndex": prewarm,
    "PrewarmTablePageCache": prewarm_data,
    "EnableTableRte": lsm_write_spec,
    "DisableTableRte": lsm_write_spec,
    "GetTableRteStats": lsm_write_spec,
    "GetTableRteSpec": lsm_write_spec,
    "CreateMultipartWrite": multipart,
    "CompleteMultipartWrite": multipart,
}
