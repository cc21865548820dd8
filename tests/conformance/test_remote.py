"""lancedb's remote protocol, through the stock lancedb client."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from lancedb.index import FTS, BTree, Fm, HnswSq, IvfFlat
from lancedb.query import BooleanQuery, BoostQuery, MatchQuery, MultiMatchQuery, Occur, PhraseQuery
from lancedb.remote.errors import HttpError
from lancedb.rerankers import RRFReranker

from tiltyard.model.schemas.arrow_json import from_json
from tiltyard.runtime.client_arrow.reading import to_ipc

Fresh = Callable[[str], str]
WAIT = datetime.timedelta(seconds=60)

WORDS = ["quick brown fox", "lazy dog sleeps", "fox hunts hare", "brown bear eats honey", "dog chases fox"]


def rows(count: int, start: int = 0) -> pa.Table:
    """Rows whose vectors point along one of sixteen axes."""
    ids = np.arange(start, start + count)
    vectors = np.zeros((count, 16), dtype=np.float32)
    vectors[np.arange(count), ids % 16] = 1 + ids / 1000
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "text": pa.array([WORDS[number % 5] for number in ids], pa.string()),
            "price": pa.array(ids * 1.5, pa.float64()),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 16),
        }
    )


@pytest.fixture
def table(remote: Any, fresh: Fresh) -> Any:
    """A table of 100 rows."""
    return remote.create_table(fresh("t"), rows(100))


def ids(result: Any) -> list[int]:
    return [row["id"] for row in result.to_list()]


def test_table_names_pages_by_last_name_and_list_tables_by_token(remote: Any, fresh: Fresh) -> None:
    space = [fresh("space")]
    remote.create_namespace(space)
    for number in range(5):
        remote.create_table(f"t{number}", rows(1), namespace_path=space)
    first = list(remote.table_names(limit=2, namespace_path=space))
    assert first == ["t0", "t1"]
    assert list(remote.table_names(page_token="t1", limit=2, namespace_path=space)) == ["t2", "t3"]
    page = remote.list_tables(namespace_path=space, limit=3)
    assert page.tables == ["t0", "t1", "t2"]
    assert remote.list_tables(namespace_path=space, limit=3, page_token=page.page_token).tables == ["t3", "t4"]
    assert space[0] in remote.list_namespaces(limit=1000).namespaces
    remote.drop_namespace(space, behavior="cascade")
    assert space[0] not in remote.list_namespaces(limit=1000).namespaces


def test_table_names_of_the_root_holds_no_inner_tables(remote: Any, fresh: Fresh) -> None:
    name, space = fresh("root_table"), [fresh("space")]
    remote.create_namespace(space)
    remote.create_table(name, rows(1))
    remote.create_table("inner", rows(1), namespace_path=space)
    names = list(remote.table_names(limit=1000))
    assert name in names and not [other_name for other_name in names if "inner" in other_name]


def test_create_table_modes(remote: Any, fresh: Fresh) -> None:
    name = fresh("t")
    remote.create_table(name, rows(3))
    with pytest.raises(ValueError, match="already exists"):
        remote.create_table(name, rows(3))
    assert remote.create_table(name, rows(5), mode="exist_ok").count_rows() == 3
    assert remote.create_table(name, rows(7), mode="overwrite").count_rows() == 7


def test_exist_ok_opens_what_has_the_schema_and_lets_the_client_compare_what_has_another(
    raw: Any, remote: Any, fresh: Fresh
) -> None:
    """lancedb 0.40 opens what is said to exist; 0.41 compares its description with what it would create first."""
    name = fresh("t")
    inner = pa.struct([pa.field("a", pa.int8(), nullable=False, metadata={"unit": "m"})])
    fields = [
        pa.field("id", pa.int64(), nullable=False, metadata={"k": "v", "": "empty"}),
        pa.field("s", inner, metadata={"of": "a struct"}),
        pa.field("l", pa.list_(pa.field("element", pa.float32(), nullable=False, metadata={"of": "items"}))),
    ]
    schema = pa.schema(fields, metadata={"of": "the schema", "json": '{"a": "ü"}'})

    def create(schema: pa.Schema, path: str = f"/v1/table/{name}/create/?mode=exist_ok") -> Any:
        headers = {"content-type": "application/vnd.apache.arrow.stream"}
        return raw.http.post(path, content=bytes(to_ipc(schema.empty_table())), headers=headers)

    assert [create(schema).json()["version"] for _ in range(2)] == [1, 1]
    for other in (
        pa.schema(fields[::-1], schema.metadata),
        pa.schema(fields[:2], schema.metadata),
        pa.schema(fields, {}),
        schema.set(0, fields[0].with_nullable(True)),
        schema.set(0, fields[0].with_metadata({"k": "w"})),
        schema.set(0, fields[0].with_type(pa.int32())),
    ):
        refused = create(other)
        assert refused.status_code == 400 and "already exists" in refused.text, other
        assert create(other, f"/v1/table/{name}/create?mode=ExistOk").status_code == 200, "as the specification has it"
    described = raw.post(f"/v1/table/{name}/describe/").json()["schema"]
    assert from_json(described).equals(schema, check_metadata=True)
    opened = remote.create_table(name, rows(1), exist_ok=True)
    assert opened.schema.equals(schema, check_metadata=True) and opened.count_rows() == 0


def test_create_table_by_schema_alone_then_add(remote: Any, fresh: Fresh) -> None:
    table = remote.create_table(fresh("t"), schema=rows(0).schema)
    assert table.count_rows() == 0 and table.version >= 1
    assert table.add(rows(4)).version > 1
    assert table.search().limit(10).to_arrow().sort_by("id").equals(rows(4))


def test_open_table_missing_is_said_to_be_missing(remote: Any, fresh: Fresh) -> None:
    with pytest.raises(ValueError, match="not found"):
        remote.open_table(fresh("none"))


TYPES = pa.schema(
    [
        pa.field("i8", pa.int8()),
        pa.field("u64", pa.uint64(), nullable=False),
        pa.field("f16", pa.float16()),
        pa.field("text", pa.string()),
        pa.field("large", pa.large_string()),
        pa.field("bytes", pa.binary()),
        pa.field("fixed", pa.binary(4)),
        pa.field("day", pa.date32()),
        pa.field("time", pa.time64("us")),
        pa.field("naive", pa.timestamp("us")),
        pa.field("zoned", pa.timestamp("ms", "UTC")),
        pa.field("span", pa.duration("ns")),
        pa.field("money", pa.decimal128(10, 2)),
        pa.field("flag", pa.bool_()),
        pa.field("vector", pa.list_(pa.float32(), 4)),
        pa.field("half", pa.list_(pa.float16(), 4)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("nested", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.string())])))])),
        pa.field("word", pa.dictionary(pa.int32(), pa.string())),
    ]
)


def test_schema_of_every_type_comes_back_exactly(remote: Any, fresh: Fresh) -> None:
    table = remote.create_table(fresh("t"), schema=TYPES.with_metadata({"owner": "ada"}))
    schema = table.schema
    for field in TYPES:
        assert schema.field(field.name).type == field.type, field.name
        assert schema.field(field.name).nullable == field.nullable
    assert schema.metadata[b"owner"] == b"ada"


def test_add_overwrite_and_bad_schema(table: Any) -> None:
    table.add(rows(10), mode="overwrite")
    assert table.count_rows() == 10
    with pytest.raises(Exception, match="colour"):
        table.add(pa.table({"colour": ["red"]}))
    assert table.count_rows() == 10


def test_add_of_many_batches_is_one_version(table: Any) -> None:
    before = table.version
    many = rows(50_000, 100)
    table.add(many)
    assert table.count_rows() == 50_100
    assert table.version == before + 1


def test_update_and_delete_count_rows(table: Any) -> None:
    updated = table.update(where="id < 10", values_sql={"price": "price + 1"})
    assert updated.rows_updated == 10 and updated.version == table.version
    assert table.search().where("id = 3").to_list()[0]["price"] == 5.5
    deleted = table.delete("id >= 90")
    assert deleted.version == table.version and table.count_rows() == 90
    assert table.count_rows("price > 100") == len([n for n in range(90) if n * 1.5 + (n < 10) > 100])


def test_update_of_all_rows_with_values(table: Any) -> None:
    assert table.update(values={"text": "same"}).rows_updated == 100
    assert {row["text"] for row in table.search().limit(100).to_list()} == {"same"}


def test_bad_predicate_is_the_users_error_and_not_a_missing_table(table: Any) -> None:
    for broken in ("colour = 1", "id = ", "id = 'x' AND"):
        with pytest.raises(Exception, match=r".") as raised:
            table.delete(broken)
        assert "not found" not in str(raised.value).lower() or "colour" in str(raised.value)
    with pytest.raises(Exception, match="id, text, price, vector"):
        table.search().where("colour = 1").to_list()


def test_merge_insert_updates_inserts_and_deletes(table: Any) -> None:
    source = rows(20, 90).set_column(2, "price", pa.array([0.0] * 20))
    result = table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(source)
    assert (result.num_updated_rows, result.num_inserted_rows, result.num_deleted_rows) == (10, 10, 0)
    assert table.count_rows() == 110 and table.count_rows("price = 0") == 21
    result = table.merge_insert("id").when_not_matched_by_source_delete("id < 50").execute(source)
    assert result.num_deleted_rows == 50 and table.count_rows() == 60


def test_merge_insert_on_two_columns_with_a_condition(table: Any) -> None:
    source = rows(4, 98)
    builder = table.merge_insert(["id", "text"]).when_matched_update_all(where="target.price < 148")
    assert builder.when_not_matched_insert_all().execute(source).num_inserted_rows == 2


def test_query_vector_in_all_its_ways(table: Any) -> None:
    target = rows(1, 5)["vector"][0].as_py()
    assert ids(table.search(target).limit(1)) == [5]
    nearest = table.search(target).limit(3).distance_type("cosine").to_arrow()
    assert nearest.num_rows == 3 and "_distance" in nearest.column_names
    assert set(ids(table.search(target).where("id > 50").limit(3))) <= set(range(51, 100))
    assert ids(table.search(target).limit(2).offset(2)) == ids(table.search(target).limit(4))[2:]
    assert table.search(target).select(["id"]).limit(1).to_arrow().column_names == ["id", "_distance"]
    assert table.search(target).select({"double": "id * 2"}).limit(1).to_list()[0]["double"] == 10
    assert "_rowid" in table.search(target).with_row_id(True).limit(1).to_arrow().column_names
    assert table.search(target).distance_range(0.0, 0.0001).limit(10).to_arrow().num_rows == 1
    assert ids(table.search(target).bypass_vector_index().limit(1)) == [5]
    assert ids(table.search(target).nprobes(5).refine_factor(2).limit(1)) == [5]


def test_query_of_several_vectors_names_each(table: Any) -> None:
    targets = [rows(1, number)["vector"][0].as_py() for number in (5, 7)]
    result = table.search(targets).limit(1).to_arrow().sort_by("query_index")
    assert result["query_index"].to_pylist() == [0, 1] and result["id"].to_pylist() == [5, 7]


def test_query_without_a_vector_is_a_scan(table: Any) -> None:
    assert table.search().limit(5).to_arrow().num_rows == 5
    assert table.head(3).num_rows == 3
    assert table.search().where("id in (3, 4)").to_arrow().num_rows == 2


def test_take_by_offset_and_row_id(table: Any) -> None:
    assert sorted(table.take_offsets([0, 7]).to_arrow()["id"].to_pylist()) == [0, 7]
    row_ids = table.search().with_row_id(True).where("id in (3, 9)").to_arrow()["_rowid"].to_pylist()
    assert sorted(table.take_row_ids(row_ids).to_arrow()["id"].to_pylist()) == [3, 9]


def test_query_bad_input_is_a_clear_error(table: Any) -> None:
    with pytest.raises(Exception, match="16"):
        table.search([1.0, 2.0]).limit(1).to_list()
    with pytest.raises(Exception, match="colour"):
        table.search().select(["colour"]).to_list()


@pytest.fixture
def indexed(table: Any) -> Any:
    """The table with a text index."""
    table.create_fts_index("text", wait_timeout=WAIT, with_position=True)
    return table


def texts(result: Any) -> set[str]:
    return {row["text"] for row in result.to_list()}


def test_full_text_in_all_its_ways(indexed: Any) -> None:
    assert texts(indexed.search("honey", query_type="fts").limit(100)) == {"brown bear eats honey"}
    result = indexed.search("fox", query_type="fts").limit(5).to_arrow()
    assert "_score" in result.column_names and result.num_rows == 5
    assert texts(indexed.search(PhraseQuery("brown fox", "text"), query_type="fts").limit(100)) == {"quick brown fox"}
    fuzzy = MatchQuery("hony", "text", fuzziness=1)
    assert texts(indexed.search(fuzzy, query_type="fts").limit(100)) == {"brown bear eats honey"}
    both = MatchQuery("brown fox", "text", operator="AND")
    assert texts(indexed.search(both, query_type="fts").limit(100)) == {"quick brown fox"}
    boosted = BoostQuery(MatchQuery("fox", "text"), MatchQuery("quick", "text"), negative_boost=0.1)
    assert indexed.search(boosted, query_type="fts").limit(1).to_list()[0]["text"] != "quick brown fox"
    every = BooleanQuery([(Occur.MUST, MatchQuery("fox", "text")), (Occur.MUST_NOT, MatchQuery("dog", "text"))])
    assert texts(indexed.search(every, query_type="fts").limit(100)) == {"quick brown fox", "fox hunts hare"}
    multi = MultiMatchQuery("honey", ["text"])
    assert texts(indexed.search(multi, query_type="fts").limit(100)) == {"brown bear eats honey"}
    assert set(ids(indexed.search("fox", query_type="fts").where("id < 10").limit(100))) <= set(range(10))


def test_tokenize_is_as_the_index_has_it(table: Any) -> None:
    table.create_index("text", config=FTS(custom_stop_words=["fox"]), wait_timeout=WAIT)
    for chosen in ({"column": "text"}, {"index_name": "text_idx"}):
        words = [token.text for token in table.tokenize("The lazy Foxes chase a fox", **chosen)]
        assert words == ["the", "lazi", "chase", "a"]  # "fox" is a stop word, and the list is the only one


def test_hybrid_search_joins_both(indexed: Any) -> None:
    target = rows(1, 5)["vector"][0].as_py()
    builder = indexed.search(query_type="hybrid").vector(target).text("honey").rerank(RRFReranker()).limit(5)
    result = builder.to_arrow()
    assert result.num_rows == 5 and "_relevance_score" in result.column_names


@pytest.mark.parametrize(
    "column,config",
    [
        ("vector", IvfFlat(num_partitions=2)),
        ("vector", HnswSq(num_partitions=1)),
        ("id", BTree()),
        ("text", FTS()),
        ("text", Fm()),
    ],
)
def test_create_index_of_each_kind_is_listed_with_its_statistics(table: Any, column: str, config: Any) -> None:
    table.create_index(column, config=config, wait_timeout=WAIT)
    [index] = table.list_indices()
    assert index.columns == [column]
    stats = table.index_stats(index.name)
    assert (stats.num_indexed_rows, stats.num_unindexed_rows) == (100, 0)
    table.prewarm_index(index.name)
    table.drop_index(index.name)
    assert table.list_indices() == [] and table.index_stats(index.name) is None


def test_create_index_again_replaces_it(table: Any) -> None:
    table.create_scalar_index("id", wait_timeout=WAIT)
    table.create_scalar_index("id", "BITMAP", wait_timeout=WAIT, name="id_idx")
    [index] = table.list_indices()
    assert str(index.index_type).lower() == "bitmap"


def test_ivf_pq_by_the_old_form(remote: Any, fresh: Fresh) -> None:
    table = remote.create_table(fresh("t"), rows(600))
    table.create_index(metric="cosine", num_partitions=2, num_sub_vectors=4, index_type="IVF_PQ", wait_timeout=WAIT)
    assert table.index_stats(table.list_indices()[0].name).distance_type == "cosine"
    assert ids(table.search(rows(1, 5)["vector"][0].as_py()).nprobes(2).refine_factor(10).limit(1))
    assert "ANN" in table.search([1.0] * 16).limit(1).explain_plan(True)
    assert "metrics" in table.search([1.0] * 16).limit(1).analyze_plan()


def test_drop_index_and_prewarm_of_a_missing_one_say_so(table: Any) -> None:
    with pytest.raises(Exception, match="nosuch"):
        table.drop_index("nosuch")
    with pytest.raises(Exception, match="nosuch"):
        table.prewarm_index("nosuch")


def test_versions_checkout_restore_and_tags(table: Any) -> None:
    first = table.version
    table.tags.create("start", first)
    table.delete("id < 50")
    assert [entry["version"] for entry in table.list_versions()][-1] == table.version
    table.checkout(first)
    assert table.count_rows() == 100 and table.search().limit(200).to_arrow().num_rows == 100
    table.restore()
    assert table.count_rows() == 100
    table.tags.update("start", table.version)
    assert table.tags.list()["start"]["version"] == table.version == table.tags.get_version("start")
    table.checkout("start")
    table.checkout_latest()
    table.tags.delete("start")
    assert table.tags.list() == {}
    with pytest.raises(Exception, match="99"):
        table.checkout(99)


def test_columns_are_added_altered_and_dropped(table: Any) -> None:
    assert table.add_columns({"double": "id * 2"}).version == table.version
    table.add_columns(pa.schema([("note", pa.string()), ("more", pa.list_(pa.float32(), 4))]))
    assert table.search().where("id = 4").to_list()[0]["double"] == 8
    table.alter_columns({"path": "double", "rename": "twice"}, {"path": "id", "nullable": True})
    table.alter_columns({"path": "twice", "data_type": pa.int32()})
    assert table.schema.field("twice").type == pa.int32() and table.schema.field("id").nullable
    table.drop_columns(["note", "more"])
    assert table.schema.names == ["id", "text", "price", "vector", "twice"]
    with pytest.raises(Exception, match="colour"):
        table.drop_columns(["colour"])


def test_stats_are_integers(table: Any) -> None:
    stats = table.stats()
    assert stats["num_rows"] == 100 and stats["fragment_stats"]["num_fragments"] == 1
    assert stats["total_bytes"] > 0 and stats["num_indices"] == 0


def test_stats_count_the_deleted_rows_that_lie_in_files(raw: Any, remote: Any, table: Any) -> None:
    table.add(rows(3, 100))
    table.delete("id IN (1, 2, 3, 100, 101, 102)")
    for path in (f"/v1/table/{table.name}/stats", f"/v1/table/{table.name}/stats/"):
        stats = raw.post(path).json()
        assert (stats["num_rows"], stats["num_deleted_rows"]) == (97, 3), "a fragment goes with its last row"
        assert raw.post(path, {"branch": "main"}).json()["num_deleted_rows"] == 3
    assert (
        raw.post(f"/v1/table/{remote.create_table(table.name + '_', rows(1)).name}/stats").json()
        | {"num_deleted_rows": 0}
        == raw.post(f"/v1/table/{table.name}_/stats").json()
    )


def test_rename_and_drop(remote: Any, fresh: Fresh) -> None:
    old, new = fresh("t"), fresh("t")
    remote.create_table(old, rows(3))
    remote.rename_table(old, new)
    assert remote.open_table(new).count_rows() == 3
    remote.drop_table(new)
    with pytest.raises(ValueError, match="not found"):
        remote.open_table(new)


def test_clone_shares_the_data(remote: Any, table: Any, fresh: Fresh) -> None:
    version = table.version
    table.delete("id < 50")
    copy = remote.clone_table(fresh("clone"), table.uri, source_version=version)
    assert copy.count_rows() == 100
    copy.delete("true")
    assert table.count_rows() == 50


def test_branches_keep_their_own_rows(table: Any) -> None:
    branch = table.branches.create("try")
    branch.add(rows(5, 100))
    assert branch.count_rows() == 105 and table.count_rows() == 100
    assert "try" in table.branches.list()
    table.branches.delete("try")
    assert "try" not in table.branches.list()


def test_field_metadata_and_uri(table: Any) -> None:
    table.update_field_metadata({"path": "id", "metadata": {"unit": "piece"}})
    assert table.schema.field("id").metadata[b"unit"] == b"piece"
    assert table.uri.endswith(".lance")


def test_prewarm_data_loads_columns_that_are_there(table: Any) -> None:
    table.create_scalar_index("id", wait_timeout=WAIT)
    table.prewarm_data(["id"])
    table.prewarm_data()
    for number in (3, 3, 4, 1000):  # the first is still read by a thread
        assert table.search().where(f"id = {number}").limit(1).to_arrow()["id"].to_pylist() == [number][: number < 100]
    with pytest.raises(Exception, match="No column 'nope'"):
        table.prewarm_data(["nope"])


def test_unsupported_calls_say_so_and_not_that_the_table_is_missing(remote: Any, table: Any) -> None:
    with pytest.raises(HttpError, match="501") as raised:
        remote.create_materialized_view(f"{table.name}_view", table.name, where="id IN (SELECT 1)")
    assert "not found" not in str(raised.value).lower()
