"""The real-time engine (RTE, formerly LSM): its specification, and what it promises, through the stock lancedb client.

lancedb 0.40 has the earlier names; those of 0.41 are sent as its sources have them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pytest
from lancedb import LsmWriteSpec
from lancedb.index import FTS, BTree, IvfFlat
from lancedb.remote.errors import HttpError

from tests.services.server import ServerProcess

Fresh = Callable[[str], str]
WAIT = timedelta(seconds=60)
UNSHARDED = {"sharding": {"mode": "unsharded"}}
UNENFORCED = "lance-schema:unenforced-primary-key"
KEYED = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False, metadata={UNENFORCED: "true"}),
        pa.field("text", pa.string()),
        pa.field("vector", pa.list_(pa.float32(), 4)),
    ]
)


def rows(*ids: int, word: str = "fox") -> pa.Table:
    columns = {"id": list(ids), "text": [f"{word} w{id_}" for id_ in ids], "vector": [[float(i)] * 4 for i in ids]}
    return pa.table(columns, schema=KEYED)


@pytest.fixture
def table(remote: Any, fresh: Fresh) -> Any:
    return remote.create_table(fresh("t"), rows(*range(300)))


@pytest.fixture
def call(raw: Any, table: Any) -> Callable[..., Any]:
    return lambda route, body=None: raw.post(f"/v1/table/{table.name}/{route}/", body)


def test_a_specification_is_stored_shown_by_both_names_and_removed(table: Any, call: Callable[..., Any]) -> None:
    assert call("get_rte_spec").json() == {"rte_spec": None, "lsm_write_spec": None}
    assert call("get_rte_stats", {"include_sstable_rows": True}).json() == {"rte_stats": None, "lsm_stats": None}
    table.create_index("id", config=BTree(), wait_timeout=WAIT)
    table.set_lsm_write_spec(LsmWriteSpec.bucket("id", 4).with_writer_config_defaults({"durable_write": "false"}))
    stored = {"sharding": {"mode": "bucket", "column": "id", "num_buckets": 4}, "maintained_indexes": None}
    stored["writer_config_defaults"] = {"durable_write": "false"}
    assert call("get_rte_spec").json()["rte_spec"] == stored
    spec = table.get_lsm_write_spec()
    assert (spec.spec_type, spec.column, spec.num_buckets) == ("bucket", "id", 4)
    assert (spec.maintained_indexes, spec.writer_config_defaults) == (["id_idx"], {"durable_write": "false"})
    assert table.get_lsm_stats(include_generation_rows=True) == {"buckets": []}
    assert call("get_rte_stats").json()["rte_stats"] == {"table_shards": []}
    assert call("enable_rte", stored).status_code == 200  # the same again: a retry
    assert call("disable_rte").status_code == 200
    assert table.get_lsm_write_spec() is None and table.get_lsm_stats() is None
    table.set_lsm_write_spec(LsmWriteSpec.identity("text").with_maintained_indexes([]))
    assert call("get_rte_spec").json()["rte_spec"]["maintained_indexes"] == []
    table.alter_columns({"path": "text", "rename": "words"})
    assert table.get_lsm_write_spec().column == "words"
    table.unset_lsm_write_spec()


def test_a_specification_outlives_a_rename_a_drop_with_undrop_and_no_other_table_has_it(
    remote: Any, raw: Any, table: Any, fresh: Fresh
) -> None:
    table.set_lsm_write_spec(LsmWriteSpec.unsharded())
    other = fresh("renamed")
    raw.post(f"/v1/table/{table.name}/rename", {"new_table_name": other}).raise_for_status()
    remote.drop_table(other)
    assert remote.create_table(other, rows(1)).get_lsm_write_spec() is None
    again = fresh("again")
    raw.post(f"/tiltyard/v1/table/{other}/undrop", {"new_table_name": again}).raise_for_status()
    assert remote.open_table(again).get_lsm_write_spec().spec_type == "unsharded"


def test_a_specification_outlives_a_restart(empty_server: ServerProcess) -> None:
    database = lancedb.connect("db://x", api_key="none", host_override=empty_server.url)
    database.create_table("t", rows(1)).set_lsm_write_spec(LsmWriteSpec.bucket("id", 2))
    empty_server.stop()
    empty_server.start()
    again = lancedb.connect("db://x", api_key="none", host_override=empty_server.url).open_table("t")
    assert again.get_lsm_write_spec().num_buckets == 2


@pytest.mark.parametrize(
    "body,message",
    [
        ({}, "does not fit"),
        ({"sharding": {"mode": "range"}}, "does not fit"),
        ({"sharding": {"mode": "bucket", "column": "id"}}, "A sharding is"),
        ({"sharding": {"mode": "unsharded", "column": "id"}}, "A sharding is"),
        ({"sharding": {"mode": "bucket", "column": "id", "num_buckets": 0}}, "num_buckets is 1 to 1024"),
        ({"sharding": {"mode": "bucket", "column": "id", "num_buckets": 1025}}, "num_buckets is 1 to 1024"),
        ({"sharding": {"mode": "bucket", "column": "text", "num_buckets": 4}}, "primary key"),
        ({"sharding": {"mode": "identity", "column": "vector"}}, "plain values"),
        ({"sharding": {"mode": "identity", "column": "nope"}}, "nope"),
        ({"sharding": {"mode": "unsharded", "shards": 3}}, "unknown field"),
        ({**UNSHARDED, "maintained_indexes": ["nope"]}, "no index 'nope'"),
        ({**UNSHARDED, "writer_config_defaults": {"a": 1}}, "does not fit"),
        ({**UNSHARDED, "writer_config_defaults": {str(n): "" for n in range(300)}}, "does not fit"),
        ({**UNSHARDED, "branch": "dev"}, "leave the branch out"),
    ],
)
def test_enable_rte_of_what_does_not_fit_is_refused(call: Callable[..., Any], body: Any, message: str) -> None:
    for route in ("enable_rte", "set_lsm_write_spec"):
        refused = call(route, body)
        assert refused.status_code == 400 and message in refused.json()["error"]
    assert call("get_rte_spec").json()["rte_spec"] is None


def test_another_specification_and_none_to_remove_are_refused(raw: Any, table: Any, fresh: Fresh) -> None:
    with pytest.raises(HttpError, match="no LSM write spec"):
        table.unset_lsm_write_spec()
    table.set_lsm_write_spec(LsmWriteSpec.bucket("id", 4))
    with pytest.raises(HttpError, match="mutation is not supported"):
        table.set_lsm_write_spec(LsmWriteSpec.bucket("id", 8))
    assert table.get_lsm_write_spec().num_buckets == 4
    declared = raw.post(f"/v1/table/{fresh('d')}/declare", {"properties": {"tiltyard.rte": "{}"}})
    assert declared.status_code == 400 and "EnableTableRte" in declared.json()["error"]
    for route in ("enable_rte", "disable_rte", "get_rte_spec", "get_rte_stats", "flush_rte", "compact_rte"):
        missing = raw.post(f"/v1/table/nope/{route}/", UNSHARDED if route == "enable_rte" else None)
        assert (missing.status_code, missing.json()["code"]) == (404, 4)


def test_an_acknowledged_row_is_found_by_the_next_search_of_each_kind(table: Any, call: Callable[..., Any]) -> None:
    """Indexes cover the rows that were there, and none of those that come."""
    table.create_index("vector", config=IvfFlat(num_partitions=2), wait_timeout=WAIT)
    table.create_index("text", config=FTS(), wait_timeout=WAIT)
    table.create_index("id", config=BTree(), wait_timeout=WAIT)
    table.set_lsm_write_spec(LsmWriteSpec.bucket("id", 4))
    for number in range(1000, 1003):
        table.add(rows(number))
        found = table.search([float(number)] * 4).limit(1).to_list()
        assert [row["id"] for row in found] == [number]
        assert [row["id"] for row in table.search(f"w{number}", query_type="fts").to_list()] == [number]
        assert [row["id"] for row in table.search().where(f"id = {number}").to_list()] == [number]
    upsert = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
    assert upsert.execute(rows(1002, 1003, word="cat")).num_updated_rows == 1
    assert {row["id"] for row in table.search("cat", query_type="fts").to_list()} == {1002, 1003}
    assert table.search("fox w1002", query_type="fts").where("id = 1002").to_list()[0]["text"] == "cat w1002"
    assert table.count_rows() == 304
    table.flush_lsm()
    table.checkpoint_lsm()
    for route in ("flush_rte", "compact_rte"):
        assert call(route).status_code == 200
    assert table.count_rows() == 304


def test_use_rte_needs_a_specification_and_finds_each_row(table: Any, call: Callable[..., Any]) -> None:
    table.create_index("vector", config=IvfFlat(num_partitions=2), wait_timeout=WAIT)
    with pytest.raises(HttpError, match="no RTE specification"):
        table.search([1.0] * 4).use_lsm(True).to_list()
    query = {"vector": [1000.0] * 4, "k": 1, "use_rte": True, "with_row_id": True}
    assert call("query", query).status_code == 400
    table.set_lsm_write_spec(LsmWriteSpec.bucket("id", 4))
    table.add(rows(1000))
    assert [row["id"] for row in table.search([1000.0] * 4).use_lsm(True).limit(1).to_list()] == [1000]
    assert [row["id"] for row in table.search().where("id = 1000").use_lsm(True).to_list()] == [1000]
    assert call("query", query).status_code == 200
    assert call("explain_plan", {"query": query}).status_code == 200
    refused = call("query", query | {"fast_search": True})
    assert refused.status_code == 400 and "fast_search leaves out" in refused.json()["error"]


def test_upsert_by_the_rte_is_by_the_key_alone(table: Any, remote: Any, raw: Any, fresh: Fresh) -> None:
    def upsert(to: Any = table, on: str = "id") -> Any:
        return to.merge_insert(on).when_matched_update_all().when_not_matched_insert_all().use_lsm(True)

    with pytest.raises(HttpError, match="no RTE specification"):
        upsert().execute(rows(1))
    table.set_lsm_write_spec(LsmWriteSpec.bucket("id", 4))
    merged = upsert().execute(rows(1, 2, 1000))
    assert (merged.num_updated_rows, merged.num_inserted_rows, merged.version) == (2, 1, table.version)
    with pytest.raises(HttpError, match="primary key: on id"):
        upsert(on="text").execute(rows(1))
    with pytest.raises(HttpError, match="upsert alone"):
        table.merge_insert("id").when_not_matched_insert_all().use_lsm(True).execute(rows(5000))
    assert table.merge_insert("id").when_not_matched_insert_all().execute(rows(5000)).num_inserted_rows == 1
    bare = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    keyless = remote.create_table(fresh("t"), pa.table({"id": [1]}, schema=bare))
    keyless.set_lsm_write_spec(LsmWriteSpec.unsharded())
    with pytest.raises(HttpError, match="primary key"):
        upsert(keyless).execute(pa.table({"id": [1]}, schema=bare))
    # as set_unenforced_primary_key of lancedb 0.41 sends it
    declared = {"path": "id", "metadata": {UNENFORCED: None, f"{UNENFORCED}:position": "1"}, "replace": False}
    raw.post(f"/v1/table/{keyless.name}/update_field_metadata/", {"updates": [declared]}).raise_for_status()
    assert upsert(keyless).execute(pa.table({"id": [1, 2]}, schema=bare)).num_inserted_rows == 1


def test_compact_rte_starts_the_upkeep_of_a_table_with_a_specification(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, environ={"TILTYARD_UPKEEP": "true"})
    try:
        database = lancedb.connect("db://x", api_key="none", host_override=server.url)
        table = database.create_table("t", rows(*range(300)))
        table.create_index("id", config=BTree(), wait_timeout=WAIT)
        table.set_lsm_write_spec(LsmWriteSpec.unsharded())
        table.add(rows(1000))
        table.compact_lsm()
        give_up_at = time.monotonic() + 60  # by itself, upkeep takes up a single row after ten minutes
        while table.index_stats("id_idx").num_unindexed_rows and time.monotonic() < give_up_at:
            time.sleep(0.1)
        assert table.index_stats("id_idx").num_unindexed_rows == 0
    finally:
        server.stop()
