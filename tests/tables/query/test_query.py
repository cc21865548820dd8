"""Queries by vector and filter, their plans, counts, and refused requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance_namespace.errors import (
    InvalidInputError,
    TableBranchNotFoundError,
    TableColumnNotFoundError,
    TableVersionNotFoundError,
)
from tests.tables.query.query_table import Table, rows, vectors

if TYPE_CHECKING:
    from pathlib import Path

NO_LIMIT = 2**63 - 1
V = [0.5, 0.25, 0.125, 1.0, 0.75, 0.5, 0.25, 0.0]
ONE = {"single_vector": V}
TWO = {"multi_vector": [V, [0.125] * 8]}
ID = {"column_names": ["id"]}


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """600 rows in three fragments, an IVF_PQ index on `vec`, an IVF_HNSW_SQ index on `half`, three rows deleted."""
    uri = str(tmp_path_factory.mktemp("query") / "t.lance")
    dataset = lance.write_dataset(rows(600), uri, max_rows_per_file=200)
    dataset.create_index("vec", "IVF_PQ", num_partitions=4, num_sub_vectors=4)
    dataset.create_index("half", "IVF_HNSW_SQ", num_partitions=1)
    dataset.delete("id in (3, 30, 300)")
    return uri


@pytest.fixture
def table(uri: str, monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(uri, monkeypatch)


def written(tmp_path: Path, data: pa.Table, monkeypatch: pytest.MonkeyPatch) -> Table:
    lance.write_dataset(data, str(tmp_path / "t.lance"))
    return Table(str(tmp_path / "t.lance"), monkeypatch)


# Which rows


@pytest.mark.parametrize("fields", [{}, {"vector": ONE}, {"vector": TWO}, {"vector": {"single_vector": []}}])
def test_query_of_no_rows_has_a_schema_and_no_rows(fields: dict[str, Any], table: Table) -> None:
    some, none = table.query(k=2, **fields), table.query(k=0, **fields)
    assert none.num_rows == 0
    assert none.schema == some.schema


@pytest.mark.parametrize("vector", [{}, {"single_vector": []}, {"multi_vector": []}, {"single_vector": None}])
def test_query_with_an_empty_vector_is_a_scan(vector: dict[str, Any], table: Table) -> None:
    assert table.ids(vector=vector, k=3) == [0, 1, 2]


@pytest.mark.parametrize("fields", [{"vector": ONE}, {"vector": ONE, "bypass_vector_index": True}])
def test_query_with_an_offset_gives_k_rows_after_it(fields: dict[str, Any], table: Table) -> None:
    exact = {"nprobes": 4}
    assert table.ids(k=5, offset=7, **fields, **exact) == table.ids(k=12, **fields, **exact)[7:]


def test_query_with_several_vectors_and_an_offset_gives_k_rows_for_each(table: Table) -> None:
    result = table.query(vector=TWO, k=5, offset=2, columns=ID)
    assert result.schema.field(0) == pa.field("query_index", pa.int32(), nullable=False)
    assert result["query_index"].to_pylist() == [0] * 5 + [1] * 5
    apart = [table.ids(vector={"single_vector": vector}, k=5, offset=2) for vector in TWO["multi_vector"]]
    assert result["id"].to_pylist() == apart[0] + apart[1]


@pytest.mark.parametrize(
    "fields",
    [
        {"k": NO_LIMIT},
        {"k": 2**40},
        {"k": NO_LIMIT, "offset": 100},
        {"k": 100, "refine_factor": 2**31 - 1},
        {"k": 3, "nprobes": NO_LIMIT},
        {"k": 3, "vector": {"single_vector": V[:6]}, "vector_column": "half", "ef": 2**40},
    ],
)
def test_query_beyond_the_rows_there_are_asks_lance_for_no_more(fields: dict[str, Any], table: Table) -> None:
    """Each of these would make Lance allocate more memory than there is, and abort the process."""
    result = table.ids(**{"vector": ONE} | fields)
    assert len(result) == min(fields["k"], 597 - fields.get("offset", 0))


def test_query_of_an_empty_table_has_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = written(tmp_path, rows(3).slice(0, 0), monkeypatch)
    assert table.query().num_rows == table.query(vector=ONE).num_rows == table.count() == 0


def test_query_without_prefilter_given_filters_before_the_search(table: Table) -> None:
    assert len(table.ids(vector=ONE, filter="id % 50 = 1", k=10)) == 10
    assert len(table.ids(vector=ONE, filter="id % 50 = 1", k=10, prefilter=False)) < 10


def test_query_ordered_by_a_column_not_shown_is_in_its_order(table: Table) -> None:
    result = table.query(columns={"column_names": ["grp"]}, order_by=[{"column_name": "id", "ascending": False}], k=3)
    assert result.schema.names == ["grp"]
    assert result["grp"].to_pylist() == [599 % 5, 598 % 5, 597 % 5]


def test_query_ordered_by_a_nested_column_is_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = written(tmp_path, pa.table({"id": [1, 2, 3], "s": [{"a": 5}, {"a": 9}, {"a": 7}]}), monkeypatch)
    assert table.ids(order_by=[{"column_name": "s.a", "ascending": False}]) == [2, 3, 1]


def test_query_by_row_offset_counts_live_rows(table: Table) -> None:
    fields = {"filter": "_rowoffset IN (0, 3, 4)", "k": NO_LIMIT}
    assert table.query(columns={"column_aliases": {"at": "_rowoffset", "i": "id"}}, **fields).to_pydict() == {
        "at": [0, 3, 4],
        "i": [0, 4, 5],
    }
    assert table.count(predicate="_rowoffset IN (0, 3, 4, 9999)") == 3


def test_query_of_a_version_or_branch_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = written(tmp_path, rows(10), monkeypatch)
    lance.dataset(table.uri).create_branch("dev").insert(rows(5, start=10))
    lance.dataset(table.uri).delete("id < 4")
    assert (table.count(), table.count(version=1), table.count(branch="dev")) == (6, 10, 15)
    assert (len(table.ids(k=99)), len(table.ids(k=99, version=1)), len(table.ids(k=99, branch="dev"))) == (6, 10, 15)
    with pytest.raises(TableVersionNotFoundError):
        table.query(version=99)
    with pytest.raises(TableBranchNotFoundError):
        table.count(branch="nope")


def test_query_sees_a_commit_made_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = written(tmp_path, rows(10), monkeypatch)
    assert len(table.ids(k=99, vector=ONE)) == 10
    lance.write_dataset(rows(5), table.uri, mode="append")
    assert len(table.ids(k=99, vector=ONE)) == 15


# Which column, and the vector's values


def test_query_by_int8_vector_is_as_near_as_numpy_says(table: Table) -> None:
    data = lance.dataset(table.uri).to_table(["id", "small"])
    values = np.array(data["small"].to_pylist(), dtype=np.int64)
    distances = ((values - np.array([100, -100])) ** 2).sum(axis=1)
    result = table.query(vector={"single_vector": [100, -100]}, columns=ID, k=5, filter="id >= 0", offset=1)
    assert result["_distance"].to_pylist() == sorted(distances.tolist())[1:6]


def test_query_without_a_column_takes_the_only_one_of_that_dimension(table: Table) -> None:
    assert table.ids(vector={"single_vector": V[:5]}) == table.ids(
        vector={"single_vector": V[:5]}, vector_column="double"
    )


def test_query_by_a_column_with_a_difficult_name_finds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = vectors(np.eye(2, dtype=np.float32), pa.float32())
    four = vectors(np.eye(2, 4, dtype=np.float32), pa.float32())
    six = vectors(np.eye(2, 6, dtype=np.float32), pa.float32())
    inner = pa.StructArray.from_arrays([six], ["emb"])
    table = written(tmp_path, pa.table({"id": [1, 2], "my vec": pair, "Größe-1": four, "s": inner}), monkeypatch)
    for column, vector in {"my vec": [0, 1], "Größe-1": [0, 1, 0, 0], "s.emb": [0, 1, 0, 0, 0, 0]}.items():
        assert table.ids(vector={"single_vector": vector}, vector_column=column) == [2, 1]
        assert table.ids(vector={"single_vector": vector}) == [2, 1]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"vector": {"single_vector": [1.0] * 9}}, r"no column holds vectors of 9 dimensions.*vec \(8\), half \(6\)"),
        (
            {"vector": {"single_vector": [1.0] * 9}, "vector_column": "vec"},
            "'vec' have 8 dimensions, the query vector 9",
        ),
        (
            {"vector": {"multi_vector": [V, V[:3]]}, "vector_column": "vec"},
            "'vec' have 8 dimensions, the query vector 3",
        ),
        ({"vector": {"multi_vector": [V, []]}}, "the query vector 0"),
        ({"vector": ONE, "vector_column": "text"}, "'text' holds no vectors.*vec, half, double, bits, small, several"),
        ({"vector": {"single_vector": [1e39] * 8}}, "finite"),
        ({"vector": {"single_vector": [1, 2, 3, 256]}, "vector_column": "bits"}, "integers from 0 to 255"),
        ({"vector": {"single_vector": [0.5, 1]}, "vector_column": "small"}, "integers from -128 to 127"),
        ({"vector": {"single_vector": V, "multi_vector": [V]}}, "either a single_vector or a multi_vector"),
        ({"vector": ONE, "distance_type": "euclid"}, "one of l2, cosine, dot, hamming; not 'euclid'"),
        ({"vector": ONE, "distance_type": "hamming"}, "hamming does not support"),
        ({"vector": ONE, "approx_mode": "quick"}, "one of fast, normal, accurate"),
        ({"vector": ONE, "nprobes": 0}, "nprobes is at least 1"),
        ({"vector": ONE, "minimum_nprobes": 0}, "minimum_nprobes is at least 1"),
        ({"vector": ONE, "minimum_nprobes": 9, "maximum_nprobes": 3}, "above maximum_nprobes"),
        ({"vector": ONE, "ef": 0}, "ef is at least 1"),
        ({"vector": ONE, "refine_factor": 0}, "refine_factor is at least 1"),
        ({"vector": {"single_vector": V[:6]}, "ef": 3}, "ef must be greater than or equal to k"),
        ({"lower_bound": 0.5}, "need a query vector"),
        ({"columns": {"column_names": ["id"], "column_aliases": {"x": "id"}}}, "either by column_names or"),
        ({"columns": {"column_names": ["id", "id"]}}, "duplicate column name"),
        ({"columns": {"column_aliases": {"x": ""}}}, "expected:? an expression"),
        ({"columns": {"column_aliases": {"x": "id" + "+1" * 500}}}, "expression of 'x' chains too many"),
        ({"filter": "id" + "+1" * 500 + " > 0"}, "filter chains too many operators"),
        ({"filter": "length(repeat('x', 1000000000)) > id"}, "times as large"),
        ({"columns": {"column_aliases": {"x": "array_repeat(1, 1000000000)"}}}, "times as large"),
        ({"columns": {"column_aliases": {"x": "'" + "x" * 10_001 + "'"}}}, "for every row"),
        ({"filter": "id > 1; drop table t"}, "nothing may follow the semicolon"),
        ({"filter": "id = = 1"}, "expected:? an expression"),
        ({"filter": "id + 1"}, "does not return a boolean"),
        ({"filter": "count(id) > 1"}, "about one row"),
        ({"filter": "1 / (id - id) > 1"}, "divide by zero"),
        ({"filter": "cast(text as int) > 1"}, "cannot cast"),
        ({"columns": {"column_aliases": {"x": "1 / (id - id)"}}}, "divide by zero"),
        ({"filter": "_rowoffset < 5"}, r"_rowoffset IN \(0, 1"),
    ],
)
def test_query_that_cannot_be_meant_is_an_invalid_input(fields: dict[str, Any], message: str, table: Table) -> None:
    with pytest.raises(InvalidInputError, match=f"(?is){message}"):
        table.query(**fields)


def test_query_that_fits_several_columns_is_an_invalid_input_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = vectors(np.eye(2, dtype=np.float32), pa.float32())
    table = written(tmp_path, pa.table({"a": pair, "b": pair}), monkeypatch)
    with pytest.raises(InvalidInputError, match="vector_column: a, b"):
        table.query(vector={"single_vector": [0, 1]})


def test_query_by_vector_without_a_vector_column_is_an_invalid_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = written(tmp_path, pa.table({"a": [1]}), monkeypatch)
    with pytest.raises(InvalidInputError, match="no vector column"):
        table.query(vector={"single_vector": [0, 1]})


@pytest.mark.parametrize(
    "fields",
    [
        {"columns": {"column_names": ["id", "nope"]}},
        {"columns": {"column_aliases": {"x": "nope + 1"}}},
        {"filter": "nope = 1"},
        {"order_by": [{"column_name": "nope"}]},
        {"vector": ONE, "vector_column": "nope"},
        {"vector": ONE, "columns": {"column_names": ["nope"]}},
    ],
)
def test_query_of_an_unknown_column_names_those_there_are(fields: dict[str, Any], table: Table) -> None:
    with pytest.raises(TableColumnNotFoundError, match=r"No column 'nope'\. This table has: id, grp, text"):
        table.query(**fields)


def test_query_with_a_column_called_query_index_refuses_several_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = vectors(np.eye(2, dtype=np.float32), pa.float32())
    table = written(tmp_path, pa.table({"query_index": [1, 2], "v": pair}), monkeypatch)
    assert table.query(vector={"multi_vector": [[0, 1]]}).num_rows == 2
    with pytest.raises(InvalidInputError, match="one vector at a time"):
        table.query(vector={"multi_vector": [[0, 1], [1, 0]]})


# Counts and plans


def test_count_of_all_or_by_predicate_is_a_number(table: Table) -> None:
    assert table.count() == 597
    assert table.count(predicate="id < 31") == 29


@pytest.mark.parametrize(
    ("predicate", "error"),
    [
        ("nope = 1", TableColumnNotFoundError),
        ("id = = 1", InvalidInputError),
        ("_rowoffset < 5", InvalidInputError),
        ("id > 1; id < 5", InvalidInputError),
        ("1 / (id - id) > 1", InvalidInputError),
        ("id" + " is null" * 2000, InvalidInputError),
    ],
)
def test_count_by_a_bad_predicate_is_refused(predicate: str, error: type[Exception], table: Table) -> None:
    with pytest.raises(error):
        table.count(predicate=predicate)


def test_explain_says_how_a_query_would_run(table: Table) -> None:
    assert "ANN" in table.explain(query={"vector": ONE, "k": 3})
    assert "KNN" in table.explain(query={"vector": ONE, "k": 3, "bypass_vector_index": True}, verbose=True)
    assert "--- Plan #2 ---" in table.explain(query={"vector": TWO, "k": 3})


def test_explain_of_another_table_or_branch_inside_is_an_invalid_input(table: Table) -> None:
    with pytest.raises(InvalidInputError, match="another table"):
        table.explain(id=["a"], query={"id": ["b"], "vector": ONE, "k": 3})
    with pytest.raises(InvalidInputError, match="another branch"):
        table.explain(branch="a", query={"branch": "b", "vector": ONE, "k": 3})


def test_explain_of_a_bad_query_is_refused_as_the_query_is(table: Table) -> None:
    with pytest.raises(TableColumnNotFoundError):
        table.explain(query={"vector": None, "k": 3, "filter": "nope = 1"})


@pytest.mark.parametrize("wrapped", [False, True])
def test_analyze_says_how_a_query_did_run(wrapped: bool, table: Table) -> None:
    query = {"vector": ONE, "k": 3, "columns": ID}
    result = table.analyze(**({"query": query} if wrapped else query))
    assert "AnalyzeExec" in result
    assert "output_rows=3" in result


def test_analyze_without_a_query_is_an_invalid_input(table: Table) -> None:
    with pytest.raises(InvalidInputError, match="`k`"):
        table.analyze()


# Answers


def test_query_of_a_large_table_streams_batches_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = vectors(np.zeros((30_000, 512), dtype=np.float32), pa.float32())
    table = written(tmp_path, pa.table({"id": pa.array(range(30_000)), "v": wide}), monkeypatch)
    batches = table.batches(k=NO_LIMIT)
    sizes = [batch.num_rows for batch in batches]
    assert sum(sizes) == 30_000
    assert max(sizes) <= 8192


def test_query_left_half_read_can_be_closed(table: Table) -> None:
    batches = table.batches(k=NO_LIMIT)
    assert next(batches).num_rows > 0
    batches.close()
