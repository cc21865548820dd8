"""The same query on lancedb's local table and on the server: the same schema, the same rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lancedb
import pyarrow as pa
import pytest
from lancedb.index import FTS, BTree, IvfFlat
from lancedb.query import (
    BooleanQuery,
    BoostQuery,
    ColumnOrdering,
    FullTextOperator,
    MatchQuery,
    MultiMatchQuery,
    Occur,
    PhraseQuery,
)
from tests.tables.query.query_table import Table, rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NO_LIMIT = 2**63 - 1
V = [0.5, 0.25, 0.125, 1.0, 0.75, 0.5, 0.25, 0.0]
W = [0.125] * 8
PROBES = {"nprobes": 20, "minimum_nprobes": 20, "maximum_nprobes": 20}
"""What lancedb searches with unless told otherwise."""

Search = Any


def single(vector: list[float], **more: Any) -> dict[str, Any]:
    return {"vector": {"single_vector": vector}} | PROBES | more


def named(*names: str) -> dict[str, Any]:
    return {"column_names": list(names)}


def words(query: str, *columns: str) -> dict[str, Any]:
    return {"string_query": {"query": query} | ({"columns": list(columns)} if columns else {})}


def structured(**query: Any) -> dict[str, Any]:
    return {"structured_query": {"query": query}}


def match(terms: str, column: str | None = "text", **more: Any) -> dict[str, Any]:
    return {"match": {"terms": terms, "column": column} | more}


def near(table: Search, vector: Any = V, column: str = "vec") -> Search:
    return table.search(vector, vector_column_name=column)


def text(table: Search, query: Any, **more: Any) -> Search:
    return table.search(query, query_type="fts", **more)


Case = tuple["Callable[[Search], Search]", dict[str, Any]]

SCANS: dict[str, Case] = {
    "all": (lambda t: t.search().limit(None), {"k": NO_LIMIT}),
    "limit": (lambda t: t.search().limit(4), {"k": 4}),
    "limit_offset": (lambda t: t.search().limit(4).offset(120), {"k": 4, "offset": 120}),
    "offset_alone": (lambda t: t.search().limit(None).offset(290), {"k": NO_LIMIT, "offset": 290}),
    "offset_beyond": (lambda t: t.search().limit(4).offset(9999), {"k": 4, "offset": 9999}),
    "filter": (
        lambda t: t.search().where("id > 5 and grp is null").limit(9),
        {"k": 9, "filter": "id > 5 and grp is null"},
    ),
    "filter_btree": (lambda t: t.search().where("id = 77").limit(9), {"k": 9, "filter": "id = 77"}),
    "filter_offset": (
        lambda t: t.search().where("id > 50").limit(9).offset(3),
        {"filter": "id > 50", "k": 9, "offset": 3},
    ),
    "columns": (lambda t: t.search().select(["text", "id"]).limit(3), {"k": 3, "columns": named("text", "id")}),
    "aliases": (
        lambda t: t.search().select({"x": "id * 2", "t": "upper(text)"}).limit(3),
        {"k": 3, "columns": {"column_aliases": {"x": "id * 2", "t": "upper(text)"}}},
    ),
    "row_id": (lambda t: t.search().with_row_id(True).limit(3), {"k": 3, "with_row_id": True}),
    "row_id_columns": (
        lambda t: t.search().select(["id"]).with_row_id(True).limit(3),
        {"k": 3, "columns": named("id"), "with_row_id": True},
    ),
    "row_id_named": (
        lambda t: t.search().select(["_rowid", "id"]).limit(3),
        {"k": 3, "columns": named("_rowid", "id")},
    ),
    "row_id_filter": (
        lambda t: t.search().where("_rowid in (0, 7, 8)").select(["id"]).limit(None),
        {"k": NO_LIMIT, "filter": "_rowid in (0, 7, 8)", "columns": named("id")},
    ),
    "row_offset": (
        lambda t: t.search().where("_rowoffset in (0, 7, 255)").select(["id", "_rowoffset"]).limit(None),
        {"k": NO_LIMIT, "filter": "_rowoffset IN (0, 7, 255)", "columns": named("id", "_rowoffset")},
    ),
    "order": (
        lambda t: t.search().order_by([ColumnOrdering(column_name="grp"), ColumnOrdering(column_name="id")]).limit(60),
        {"k": 60, "order_by": [{"column_name": "grp"}, {"column_name": "id"}]},
    ),
    "order_down_nulls_first": (
        lambda t: (
            t.search()
            .order_by(
                [
                    ColumnOrdering(column_name="grp", ascending=False, nulls_first=True),
                    ColumnOrdering(column_name="id", ascending=False),
                ]
            )
            .limit(60)
        ),
        {
            "k": 60,
            "order_by": [
                {"column_name": "grp", "ascending": False, "nulls_first": True},
                {"column_name": "id", "ascending": False},
            ],
        },
    ),
    "order_offset_filter": (
        lambda t: (
            t.search().where("id < 50").order_by([ColumnOrdering(column_name="id", ascending=False)]).limit(5).offset(2)
        ),
        {"k": 5, "offset": 2, "filter": "id < 50", "order_by": [{"column_name": "id", "ascending": False}]},
    ),
}

VECTORS: dict[str, Case] = {
    "plain": (near, single(V, vector_column="vec")),
    "found": (lambda t: t.search(V), single(V)),
    "limit_offset": (lambda t: near(t).limit(4).offset(3), single(V, k=4, offset=3)),
    "no_limit": (lambda t: near(t).bypass_vector_index().limit(400), single(V, k=NO_LIMIT, bypass_vector_index=True)),
    "columns": (lambda t: near(t).select(["id"]), single(V, columns=named("id"))),
    "columns_row_id": (
        lambda t: near(t).select(["id"]).with_row_id(True),
        single(V, columns=named("id"), with_row_id=True),
    ),
    "distance_first": (lambda t: near(t).select(["_distance", "id"]), single(V, columns=named("_distance", "id"))),
    "row_id": (lambda t: near(t).with_row_id(True), single(V, with_row_id=True)),
    "aliases": (lambda t: near(t).select({"x": "id * 2"}), single(V, columns={"column_aliases": {"x": "id * 2"}})),
    "alias_of_distance": (
        lambda t: near(t).select({"near": "1 - _distance"}),
        single(V, columns={"column_aliases": {"near": "1 - _distance"}}),
    ),
    "filter": (lambda t: near(t).where("id > 100"), single(V, filter="id > 100", prefilter=True)),
    "filter_by_default_before": (lambda t: near(t).where("id > 100"), single(V, filter="id > 100")),
    "filter_after": (
        lambda t: near(t).where("id > 100", prefilter=False),
        single(V, filter="id > 100", prefilter=False),
    ),
    "filter_after_offset": (
        lambda t: near(t).where("id > 100", prefilter=False).limit(6).offset(2),
        single(V, filter="id > 100", prefilter=False, k=6, offset=2),
    ),
    "filter_row_id": (lambda t: near(t).where("_rowid in (5, 7, 8)"), single(V, filter="_rowid in (5, 7, 8)")),
    "cosine": (lambda t: near(t).distance_type("cosine"), single(V, distance_type="Cosine")),
    "dot": (lambda t: near(t).distance_type("dot"), single(V, distance_type="DOT")),
    "l2": (lambda t: near(t).distance_type("l2"), single(V, distance_type="L2")),
    "bounds": (
        lambda t: near(t).bypass_vector_index().distance_range(0.5, 0.9),
        single(V, lower_bound=0.5, upper_bound=0.9, bypass_vector_index=True),
    ),
    "lower_bound": (lambda t: near(t).distance_range(lower_bound=0.75), single(V, lower_bound=0.75)),
    "upper_bound": (lambda t: near(t).distance_range(upper_bound=0.5), single(V, upper_bound=0.5)),
    "bypass": (lambda t: near(t).bypass_vector_index(), single(V, bypass_vector_index=True)),
    "refine": (lambda t: near(t).refine_factor(5), single(V, refine_factor=5)),
    "nprobes": (lambda t: near(t).nprobes(1), {"vector": {"single_vector": V}, "nprobes": 1}),
    "probe_bounds": (
        lambda t: near(t).minimum_nprobes(1).maximum_nprobes(2),
        single(V, nprobes=7, minimum_nprobes=1, maximum_nprobes=2),
    ),
    "probe_without_maximum": (
        lambda t: near(t).minimum_nprobes(1).maximum_nprobes(0),
        single(V, minimum_nprobes=1, maximum_nprobes=0),
    ),
    "ef": (lambda t: near(t).ef(50), single(V, ef=50)),
    "fast_search": (lambda t: near(t).fast_search().limit(300), single(V, fast_search=True, k=300)),
    "order": (
        lambda t: near(t).order_by([ColumnOrdering(column_name="id", ascending=False)]),
        single(V, order_by=[{"column_name": "id", "ascending": False}]),
    ),
    "half": (lambda t: near(t, V[:6], "half"), single(V[:6], vector_column="half")),
    "double": (lambda t: near(t, V[:5], "double"), single(V[:5], vector_column="double")),
    "bits": (lambda t: near(t, [1.0, 2.0, 200.0, 4.0], "bits"), single([1, 2, 200, 4], vector_column="bits")),
    "bits_hamming": (
        lambda t: near(t, [1.0, 2.0, 200.0, 4.0], "bits").distance_type("hamming"),
        single([1, 2, 200, 4], vector_column="bits", distance_type="hamming"),
    ),
    "multi": (lambda t: near(t, [V, W]).limit(4), {"vector": {"multi_vector": [V, W]}, "k": 4} | PROBES),
    "multi_offset_columns": (
        lambda t: near(t, [V, W]).limit(4).offset(2).select(["id"]),
        {"vector": {"multi_vector": [V, W]}, "k": 4, "offset": 2, "columns": named("id")} | PROBES,
    ),
    "multi_filter_row_id": (
        lambda t: near(t, [V, W, V]).where("id > 30").limit(3).with_row_id(True),
        {"vector": {"multi_vector": [V, W, V]}, "k": 3, "filter": "id > 30", "with_row_id": True} | PROBES,
    ),
    "several_one": (
        lambda t: near(t, V[:3], "several").distance_type("cosine"),
        single(V[:3], vector_column="several", distance_type="cosine"),
    ),
    "several_many": (
        lambda t: near(t, [V[:3], W[:3]], "several").distance_type("cosine").limit(5).offset(1),
        {"vector": {"multi_vector": [V[:3], W[:3]]}, "vector_column": "several", "distance_type": "cosine", "k": 5}
        | {"offset": 1},
    ),
}

TEXTS: dict[str, Case] = {
    "every_column": (lambda t: text(t, "fox"), {"full_text_query": words("fox")}),
    "no_limit": (lambda t: text(t, "fox").limit(999), {"full_text_query": words("fox"), "k": NO_LIMIT}),
    "one_column": (lambda t: text(t, "fox dog", fts_columns="text"), {"full_text_query": words("fox dog", "text")}),
    "two_columns": (
        lambda t: text(t, "fox", fts_columns=["text", "title"]),
        {"full_text_query": words("fox", "text", "title")},
    ),
    "columns_row_id": (
        lambda t: text(t, "fox").select(["id"]).with_row_id(True),
        {"full_text_query": words("fox"), "columns": named("id"), "with_row_id": True},
    ),
    "filter": (lambda t: text(t, "fox").where("id > 90"), {"full_text_query": words("fox"), "filter": "id > 90"}),
    "filter_after": (
        lambda t: text(t, "fox").where("id > 90", prefilter=False),
        {"full_text_query": words("fox"), "filter": "id > 90", "prefilter": False},
    ),
    "fast_search": (
        lambda t: text(t, "fox").fast_search().limit(300),
        {"full_text_query": words("fox"), "fast_search": True, "k": 300},
    ),
    "match": (
        lambda t: text(t, MatchQuery("quikc foxx", "text", fuzziness=1, boost=2.0, max_expansions=9, prefix_length=1)),
        {
            "full_text_query": structured(
                **match("quikc foxx", fuzziness=1, boost=2.0, max_expansions=9, prefix_length=1)
            )
        },
    ),
    "match_and": (
        lambda t: text(t, MatchQuery("fox dog", "text", operator=FullTextOperator.AND)),
        {"full_text_query": structured(**match("fox dog", operator="And"))},
    ),
    "phrase": (
        lambda t: text(t, PhraseQuery("quick brown", "text")),
        {"full_text_query": structured(phrase={"terms": "quick brown", "column": "text"})},
    ),
    "phrase_slop": (
        lambda t: text(t, PhraseQuery("quick fox", "text", slop=3)),
        {"full_text_query": structured(phrase={"terms": "quick fox", "column": "text", "slop": 3})},
    ),
    "boost": (
        lambda t: text(t, BoostQuery(MatchQuery("fox", "text"), MatchQuery("dog", "text"), negative_boost=0.25)),
        {
            "full_text_query": structured(
                boost={"positive": match("fox"), "negative": match("dog"), "negative_boost": 0.25}
            )
        },
    ),
    "multi_match": (
        lambda t: text(
            t, MultiMatchQuery("fox dog", ["text", "title"], boosts=[1.0, 3.0], operator=FullTextOperator.AND)
        ),
        {
            "full_text_query": structured(
                multi_match={
                    "match_queries": [
                        match("fox dog", "text", operator="and")["match"],
                        match("fox dog", "title", operator="AND", boost=3.0)["match"],
                    ]
                }
            )
        },
    ),
    "boolean": (
        lambda t: text(
            t,
            BooleanQuery(
                [
                    (Occur.MUST, MatchQuery("fox", "text")),
                    (Occur.SHOULD, MatchQuery("red", "title")),
                    (Occur.MUST_NOT, MatchQuery("dog", "text")),
                ]
            ),
        ),
        {
            "full_text_query": structured(
                boolean={"must": [match("fox")], "should": [match("red", "title")], "must_not": [match("dog")]}
            )
        },
    ),
    "nested": (
        lambda t: text(
            t,
            BooleanQuery(
                [
                    (Occur.MUST, BoostQuery(MatchQuery("fox", "text"), MatchQuery("dog", "text"))),
                    (Occur.SHOULD, MatchQuery("red", "title") | PhraseQuery("lazy dog", "text")),
                ]
            ),
        ),
        {
            "full_text_query": structured(
                boolean={
                    "must": [{"boost": {"positive": match("fox"), "negative": match("dog")}}],
                    "should": [
                        {
                            "boolean": {
                                "must": [],
                                "must_not": [],
                                "should": [match("red", "title"), {"phrase": {"terms": "lazy dog", "column": "text"}}],
                            }
                        }
                    ],
                    "must_not": [],
                }
            )
        },
    ),
}

CASES = {
    f"{kind}_{name}": case
    for kind, cases in (("scan", SCANS), ("vector", VECTORS), ("text", TEXTS))
    for name, case in cases.items()
}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """lancedb's table: two fragments, one outside the indexes; some rows deleted.

    Its vectors are not quantized: lancedb would return estimates of distances where the server refines them.
    """
    folder: Path = tmp_path_factory.mktemp("like_lancedb")
    table = lancedb.connect(folder).create_table("t", rows(300))
    table.create_index("vec", config=IvfFlat(num_partitions=4))
    table.create_index("text", config=FTS(with_position=True))
    table.create_index("title", config=FTS(with_position=True))
    table.create_index("id", config=BTree())
    table.add(rows(40, seed=5, start=300))
    table.delete("id in (3, 30, 310)")
    return table


@pytest.fixture
def table_of_server(local: Any, monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(local.uri, monkeypatch)


def in_order(result: pa.Table) -> pa.Table:
    """lancedb returns several vectors in any order, and rows of equal score, too."""
    keys = [name for name in ("query_index", "_distance", "_score") if name in result.schema.names]
    return result.sort_by(
        [(name, "ascending") for name in [*keys, *(n for n in ("id", "x") if n in result.schema.names)]]
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_query_answers_as_lancedb_does(case: Case, local: Any, table_of_server: Table) -> None:
    query_lancedb, request = case
    expected, result = query_lancedb(local).to_arrow(), table_of_server.query(**request)
    if request.get("fast_search"):
        expected = expected.drop_columns("_rowid")  # not requested
    assert result.schema.equals(expected.schema, check_metadata=True)
    if "_distance" in result.schema.names or "_score" in result.schema.names:
        result, expected = in_order(result), in_order(expected)
    assert result.to_pylist() == expected.to_pylist()
