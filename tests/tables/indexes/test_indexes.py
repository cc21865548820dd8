"""Indexes of real tables: create, build, list, describe, drop, prewarm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    InvalidTableStateError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableIndexAlreadyExistsError,
    TableIndexNotFoundError,
)
from tests.tables.served import Server, ask

from tiltyard.model.jobs import Job
from tiltyard.model.modes import TransactionStatus
from tiltyard.model.spec import models
from tiltyard.tables.indexes import build_job, indexes

if TYPE_CHECKING:
    from collections.abc import Callable

VECTOR_TYPES = ["IVF_FLAT", "IVF_SQ", "IVF_PQ", "IVF_RQ", "IVF_HNSW_FLAT", "IVF_HNSW_SQ", "IVF_HNSW_PQ"]
SCALAR_TYPES = [
    *(("id", kind) for kind in ("BTREE", "BITMAP", "ZONEMAP", "BLOOMFILTER")),
    *(("labels", "LABEL_LIST"), ("text", "NGRAM"), ("text", "FTS"), ("s.x", "BTREE"), ("labels", "FTS")),
    *(("text", "FM"), ("text", "MINHASHLSH")),
]


def vectors(count: int, dimension: int, kind: Any = np.float32) -> pa.Array:
    values = np.random.default_rng(5).random(count * dimension) * (200 if kind is np.uint8 else 1)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.astype(kind)), dimension)


def rows(count: int, dimension: int = 8) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "text": pa.array([f"a lazy fox number {row}" for row in range(count)], pa.utf8()),
            "labels": pa.array([["a", "b"]] * count, pa.list_(pa.utf8())),
            "s": pa.array([{"x": row} for row in range(count)], pa.struct([("x", pa.int32())])),
            "vec": vectors(count, dimension),
        }
    )


class Indexes:
    """The operations, on the table `t`."""

    def __init__(self, server: Server, data: pa.Table) -> None:
        self.server = server
        server.create("t", data)

    def _call(self, function: Callable[..., Any], kind: Any, fields: dict[str, Any]) -> Any:
        return function(self.server.ctx, ask(kind, **{"id": "t", **fields}))

    def create(self, column: str, kind: str, **fields: Any) -> str:
        fields |= {"column": column, "index_type": kind}
        response = self._call(indexes.create_table_index, models.CreateTableIndexRequest, fields)
        assert isinstance(response.transaction_id, str)
        return response.transaction_id

    def build(self, column: str, kind: str, **fields: Any) -> None:
        self.create(column, kind, **fields)
        assert self.server.run_jobs() == ["Succeeded"]

    def list(self, **fields: Any) -> Any:
        return self._call(indexes.list_table_indices, models.ListTableIndicesRequest, fields)

    def names(self) -> dict[str, str]:
        return {entry.index_name: entry.status for entry in self.list().indexes}

    def stats(self, name: str, **fields: Any) -> Any:
        fields |= {"index_name": name}
        return self._call(indexes.describe_table_index_stats, models.DescribeTableIndexStatsRequest, fields)

    def drop(self, name: str, **fields: Any) -> Any:
        return self._call(indexes.drop_table_index, models.DropTableIndexRequest, {"index_name": name, **fields})

    @property
    def dataset(self) -> lance.LanceDataset:
        return self.server.open("t")


@pytest.fixture
def table(server: Server) -> Indexes:
    return Indexes(server, rows(300))


@pytest.mark.parametrize("kind", VECTOR_TYPES)
@pytest.mark.parametrize("count", [0, 1, 20, 300])
def test_create_index_of_vectors_holds_every_row_whatever_their_number(server: Server, kind: str, count: int) -> None:
    table = Indexes(server, rows(count))
    table.build("vec", kind, distance_type="cosine")
    (entry,) = table.list().indexes
    assert (entry.index_name, entry.index_type, entry.status, entry.columns) == ("vec_idx", kind, "done", ["vec"])
    assert (entry.num_indexed_rows, entry.num_unindexed_rows) == (count, 0)
    stats = table.stats("vec_idx")
    assert (stats.distance_type, stats.index_type, stats.num_unindexed_rows) == ("cosine", kind, 0)
    if count:
        first = table.dataset.to_table(limit=1)["vec"][0].as_py()
        nearest = {"column": "vec", "q": first, "k": 1, "metric": "cosine", "refine_factor": 30}  # codes alone may err
        assert table.dataset.to_table(columns=["id"], nearest=nearest)["id"].to_pylist() == [0]


@pytest.mark.parametrize(("column", "kind"), SCALAR_TYPES)
@pytest.mark.parametrize("count", [0, 300])
def test_create_index_of_scalars_and_text_holds_every_row(server: Server, column: str, kind: str, count: int) -> None:
    table = Indexes(server, rows(count))
    if "." in column and not count:  # Lance would make it, and then fail on each attempt to bring rows in
        with pytest.raises(InvalidTableStateError, match=r"An index of s\.x, .* needs rows"):
            table.create(column, kind)
        return
    table.build(column, kind, name="one")
    (entry,) = table.list().indexes
    assert (entry.index_name, entry.index_type, entry.columns) == ("one", kind, [column])
    assert (entry.num_indexed_rows, entry.num_unindexed_rows, entry.num_segments) == (count, 0, 1)
    assert entry.size_bytes > 0
    assert entry.created_at.endswith("Z")


@pytest.mark.parametrize("kind", [np.float16, np.float64])
@pytest.mark.parametrize("count", [7, 300])
def test_create_index_pq_of_other_floats_and_odd_lengths(server: Server, kind: Any, count: int) -> None:
    table = Indexes(server, pa.table({"vec": vectors(count, 51, kind)}))
    table.build("vec", "IVF_PQ")
    assert json.loads(table.list().indexes[0].index_details)["compression"]["num_sub_vectors"] == 17
    assert table.stats("vec_idx").num_indexed_rows == count


def test_create_index_of_several_vectors_a_row_and_of_bytes(server: Server) -> None:
    several = pa.array([[[float(row)] * 8, [1.0] * 8] for row in range(9)], pa.list_(pa.list_(pa.float32(), 8)))
    table = Indexes(server, pa.table({"several": several, "bits": vectors(9, 8, np.uint8)}))
    table.build("several", "IVF_PQ")
    table.build("bits", "IVF_FLAT")
    assert [(entry.index_name, entry.num_indexed_rows) for entry in table.list().indexes] == [
        ("bits_idx", 9),
        ("several_idx", 9),
    ]
    assert (table.stats("several_idx").distance_type, table.stats("bits_idx").distance_type) == ("cosine", "hamming")


@pytest.mark.parametrize("kind", VECTOR_TYPES)
def test_create_index_of_vectors_that_are_all_null(server: Server, kind: str) -> None:
    table = Indexes(server, pa.table({"vec": pa.array([None] * 5, pa.list_(pa.float32(), 8))}))
    table.build("vec", kind)
    assert table.stats("vec_idx").num_unindexed_rows == 0


def test_create_index_parameters_reach_lance(table: Indexes) -> None:
    table.build("vec", "IVF_HNSW_PQ", num_partitions=1, num_sub_vectors=4, m=7, ef_construction=33, max_iterations=9)
    details = json.loads(table.list().indexes[0].index_details)
    assert details["hnsw"] == {"max_connections": 7, "construction_ef": 33, "max_level": 7}
    assert details["compression"] == {"type": "pq", "num_bits": 8, "num_sub_vectors": 4}
    assert details["runtime_hints"]["lance.ivf.max_iters"] == "9"
    table.build(
        "text",
        "FTS",
        base_tokenizer="ngram",
        ngram_min_length=2,
        max_ngram_length=4,
        prefix_only=True,
        with_position=True,
    )
    details = json.loads(table.list().indexes[0].index_details)
    parameters = {
        "base_tokenizer": "ngram",
        "min_ngram_length": 2,
        "max_ngram_length": 4,
        "prefix_only": True,
        "with_position": True,
    }
    assert parameters.items() <= details.items()
    plain = {
        "language": "german",
        "stem": False,
        "remove_stop_words": False,
        "lower_case": False,
        "ascii_folding": False,
    }
    table.build("text", "INVERTED", max_token_length=9, replace=True, **plain)
    details = json.loads(table.list().indexes[0].index_details)
    assert (plain | {"language": "German", "max_token_length": 9}).items() <= details.items()


def test_custom_stop_words_are_left_out_and_told(table: Indexes) -> None:
    table.build("text", "FTS", custom_stop_words=["fox"])
    assert json.loads(table.list().indexes[0].index_details)["custom_stop_words"] == ["fox"]
    counts = {word: table.dataset.to_table(full_text_query=word).num_rows for word in ("fox", "lazy")}
    assert counts == {"fox": 0, "lazy": 300}
    with pytest.raises(InvalidInputError, match="custom_stop_words"):  # Lance takes them, and leaves nothing out
        table.create("text", "FTS", custom_stop_words=["fox"], remove_stop_words=False, replace=True)


def test_an_index_whose_files_cannot_be_read_is_still_listed(table: Indexes, caplog: pytest.LogCaptureFixture) -> None:
    table.dataset.create_scalar_index("text", "INVERTED")
    for file in Path(table.server.ctx.storage.root).rglob("_indices/*/metadata.lance"):
        file.write_bytes(b"\xff" * file.stat().st_size)
    assert table.names() == {"text_idx": "done"}
    assert "text_idx" in caplog.text


def test_create_index_takes_what_lancedb_sends_for_full_text(table: Indexes) -> None:
    flags = dict.fromkeys(["split_identifiers", "split_on_numerics", "preserve_original", "index_operators"], False)
    table.build("text", "FTS", block_size=128, custom_stop_words=None, lance_tokenizer=None, **flags)
    assert table.names() == {"text_idx": "done"}


@pytest.mark.parametrize(
    "name", ["vector", "ivf_pq", "IvfPq", "FTS", "Inverted", "btree", "LabelList", "NGram", "BLOOM_FILTER"]
)
def test_index_type_has_many_spellings(name: str) -> None:
    assert indexes.parse_index_type(name)


@pytest.mark.parametrize(
    ("column", "kind", "fields", "message"),
    [
        ("id", "nonsense", {}, "choose one of IVF_FLAT"),
        ("id", "IVF_PQ", {}, "fixed-size lists"),
        ("vec", "BTREE", {}, "needs a column of numbers"),
        ("id", "FTS", {}, "needs a column of text"),
        ("id", "LABEL_LIST", {}, "needs a column of lists"),
        ("id", "NGRAM", {}, "needs a column of text"),
        ("id", "FM", {}, "needs a column of text or bytes"),
        ("vec", "MINHASHLSH", {}, "needs a column of text"),
        ("s", "RTREE", {}, "needs a column of geometries"),
        ("text", "FTS", {"base_tokenizer": "ngram", "custom_stop_words": ["a"]}, "with remove_stop_words alone"),
        ("text", "FTS", {"base_tokenizer": "code", "custom_stop_words": ["a"]}, "with remove_stop_words alone"),
        ("s", "BITMAP", {}, "needs a column of numbers"),
        ("vec", "IVF_PQ", {"distance_type": "manhattan"}, "l2, cosine, dot or hamming"),
        ("vec", "IVF_PQ", {"distance_type": "hamming"}, "uint8"),
        ("vec", "IVF_PQ", {"num_sub_vectors": 3}, "divide 8"),
        ("vec", "IVF_PQ", {"num_bits": 5}, "4 or 8"),
        ("vec", "IVF_PQ", {"num_bits": 4, "num_sub_vectors": 1}, "be even"),
        ("vec", "IVF_SQ", {"num_bits": 4}, "num_bits of IVF_SQ is 8"),
        ("vec", "IVF_FLAT", {"num_bits": 8}, "takes no num_bits"),
        ("vec", "IVF_PQ", {"stem": True}, "takes no stem"),
        ("id", "BTREE", {"num_partitions": 3}, "takes no num_partitions"),
        ("text", "FTS", {"base_tokenizer": "nonsense"}, "unknown base tokenizer"),
        ("text", "FTS", {"base_tokenizer": "jieba/../../evil"}, "base_tokenizer is a name"),
        ("text", "FTS", {"base_tokenizer": "lindera//etc"}, "base_tokenizer is a name"),
        ("text", "FTS", {"base_tokenizer": "jieba/nobody"}, "cannot be: its model is not there, or cannot be read.$"),
        ("text", "FTS", {"language": "Klingon"}, "Klingon"),
        ("text", "FTS", {"base_tokenizer": "ngram", "min_ngram_length": 5, "max_ngram_length": 2}, "min_gram"),
        ("text", "FTS", {"min_ngram_length": 2, "ngram_min_length": 3}, "disagree"),
        ("text", "FTS", {"block_size": 100}, "128 or 256"),
        ("text", "FTS", {"document_granularity": "page"}, "'row' or 'list_element'"),
        ("text", "FTS", {"document_granularity": "list_element"}, "needs a list of texts"),
        ("text", "FTS", {"lance_tokenizer": "json"}, "'text'"),
        ("text", "FTS", {"split_identifiers": True}, "analyzer='code'"),
        ("id", "BTREE", {"name": "__lance_x"}, "cannot be the name"),
    ],
)
def test_create_index_that_cannot_be_is_invalid_input(
    table: Indexes, column: str, kind: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        table.create(column, kind, **fields)
    assert table.server.run_jobs() == []


def test_create_index_rq_needs_vectors_of_a_multiple_of_eight(server: Server) -> None:
    with pytest.raises(InvalidInputError, match="multiple of 8"):
        Indexes(server, pa.table({"vec": vectors(3, 10)})).create("vec", "IVF_RQ")


def test_create_index_on_what_is_not_there_is_refused_at_once(table: Indexes) -> None:
    with pytest.raises(TableColumnNotFoundError, match=r"nope.*id, text, labels, s, vec"):
        table.create("nope", "BTREE")
    with pytest.raises(TableBranchNotFoundError):
        table.create("id", "BTREE", branch="nope")
    table.server.declare("declared")
    with pytest.raises(InvalidTableStateError):
        table.create("id", "BTREE", id="declared")


def test_create_scalar_index_refuses_vectors(table: Indexes) -> None:
    request = ask(models.CreateTableIndexRequest, id="t", column="vec", index_type="IVF_FLAT")
    with pytest.raises(InvalidInputError, match="vector index"):
        indexes.create_table_scalar_index(table.server.ctx, request)
    request = ask(models.CreateTableIndexRequest, id="t", column="id", index_type="BTREE")
    assert indexes.create_table_scalar_index(table.server.ctx, request).transaction_id


def test_create_index_of_a_name_that_is_taken_is_refused_unless_replaced(table: Indexes) -> None:
    table.build("id", "BTREE")
    for options in ({}, {"name": "id_idx"}):
        with pytest.raises(TableIndexAlreadyExistsError):
            table.create("id", "BTREE", **options)
    table.build("id", "BTREE", replace=True)
    table.build("id", "BITMAP", name="id_idx", replace=True)
    assert [entry.index_type for entry in table.list().indexes] == ["BITMAP"]
    with pytest.raises(TableIndexAlreadyExistsError, match="column 'id'"):
        table.create("text", "BTREE", name="id_idx", replace=True)


def test_create_index_of_another_type_on_a_column_gets_the_next_name(table: Indexes) -> None:
    table.build("text", "BTREE")
    table.build("text", "FTS", replace=True)
    table.build("text", "FTS", replace=True)
    assert [(entry.index_name, entry.index_type) for entry in table.list().indexes] == [
        ("text_idx", "BTREE"),
        ("text_idx_2", "FTS"),
    ]


def test_an_index_being_built_is_listed_and_its_stats_tell_its_state(table: Indexes) -> None:
    transaction = table.create("id", "BTREE")
    (entry,) = table.list().indexes
    assert (entry.index_name, entry.status, entry.index_uuid) == ("id_idx", "building", transaction)
    assert (entry.num_indexed_rows, entry.num_unindexed_rows) == (0, 300)
    stats = table.stats("id_idx")
    assert (stats.status, stats.failure, stats.index_type, stats.num_indices) == ("building", None, "BTREE", 0)
    assert (stats.num_indexed_rows, stats.num_unindexed_rows) == (0, 300)
    with pytest.raises(TableIndexAlreadyExistsError):
        table.create("id", "BTREE")
    table.server.run_jobs()
    assert table.names() == {"id_idx": "done"}
    assert table.stats("id_idx").status == "done"


def fail(table: Indexes, reason: str = "No memory is left.") -> None:
    """Let the queued build fail as a worker does."""
    store = table.server.services.store
    record = store.claim_transaction("test", 60_000)
    assert record is not None
    store.finish_transaction(record.id, "test", TransactionStatus.FAILED, error=reason)


def test_an_index_that_failed_is_listed_with_its_reason_until_it_is_ordered_again(table: Indexes) -> None:
    table.create("vec", "IVF_FLAT", distance_type="cosine", num_partitions=2)
    fail(table)
    (entry,) = table.list().indexes
    assert (entry.index_name, entry.status, entry.failure) == ("vec_idx", "failed", "No memory is left.")
    assert (entry.num_indexed_rows, entry.num_unindexed_rows, entry.index_type) == (0, 300, "IVF_FLAT")
    stats = table.stats("vec_idx")
    assert (stats.status, stats.failure, stats.distance_type) == ("failed", "No memory is left.", "cosine")
    assert table.create("vec", "IVF_FLAT") != entry.index_uuid
    assert table.list().indexes[0].failure is None
    assert table.stats("vec_idx").status == "building"
    fail(table, "Nor now.")
    assert table.stats("vec_idx").failure == "Nor now."
    table.build("vec", "IVF_FLAT")
    assert table.names() == {"vec_idx": "done"}
    assert (table.stats("vec_idx").status, table.stats("vec_idx").failure) == ("done", None)


def test_a_failed_replacement_is_told_and_the_index_there_is_stays(table: Indexes) -> None:
    table.build("id", "BTREE")
    table.create("id", "BTREE", replace=True)
    fail(table)
    (entry,) = table.list().indexes
    assert (entry.status, entry.failure, entry.num_indexed_rows) == ("failed", "No memory is left.", 300)
    stats = table.stats("id_idx")
    assert (stats.status, stats.num_indexed_rows, stats.num_unindexed_rows) == ("failed", 300, 0)
    table.dataset.create_scalar_index("id", "BTREE", name="id_idx", replace=True)  # by another client, later
    assert table.names() == {"id_idx": "done"}


def test_drop_index_ends_what_is_told_of_a_failure(table: Indexes) -> None:
    table.create("id", "BTREE")
    fail(table)
    table.drop("id_idx")
    assert table.names() == {}
    with pytest.raises(TableIndexNotFoundError):
        table.stats("id_idx")
    with pytest.raises(TableIndexNotFoundError):
        table.drop("id_idx")


def test_a_failure_of_a_column_that_is_gone_is_told_no_more(table: Indexes) -> None:
    table.create("id", "BTREE")
    fail(table)
    table.dataset.drop_columns(["id"])
    assert table.names() == {}


def test_failures_are_of_their_branch(table: Indexes) -> None:
    table.create("id", "BTREE")
    fail(table)
    table.dataset.create_branch("b")
    listed = indexes.list_table_indices(table.server.ctx, ask(models.ListTableIndicesRequest, id="t", branch="b"))
    assert listed.indexes == []


@pytest.mark.parametrize(
    ("column", "kind", "options", "message"),
    [
        ("nested", "LABEL_LIST", {}, "items are no lists"),
        ("structs", "LABEL_LIST", {}, "items are no lists"),
        ("vec", "IVF_HNSW_SQ", {"m": 3}, "an m of 4 or more"),
        ("vec", "IVF_HNSW_FLAT", {"m": 151}, "no smaller"),
        ("vec", "IVF_HNSW_PQ", {"ef_construction": 19}, "no smaller"),
    ],
)
def test_what_lance_would_fail_on_is_refused_when_it_is_ordered(
    server: Server, column: str, kind: str, options: dict[str, Any], message: str
) -> None:
    more = {
        "nested": pa.array([[[1]]] * 8, pa.list_(pa.list_(pa.int64()))),
        "structs": pa.array([[{"a": 1}]] * 8, pa.list_(pa.struct([("a", pa.int64())]))),
    }
    table = Indexes(server, pa.table({**dict(zip(rows(8).column_names, rows(8).columns, strict=True)), **more}))
    with pytest.raises(InvalidInputError, match=message):
        table.create(column, kind, **options)


def test_an_index_being_replaced_holds_no_row_until_it_is_built(table: Indexes) -> None:
    table.build("id", "BTREE")
    table.create("id", "BTREE", replace=True)
    assert table.names() == {"id_idx": "building"}
    assert table.stats("id_idx").num_unindexed_rows == 300
    table.server.run_jobs()
    assert table.stats("id_idx").num_unindexed_rows == 0


def test_create_index_repeated_word_for_word_is_one_transaction(table: Indexes) -> None:
    first = table.create("id", "BTREE", replace=True)
    assert table.create("id", "BTREE", replace=True) == first
    other = table.create("id", "BITMAP", name="id_idx", replace=True)
    assert other != first
    assert table.server.run_jobs() == ["Succeeded", "Succeeded"]
    assert [entry.index_type for entry in table.list().indexes] == ["BITMAP"]


def test_create_index_on_a_large_table_is_ordered_as_a_job_of_the_pipeline(tmp_path: Path) -> None:
    server = Server(tmp_path, spark_index_rows=100)
    table = Indexes(server, rows(100))
    ordered = table.create("vec", "IVF_PQ", name="big", num_partitions=4, num_sub_vectors=2)
    record = server.services.store.describe_transaction(ordered)
    assert (record.kind, record.status, record.properties["index_name"]) == ("index", "Queued", "big")
    arguments = record.payload["arguments"]
    assert {
        "table": "t",
        "column": "vec",
        "type": "IVF_PQ",
        "name": "big",
        "replace": True,
    }.items() <= arguments.items()
    assert arguments["parameters"]["num_partitions"] == "4"
    assert table.create("vec", "IVF_PQ", name="big", num_partitions=4, num_sub_vectors=2, replace=True) == ordered
    assert table.names() == {"big": "building"}
    server.create("few", rows(99))
    assert server.services.store.describe_transaction(table.create("id", "BTREE", id="few")).kind == "create_index"


def test_build_index_twice_after_a_crash_builds_once(table: Indexes) -> None:
    table.create("id", "BTREE")
    record = table.server.services.store.claim_transaction("dies", 0)
    assert record is not None
    properties: dict[str, str] = {}

    def report(seen: Any) -> bool:
        properties.update(seen)
        table.server.services.store.alter_transaction(
            record.id, lambda status, properties: (status, {**properties, **seen})
        )
        return True

    build_job.build_index(table.server.ctx, Job(record.id, record.kind, record.table_id, record.payload, report))
    version = table.dataset.version
    assert table.server.run_jobs() == ["Succeeded"]
    assert table.dataset.version == version
    assert table.list().indexes[0].index_uuid == properties["index_uuid"]


def test_build_index_canceled_on_its_way_leaves_no_index(table: Indexes) -> None:
    transaction = table.create("vec", "IVF_PQ")
    record = table.server.services.store.claim_transaction("worker", 60_000)
    assert record is not None

    def report(seen: Any) -> bool:
        store = table.server.services.store
        if seen.get("stage") != "start":
            store.alter_transaction(transaction, lambda status, properties: (TransactionStatus.CANCELED, properties))
        return store.describe_transaction(transaction).status is TransactionStatus.RUNNING

    with pytest.raises(build_job.JobCanceledError):
        build_job.build_index(table.server.ctx, Job(record.id, record.kind, record.table_id, record.payload, report))
    assert table.names() == {}


def test_build_index_takes_in_rows_that_came_meanwhile(table: Indexes) -> None:
    table.create("id", "BTREE")
    table.dataset.insert(rows(10))
    table.server.run_jobs()
    assert table.stats("id_idx").num_indexed_rows == 310


def test_build_index_of_a_column_dropped_meanwhile_fails(table: Indexes) -> None:
    table.create("id", "BTREE")
    table.dataset.drop_columns(["id"])
    with pytest.raises(TableColumnNotFoundError):
        table.server.run_jobs()


def test_list_indices_pages_by_name_and_by_version(table: Indexes) -> None:
    for name in ("c", "a", "b"):
        table.build("id", "BTREE", name=name)
    first = table.list(limit=2)
    assert [entry.index_name for entry in first.indexes] == ["a", "b"]
    second = table.list(limit=2, page_token=first.page_token)
    assert ([entry.index_name for entry in second.indexes], second.page_token) == (["c"], None)
    assert [entry.index_name for entry in table.list(version=2).indexes] == ["c"]


def test_indices_of_a_branch_are_its_own(table: Indexes) -> None:
    table.dataset.create_branch("dev")
    table.build("id", "BTREE", branch="dev")
    assert table.names() == {}
    assert [entry.index_name for entry in table.list(branch="dev").indexes] == ["id_idx"]
    assert table.stats("id_idx", branch="dev").num_indexed_rows == 300
    table.drop("id_idx", branch="dev")
    assert table.list(branch="dev").indexes == []


def test_stats_count_rows_that_came_later(table: Indexes) -> None:
    table.build("id", "BTREE")
    table.dataset.insert(rows(10))
    assert (table.stats("id_idx").num_indexed_rows, table.stats("id_idx").num_unindexed_rows) == (300, 10)
    assert table.stats("id_idx", version=2).num_unindexed_rows == 0
    with pytest.raises(TableIndexNotFoundError, match="This table has: id_idx"):
        table.stats("nope")


def test_drop_index_removes_it_or_stops_its_building(table: Indexes) -> None:
    with pytest.raises(TableIndexNotFoundError):
        table.drop("id_idx")
    table.build("id", "BTREE")
    table.drop("id_idx")
    assert table.names() == {}
    transaction = table.create("id", "BTREE")
    table.drop("id_idx")
    assert table.names() == {}
    assert table.server.services.store.describe_transaction(transaction).status is TransactionStatus.CANCELED


def test_prewarm_loads_an_index_or_columns_into_memory(table: Indexes) -> None:
    table.build("text", "FTS", with_position=True)
    session = table.server.services.storage.datasets.session
    before = session.size_bytes()
    request = ask(models.PrewarmTableIndexRequest, id="t", index_name="text_idx", with_position=True)
    indexes.prewarm_table_index(table.server.ctx, request)
    assert session.size_bytes() > before
    with pytest.raises(TableIndexNotFoundError):
        indexes.prewarm_table_index(table.server.ctx, ask(models.PrewarmTableIndexRequest, id="t", index_name="nope"))
    pages = table.server.services.storage.datasets.column_cache
    assert pages.size == 0
    indexes.prewarm_table_page_cache(table.server.ctx, ask(models.PrewarmTablePageCacheRequest, id="t", columns=["id"]))
    narrow = pages.size
    indexes.prewarm_table_page_cache(table.server.ctx, ask(models.PrewarmTablePageCacheRequest, id="t"))
    assert pages.size > narrow > 0
    with pytest.raises(TableColumnNotFoundError, match=r"No column 'nope'\. This table has: id"):
        indexes.prewarm_table_page_cache(
            table.server.ctx, ask(models.PrewarmTablePageCacheRequest, id="t", columns=["nope"])
        )


def test_index_of_geometries_answers_a_filter(server: Server) -> None:
    metadata = {"ARROW:extension:name": "geoarrow.point", "ARROW:extension:metadata": "{}"}
    parts = [pa.field(name, pa.float64(), nullable=False) for name in ("x", "y")]
    points = pa.StructArray.from_arrays([pa.array([1.0, 2.0]), pa.array([1.0, 2.0])], fields=parts)
    schema = pa.schema([pa.field("place", points.type, metadata=metadata)])
    table = Indexes(server, pa.table([points], schema=schema))
    table.create("place", "RTREE")
    table.server.run_jobs()
    (entry,) = indexes.list_table_indices(server.ctx, ask(models.ListTableIndicesRequest, id="t")).indexes
    assert (entry.index_type, entry.status, entry.num_indexed_rows) == ("RTREE", "done", 2)
