"""Small tables whose values unfold to gigabytes as soon as a query reads or computes them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx
import lance
import pyarrow as pa
import pytest

from tests.services.wire import stream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services.server import ServerProcess

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}
ROWS = 8192
LONG = 200_000
AT_ONCE = 9
TEXTS = ["a" * LONG, "b" * LONG]
COMPUTED = ("upper(a) = lower(a)", "concat(a, a) = 'x'", "length(reverse(a)) = 3 AND upper(a) LIKE '%x%'")


@pytest.fixture(scope="module")
def http(victim: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=victim.url, timeout=240) as client:
        yield client


def dictionary(rows: int) -> pa.Table:
    indices = pa.array([row % 2 for row in range(rows)], pa.int8())
    return pa.table({"id": range(rows), "a": pa.DictionaryArray.from_arrays(indices, pa.array(TEXTS))})


def plain(rows: int, texts: list[str]) -> pa.RecordBatchReader:
    """The same texts without a dictionary, which Lance compresses to next to nothing."""

    def batches() -> Iterator[pa.RecordBatch]:
        for begin in range(0, rows, 64):
            column = pa.array([texts[row % len(texts)] for row in range(64)])
            yield pa.record_batch({"id": pa.array(range(begin, begin + 64)), "a": column})

    first = next(batches())
    return pa.RecordBatchReader.from_batches(first.schema, batches())


def planted(http: httpx.Client, rows: pa.Table | pa.RecordBatchReader) -> str:
    """A table whose rows its owner wrote into its folder with stock pylance."""
    table = f"t{uuid4().hex}"
    empty = rows.schema.empty_table()
    response = http.post(f"/v1/table/{table}/create", content=stream(empty), headers=ARROW)
    assert response.status_code == 200, response.text
    lance.write_dataset(rows, response.json()["location"], mode="append")
    return table


def count(http: httpx.Client, table: str, predicate: str) -> httpx.Response:
    return http.post(f"/v1/table/{table}/count_rows", json={"predicate": predicate})


def query(http: httpx.Client, table: str, **fields: Any) -> httpx.Response:
    return http.post(f"/v1/table/{table}/query", json={"vector": {"single_vector": []}, "k": 2, **fields})


def test_create_table_of_a_body_that_stands_for_gigabytes_is_refused(http: httpx.Client) -> None:
    body = stream(dictionary(ROWS))
    assert len(body) < 1 << 20
    refused = http.post(f"/v1/table/t{uuid4().hex}/create", content=body, headers=ARROW)
    assert refused.status_code == 400, refused.text
    assert "stand for 1562 MiB" in refused.json()["error"]
    accepted = http.post(f"/v1/table/t{uuid4().hex}/create", content=stream(dictionary(300)), headers=ARROW)
    assert accepted.status_code == 200, accepted.text


@pytest.mark.extended
def test_queries_that_unfold_a_column_at_once_stay_within_bounds(http: httpx.Client) -> None:
    tables = [planted(http, dictionary(ROWS)), planted(http, plain(ROWS, TEXTS)), planted(http, plain(ROWS, TEXTS[:1]))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        queries = [(table, predicate) for predicate in COMPUTED for table in tables]
        responses = pool.map(lambda arguments: count(http, *arguments), queries)
        for (table, predicate), response in zip(queries, responses, strict=True):
            assert response.status_code in (200, 429), (predicate, response.text)
            if response.status_code == 200:
                assert response.json() == 0, (table, predicate)
        columns = {"column_aliases": {"x": "length(concat(upper(a), a))"}}
        for response in pool.map(lambda table: query(http, table, columns=columns, filter="upper(a) > 'B'"), tables):
            assert response.status_code in (200, 429), response.text
    for table in tables:  # each of them answers, alone
        assert count(http, table, "upper(a) = 'x'").json() == 0
        ordered = {"columns": {"column_names": ["id"]}, "order_by": [{"column_name": "a"}]}
        assert query(http, table, **ordered).status_code == 200


def test_changes_that_unfold_a_column_are_refused(http: httpx.Client) -> None:
    for rows in (dictionary(ROWS), plain(ROWS, TEXTS)):
        table = planted(http, rows)
        deleted = http.post(f"/v1/table/{table}/delete", json={"predicate": "upper(a) = lower(a)"})
        updated = http.post(f"/v1/table/{table}/update", json={"updates": [["id", "length(concat(a, a))"]]})
        for response in (deleted, updated):
            assert response.status_code == 400, response.text
            assert "computed at once" in response.json()["error"]
        assert http.post(f"/v1/table/{table}/delete", json={"predicate": "id < 100"}).json()["num_deleted_rows"] == 100
