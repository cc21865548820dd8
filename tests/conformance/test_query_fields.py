"""Each field of a query, as clients send it: the table of docs/queries.md, and what comes of each."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import httpx
import lancedb
import msgspec
import pyarrow as pa
import pytest
from lancedb.index import FTS, IvfFlat

from tests.conformance.test_remote import WAIT
from tiltyard.model.spec import models

PAGE = Path(__file__).parents[2] / "docs/queries.md"
PLOT = "the old ship leaves its harbour for the last time before the long winter storms"
VECTOR = [0.0] * 4
ROWS = 300
DATA = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "text": [f"{PLOT} w{number}" for number in range(ROWS)],
        "vector": pa.array([[float(number)] * 4 for number in range(ROWS)], pa.list_(pa.float32(), 4)),
    }
)
NEAR = {"vector": VECTOR, "k": 2}
NO_K = 400, "k"
WORDS = {"query": {"match": {"terms": "w7", "column": "text"}}}

# The fields of each row of the page, in lancedb's form, and the ids that come of them; (status, text) for a refusal.
SENT: dict[str, list[tuple[dict[str, Any], list[int] | tuple[int, str]]]] = {
    "k": [
        ({"k": 3}, [0, 1, 2]),
        ({"k": 0}, []),
        ({"k": 2**63 - 1, "filter": "id < 2"}, [0, 1]),
        ({"k": -1}, (400, "k")),
    ],
    "vector": [(NEAR, [0, 1]), ({"vector": [], "k": 1}, [0]), ({"vector": [VECTOR, [5.0] * 4], "k": 1}, [0, 5])],
    "vector_column": [(NEAR | {"vector_column": "vector"}, [0, 1]), (NEAR | {"vector_column": "nope"}, (400, "nope"))],
    "distance_type": [
        ({"vector": [9.0] * 4, "k": 1, "distance_type": "l2", "bypass_vector_index": True}, [9]),
        (NEAR | {"distance_type": "far"}, (400, "distance_type")),
    ],
    "nprobes": [(NEAR | {"nprobes": 1}, [0, 1]), (NEAR | {"nprobes": 0}, (400, "nprobes"))],
    "minimum_nprobes": [(NEAR | {"minimum_nprobes": 1, "nprobes": 1}, [0, 1])],
    "maximum_nprobes": [(NEAR | {"maximum_nprobes": 0, "minimum_nprobes": 1}, [0, 1])],
    "search_effort": [(NEAR | {"search_effort": 1.0}, [0, 1]), (NEAR | {"search_effort": 2}, (400, "search_effort"))],
    "ef": [(NEAR | {"ef": 40}, [0, 1]), (NEAR | {"ef": 0}, (400, "ef"))],
    "refine_factor": [(NEAR | {"refine_factor": 2}, [0, 1])],
    "approx_mode": [(NEAR | {"approx_mode": "fast"}, [0, 1]), (NEAR | {"approx_mode": "bold"}, (400, "approx_mode"))],
    "lower_bound": [(NEAR | {"lower_bound": 15.0}, [2, 3])],
    "upper_bound": [(NEAR | {"upper_bound": 4.0}, [0]), ({"upper_bound": 4.0}, (400, "query vector"))],
    "bypass_vector_index": [(NEAR | {"bypass_vector_index": True}, [0, 1])],
    "fast_search": [(NEAR | {"fast_search": True}, [0, 1])],
    "filter": [
        ({"filter": "id = 4"}, [4]),
        (NEAR | {"filter": "id > 4"}, [5, 6]),
        ({"filter": "nope = 1"}, (400, "nope")),
    ],
    "prefilter": [(NEAR | {"filter": "id > 0", "prefilter": False}, [1])],
    "columns": [({"k": 1, "columns": ["id"]}, [0]), ({"k": 1, "columns": {"id": "id + 4"}}, [4])],
    "with_row_id": [({"k": 1, "with_row_id": True}, [0])],
    "offset": [({"k": 1, "offset": 3}, [3]), (NEAR | {"offset": 1}, [1, 2])],
    "order_by": [({"k": 1, "order_by": [{"column_name": "id", "ascending": False, "nulls_first": True}]}, [ROWS - 1])],
    "full_text_query": [
        ({"full_text_query": WORDS}, [7]),
        ({"full_text_query": {"query": "w7", "columns": ["text"]}}, [7]),
        ({"full_text_query": {"query": {"phrase": {"terms": "storms w7", "column": "text"}}}}, [7]),
        ({"full_text_query": {"query": {"multi_match": {"query": "w7", "columns": ["text"], "boost": [2.0]}}}}, [7]),
        ({"full_text_query": {"query": {"boolean": {"must": [WORDS["query"]], "should": [], "must_not": []}}}}, [7]),
        ({"full_text_query": {"query": {"combined_fields": {"query": "w7", "columns": ["text"]}}}}, [7]),
        ({"full_text_query": {**WORDS, "wand_factor": 2.0}}, (501, "wand_factor")),
    ],
    "minhash_query": [({"k": 1, "minhash_query": {"column": "text", "text": f"{PLOT} w7"}}, [7])],
    "version": [({"version": 1, "k": 1}, [0]), ({"version": 99}, (404, "99"))],
    "branch": [({"branch": "main", "k": 1}, [0]), ({"branch": "nope"}, (404, "nope"))],
    "use_rte": [({"use_rte": False, "k": 1}, [0]), ({"use_rte": True}, (400, "no RTE specification"))],
    "use_lsm": [({"use_lsm": False, "k": 1}, [0]), ({"use_lsm": True}, (400, "no RTE specification"))],
    "id": [({"id": ["query_fields"], "k": 1}, [0]), ({"id": ["other"]}, (400, "The path says"))],
    "identity": [({"identity": {}, "k": 1}, [0])],
    "context": [({"context": {"a": "b"}, "k": 1}, [0])],
}


@pytest.fixture(scope="module")
def table(server: Any) -> str:
    """A table with an index of each kind that queries use."""
    database = lancedb.connect("db://tests", api_key="none", host_override=server.url)
    made = database.create_table("query_fields", DATA)
    made.create_index("vector", config=IvfFlat(num_partitions=1), wait_timeout=WAIT)
    made.create_index("text", config=FTS(with_position=True, stem=False), wait_timeout=WAIT)
    minhash = {"column": "text", "index_type": "MINHASHLSH", "name": "near"}
    httpx.post(f"{server.url}/v1/table/{made.name}/create_scalar_index", json=minhash).raise_for_status()
    made.wait_for_index(["near"], timeout=WAIT)
    return str(made.name)


def as_lancedb(raw: Any, table: str, body: dict[str, Any]) -> Any:
    return raw.post(f"/v1/table/{table}/query/", body, headers={"x-lancedb-database": "tests"})


def found(response: Any) -> list[int]:
    assert response.status_code == 200, response.text
    ids: list[int] = pa.ipc.open_file(io.BytesIO(response.content)).read_all()["id"].to_pylist()
    return ids


@pytest.mark.parametrize("field", SENT)
def test_each_field_of_a_query_is_answered_or_refused_by_its_name(raw: Any, table: str, field: str) -> None:
    for fields, expected in SENT[field]:
        assert field in fields or field == "k"
        response = as_lancedb(raw, table, {"vector": [], "k": 10, "version": None, **fields})
        if isinstance(expected, list):
            assert found(response) == expected, fields
        else:
            status, said = expected
            assert response.status_code == status and said in response.text, (fields, response.text)


def test_the_page_lists_each_field(raw: Any, table: str) -> None:
    section = PAGE.read_text().split("## The fields of a query")[1].split("\n## ")[0]
    listed = [name for line in section.splitlines() if line.startswith("| `") for name in _names(line)]
    assert sorted(listed) == sorted(SENT)
    specified = {info.encode_name for info in msgspec.structs.fields(models.QueryTableRequest)}
    assert specified | {"use_lsm"} == set(SENT)
    unknown = as_lancedb(raw, table, {"vector": [], "k": 1, "novelty": 1})
    assert (unknown.status_code, "'novelty'" in unknown.json()["error"]) == (501, True)


def _names(line: str) -> list[str]:
    return re.findall(r"`(\w+)`", line.split("|")[1])


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # DuckDB's lance_vector_search and lance_fts, as recorded
        ({"vector": {"single_vector": VECTOR}, "vector_column": "vector", "prefilter": False, "k": 2}, [0, 1]),
        (
            {
                "vector": {"single_vector": VECTOR},
                "vector_column": "vector",
                "k": 2,
                "prefilter": False,
                "bypass_vector_index": True,
                "filter": "id>50",
                "nprobes": 3,
                "refine_factor": 2,
            },
            [],
        ),
        (
            {
                "full_text_query": {"string_query": {"columns": ["text"], "query": "w9"}},
                "vector": {},
                "k": 2,
                "prefilter": False,
            },
            [9],
        ),
        # lance-spark: a prefilter, columns by name, and neither an index
        (
            {
                "vector": {"single_vector": VECTOR},
                "k": 1,
                "filter": "id > 2",
                "prefilter": True,
                "bypass_vector_index": False,
                "columns": {"column_names": ["id"]},
            },
            [3],
        ),
        ({"vector": {"multi_vector": [VECTOR, [5.0] * 4]}, "k": 1}, [0, 5]),
        ({"vector": {"single_vector": []}, "k": 1}, [0]),
        ({"vector": None, "k": 1, "minhash_query": {"column": "text", "text": f"{PLOT} w7"}}, [7]),
    ],
)
def test_search_bodies_of_engines_return_whole_rows(raw: Any, table: str, body: Any, expected: list[int]) -> None:
    response = raw.post(f"/v1/table/{table}/query?delimiter=%24", {"id": [table], **body})
    assert found(response) == expected
    if "columns" not in body:
        names = pa.ipc.open_file(io.BytesIO(response.content)).schema.names
        assert [name for name in names if name in DATA.schema.names] == DATA.schema.names
