"""Full-text queries, alone and together with vectors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lance
import pytest
from lance_namespace.errors import InvalidInputError, TableColumnNotFoundError
from tests.tables.query.query_table import Table, rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NO_LIMIT = 2**63 - 1
V = [0.5, 0.25, 0.125, 1.0, 0.75, 0.5, 0.25, 0.0]
DATA = rows(300)
TEXT, TITLE = (dict(zip(DATA["id"].to_pylist(), DATA[name].to_pylist(), strict=True)) for name in ("text", "title"))


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """`text` is indexed with positions, `title` without, `other` is not indexed."""
    uri = str(tmp_path_factory.mktemp("text") / "t.lance")
    dataset = lance.write_dataset(DATA.append_column("other", DATA["title"]), uri, max_rows_per_file=100)
    dataset.create_scalar_index("text", "INVERTED", with_position=True, remove_stop_words=False, stem=False)
    dataset.create_scalar_index("title", "INVERTED", remove_stop_words=False, stem=False)
    return uri


@pytest.fixture
def table(uri: str, monkeypatch: pytest.MonkeyPatch) -> Table:
    return Table(uri, monkeypatch)


def words(query: str, *columns: str) -> dict[str, Any]:
    return {"string_query": {"query": query} | ({"columns": list(columns)} if columns else {})}


def structured(**query: Any) -> dict[str, Any]:
    return {"structured_query": {"query": query}}


def ids(holds: Callable[[int], bool]) -> set[int]:
    return {row for row in TEXT if holds(row)}


def has(column: dict[int, str], *terms: str) -> Callable[[int], bool]:
    return lambda row: any(term in column[row].split() for term in terms)


FOX_ANYWHERE = ids(lambda row: has(TEXT, "fox")(row) or has(TITLE, "fox")(row))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (words("fox"), FOX_ANYWHERE),
        (words("fox", "text"), ids(has(TEXT, "fox"))),
        (structured(combined_fields={"terms": "fox", "columns": ["text", "title"]}), FOX_ANYWHERE),
        (structured(combined_fields={"terms": "fox", "columns": ["text"], "boosts": [2.0]}), ids(has(TEXT, "fox"))),
        (words("fox", "other"), ids(has(TITLE, "fox"))),
        (words("fox", "text", "other"), FOX_ANYWHERE),
        (structured(match={"terms": "fox"}), FOX_ANYWHERE),
        (structured(match={"terms": "foxx", "fuzziness": 1}), FOX_ANYWHERE),
        (structured(match={"terms": "foxx", "fuzziness": "Auto"}), FOX_ANYWHERE),
        (structured(match={"terms": "jumpsxx", "column": "text", "fuzziness": "auto"}), ids(has(TEXT, "jumps"))),
        (structured(match={"terms": "jumpsxx", "column": "text", "fuzziness": 1}), set()),
        (
            structured(match={"terms": "foxx, sleep!", "column": "text", "fuzziness": "auto", "operator": "AND"}),
            ids(lambda row: has(TEXT, "fox")(row) and has(TEXT, "sleep")(row)),
        ),
        (structured(match={"terms": "", "column": "text", "fuzziness": "auto"}), set()),
        (structured(phrase={"terms": "lazy dog", "column": "text"}), ids(lambda row: "lazy dog" in TEXT[row])),
        (
            structured(
                multi_match={
                    "match_queries": [
                        {"terms": "fox", "column": "text"},
                        {"terms": "foxx", "column": "title", "fuzziness": 1},
                    ]
                }
            ),
            FOX_ANYWHERE,
        ),
        (
            structured(
                boolean={
                    "must": [{"match": {"terms": "fox", "column": "text"}}],
                    "should": [],
                    "must_not": [{"phrase": {"terms": "lazy dog", "column": "text"}}],
                }
            ),
            ids(lambda row: has(TEXT, "fox")(row) and "lazy dog" not in TEXT[row]),
        ),
    ],
)
def test_query_by_text_finds_the_rows_that_hold_it(query: dict[str, Any], expected: set[int], table: Table) -> None:
    assert set(table.ids(full_text_query=query, k=NO_LIMIT)) == expected


def test_query_by_text_and_offset_gives_k_rows_after_it(table: Table) -> None:
    query = {"full_text_query": words("fox dog", "text")}
    scores = table.query(**query, k=NO_LIMIT)["_score"].to_pylist()
    assert table.query(**query, k=7, offset=5)["_score"].to_pylist() == scores[5:12]


def test_query_by_text_of_no_rows_has_a_schema_and_no_rows(table: Table) -> None:
    some, none = table.query(full_text_query=words("fox"), k=1), table.query(full_text_query=words("fox"), k=0)
    assert (none.num_rows, none.schema) == (0, some.schema)


def test_query_by_phrase_over_every_column_names_the_one_without_positions(table: Table) -> None:
    with pytest.raises(InvalidInputError, match="index with position"):
        table.query(full_text_query=structured(phrase={"terms": "lazy dog"}))


def test_query_by_phrase_over_several_columns_finds_it_in_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = lance.write_dataset(DATA, str(tmp_path / "t.lance"))
    for column in ("text", "title"):
        dataset.create_scalar_index(column, "INVERTED", with_position=True, remove_stop_words=False, stem=False)
    matches = Table(dataset.uri, monkeypatch).ids(full_text_query=structured(phrase={"terms": "lazy dog"}), k=NO_LIMIT)
    assert set(matches) == ids(lambda row: "lazy dog" in TEXT[row] or "lazy dog" in TITLE[row])


def test_query_by_text_without_an_index_asks_for_one_or_for_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = lance.write_dataset(DATA, str(tmp_path / "t.lance"))
    table = Table(dataset.uri, monkeypatch)
    with pytest.raises(InvalidInputError, match="create one"):
        table.query(full_text_query=words("fox"))
    assert set(table.ids(full_text_query=words("fox", "text"), k=NO_LIMIT)) == ids(has(TEXT, "fox"))


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({}, "needs a string_query or a structured_query"),
        (words("fox") | structured(match={"terms": "fox"}), "not both"),
        (structured(), "exactly one of .* has 0"),
        (structured(match={"terms": "fox"}, phrase={"terms": "fox"}), "exactly one of .* has 2"),
        (structured(match={"terms": "fox", "operator": "xor"}), "And or Or, not 'xor'"),
        (structured(match={"terms": "fox", "fuzziness": -1}), "edit distance"),
        (structured(match={"terms": "fox", "fuzziness": "often"}), "edit distance"),
        (structured(match={"terms": "fox", "fuzziness": True}), "edit distance"),
        (structured(match={"terms": "fox", "document_granularity": "page"}), "row or list_element"),
        (structured(match={"terms": "fox", "column": "id"}), "'id' must"),
        (structured(multi_match={"match_queries": []}), "at least one match"),
        (structured(combined_fields={"terms": "fox", "columns": ["text"], "boosts": [0.5]}), "a boost of at least 1"),
        (structured(combined_fields={"terms": "fox", "columns": ["text"], "boosts": []}), "a boost of at least 1"),
        (structured(boolean={"must": [], "should": [], "must_not": []}), "at least one 'must' or 'should'"),
    ],
)
def test_query_by_text_that_cannot_be_meant_is_an_invalid_input(
    query: dict[str, Any], message: str, table: Table
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        table.query(full_text_query=query)


def test_query_by_text_nested_too_deep_is_an_invalid_input(table: Table) -> None:
    query: dict[str, Any] = {"match": {"terms": "fox", "column": "text"}}
    for _ in range(17):
        query = {"boolean": {"must": [query], "should": [], "must_not": []}}
    with pytest.raises(InvalidInputError, match="deeper"):
        table.query(full_text_query={"structured_query": {"query": query}})


def test_query_by_text_in_an_unknown_column_names_those_there_are(table: Table) -> None:
    with pytest.raises(TableColumnNotFoundError, match=r"No column 'nope'\. This table has: id"):
        table.query(full_text_query=words("fox", "nope"))


# Both at once: the vector ranks what the text finds


@pytest.mark.parametrize("text", [words("fox", "text"), words("fox", "other"), words("fox")])
def test_query_by_vector_and_text_ranks_the_rows_the_text_finds(text: dict[str, Any], table: Table) -> None:
    vector = {"vector": {"single_vector": V}}
    matching = set(table.ids(full_text_query=text, k=NO_LIMIT, filter="id >= 40"))
    ranked = [row for row in table.ids(**vector, k=NO_LIMIT) if row in matching]
    both = vector | {"full_text_query": text, "filter": "id >= 40"}
    assert table.ids(**both, k=NO_LIMIT) == ranked
    assert table.ids(**both, k=4, offset=3) == ranked[3:7]
    assert table.query(**both, k=2).schema.names[-1] == "_distance"


def test_query_by_vector_and_text_without_prefilter_ranks_first(table: Table) -> None:
    vector = {"vector": {"single_vector": V}}
    nearest, matching = table.ids(**vector, k=20), ids(has(TEXT, "fox"))
    ranked = table.ids(**vector, full_text_query=words("fox", "text"), k=20, prefilter=False)
    assert ranked == [row for row in nearest if row in matching]


def test_query_by_several_vectors_and_text_ranks_for_each(table: Table) -> None:
    both = [V, [0.125] * 8]
    text = {"full_text_query": words("fox", "text"), "k": 3}
    result = table.query(vector={"multi_vector": both}, **text)
    assert result["query_index"].to_pylist() == [0] * 3 + [1] * 3
    apart = [table.ids(vector={"single_vector": vector}, **text) for vector in both]
    assert result["id"].to_pylist() == apart[0] + apart[1]
