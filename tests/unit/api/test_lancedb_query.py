"""Query bodies of lancedb's remote protocol: what lancedb 0.40.0 really sent, and what it means.

`lancedb_queries.json` was recorded from its client against an HTTP server that only listened: each entry has the
calls that sent a body, the body, and the request it stands for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lance_namespace.errors import InvalidInputError, UnsupportedOperationError

from tiltyard.api.lancedb.query import query_request

RECORDED = json.loads((Path(__file__).parent / "lancedb_queries.json").read_text())
MATCH = {"match": {"terms": "fox", "column": None}}


def read(**body: Any) -> Any:
    return msgspec.to_builtins(query_request({"k": 10, "vector": []} | body))


@pytest.mark.parametrize("entry", RECORDED, ids=lambda entry: entry["calls"][0].replace(" ", "_"))
def test_query_as_lancedb_sends_it_is_the_request_it_means(entry: dict[str, Any]) -> None:
    body = entry["body"]["query"] if entry["route"] == "explain_plan" else entry["body"]
    assert msgspec.to_builtins(query_request(body)) == entry["request"]


def test_query_with_an_unknown_field_is_refused_unless_it_is_null() -> None:
    assert read(novelty=None) == read()
    with pytest.raises(UnsupportedOperationError, match="'novelty'"):
        read(novelty=1)


@pytest.mark.parametrize("kind", ["match", "phrase", "boost", "multi_match", "combined_fields", "boolean"])
def test_query_with_an_unknown_field_of_full_text_is_refused(kind: str) -> None:
    with pytest.raises(UnsupportedOperationError, match="'wand_factor'"):
        read(full_text_query={"query": {kind: {"wand_factor": 2}}})


def test_query_of_an_unknown_full_text_kind_is_refused() -> None:
    with pytest.raises(UnsupportedOperationError, match="'prefix'"):
        read(full_text_query={"query": {"prefix": {}}})


def test_query_with_use_lsm_means_use_rte() -> None:
    assert read(use_lsm=False) == read(use_rte=False)
    assert read(use_lsm=True)["use_rte"] is True


def test_query_without_probe_fields_leaves_them_open() -> None:
    body = {"prefilter": True, "k": 10, "vector": [1.0], "version": None, "lower_bound": None, "upper_bound": None}
    request = msgspec.to_builtins(query_request(body | {"ef": None, "refine_factor": None}))
    assert request == {"k": 10, "prefilter": True, "vector": {"single_vector": [1.0]}}


def test_query_with_aliases_keeps_their_order() -> None:
    aliases = {"z": "id", "a": "id + 1", "m": "id * 2"}
    assert list(read(columns=aliases)["columns"]["column_aliases"]) == ["z", "a", "m"]


def test_query_with_a_null_fuzziness_is_automatic() -> None:
    request = read(full_text_query={"query": {"match": {"terms": "fox", "fuzziness": None}}})
    assert request["full_text_query"]["structured_query"]["query"]["match"] == {"terms": "fox", "fuzziness": "auto"}


def test_query_of_words_and_columns_is_a_string_query() -> None:
    request = read(full_text_query={"query": "fox", "columns": ["text"]})
    assert request["full_text_query"] == {"string_query": {"query": "fox", "columns": ["text"]}}


def test_query_in_the_shape_of_the_specification_is_kept() -> None:
    shaped = {
        "vector": {"multi_vector": [[1.0, 2.0]]},
        "columns": {"column_names": ["id"]},
        "full_text_query": {"string_query": {"query": "fox"}},
    }
    assert read(**shaped).items() >= shaped.items()


def test_query_with_an_alias_for_each_column_keeps_the_expressions() -> None:
    assert read(columns={"x": "id + 1"})["columns"] == {"column_aliases": {"x": "id + 1"}}


@pytest.mark.parametrize(
    "body",
    [
        {"k": "ten"},
        {"k": -1},
        {"k": 2**63},
        {"vector": [1.0, "x"]},
        {"vector": [[1.0], 2.0]},
        {"vector": 5},
        {"columns": [1]},
        {"filter": 5},
        {"full_text_query": "fox"},
        {"full_text_query": {"query": 5}},
        {"full_text_query": {"query": MATCH, "columns": ["text"]}},
        {"full_text_query": {"query": {"match": "fox"}}},
        {"full_text_query": {"query": {"multi_match": {"query": "fox", "columns": ["a", "b"], "boost": [1.0]}}}},
        {"full_text_query": {"query": {"multi_match": {"query": "fox", "columns": "a"}}}},
        {"full_text_query": {"query": {"boolean": {"must": MATCH}}}},
        {"order_by": [{"ascending": True}]},
    ],
)
def test_query_that_does_not_fit_is_an_invalid_input(body: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        read(**body)


def test_query_with_an_alias_that_is_no_expression_is_refused() -> None:
    with pytest.raises(UnsupportedOperationError, match="'x' of the columns"):
        read(columns={"x": 1})


def test_query_nested_too_deep_is_an_invalid_input() -> None:
    query: dict[str, Any] = MATCH
    for _ in range(100):
        query = {"boolean": {"must": [query], "should": [], "must_not": []}}
    with pytest.raises(InvalidInputError, match="deeper"):
        read(full_text_query={"query": query})
