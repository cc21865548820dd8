"""Searches for near-duplicates of a text, by a MINHASHLSH index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lance
import pyarrow as pa
import pytest
from lance.query import MinHashQuery
from lance_namespace.errors import InvalidInputError
from tests.tables.query.query_table import Table

from tiltyard.tables.query.plan import MAX_MINHASH_CHARACTERS

if TYPE_CHECKING:
    from pathlib import Path

PLOT = "the old ship leaves its harbour for the last time before the long winter storms come over the grey sea"
TEXTS = [PLOT + "".join(f" word{i}" for i in range(row)) for row in range(8)] + ["something else altogether", None]
WORDS = {"string_query": {"query": "a", "columns": ["text"]}}
DATA = pa.table({"id": range(10), "grp": [row % 2 for row in range(10)], "text": TEXTS, "other": TEXTS})


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    dataset = lance.write_dataset(DATA, tmp_path / "t.lance", max_rows_per_file=4)
    dataset.create_scalar_index("text", "MINHASHLSH")
    return Table(str(tmp_path / "t.lance"), monkeypatch)


def near(text: str = PLOT, column: str = "text") -> dict[str, Any]:
    return {"column": column, "text": text}


def test_minhash_query_returns_what_lance_does_nearest_first(table: Table) -> None:
    expected = lance.dataset(table.uri).to_table(nearest=MinHashQuery(PLOT, "text"), limit=10)
    found = table.query(minhash_query=near())
    assert found.equals(expected) and found["id"].to_pylist() == list(range(8))
    assert found["_distance"][0].as_py() == 0 and found.schema.names == ["id", "grp", "text", "other", "_distance"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"k": 2}, [0, 1]),
        ({"k": 0}, []),
        ({"k": 2**63 - 1}, [0, 1, 2, 3, 4, 5, 6, 7]),
        ({"k": 2, "offset": 1}, [1, 2]),
        ({"k": 2, "filter": "grp = 1"}, [1, 3]),
        ({"k": 2, "filter": "grp = 1", "prefilter": False}, [1]),
        ({"k": 3, "order_by": [{"column_name": "id", "ascending": False}]}, [2, 1, 0]),
        ({"filter": "_rowid IN (1, 3)", "k": 9}, [1, 3]),
        ({"vector": {}, "k": 1}, [0]),
        ({"fast_search": True, "k": 1}, [0]),
    ],
)
def test_minhash_query_with_other_fields(table: Table, fields: dict[str, Any], expected: list[int]) -> None:
    assert table.ids(minhash_query=near(), **fields) == expected


def test_minhash_query_finds_rows_that_the_index_lacks(table: Table) -> None:
    lance.write_dataset(DATA.slice(0, 1).set_column(0, "id", pa.array([99])), table.uri, mode="append")
    assert set(table.ids(minhash_query=near(), k=2)) == {0, 99}
    assert table.ids(minhash_query=near(), k=1, fast_search=True) == [0]


def test_minhash_query_with_columns_and_row_ids(table: Table) -> None:
    found = table.query(minhash_query=near(), k=1, columns={"column_aliases": {"twice": "id * 2"}}, with_row_id=True)
    assert found.schema.names == ["twice", "_distance", "_rowid"]
    assert "Route: scan" in table.explain(query={"vector": None, "k": 3, "minhash_query": near()})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"minhash_query": near(column="other")}, "no MINHASHLSH index; those that have: text"),
        ({"minhash_query": near(column="nope")}, "no MINHASHLSH index"),
        ({"minhash_query": near(), "vector": {"single_vector": [1.0]}}, "ask for one of them"),
        (
            {"minhash_query": near(), "full_text_query": {"string_query": {"query": "a", "columns": ["text"]}}},
            "ask for one",
        ),
        ({"minhash_query": near("x" * (MAX_MINHASH_CHARACTERS + 1))}, "1,000,000 characters"),
        ({"minhash_query": near(), "upper_bound": 0.5}, "they need a query vector"),
    ],
)
def test_minhash_query_that_cannot_be_is_refused(table: Table, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        table.query(**fields)
