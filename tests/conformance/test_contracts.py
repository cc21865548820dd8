"""A contract through stock clients: who is refused, with which status, what is parked, and what readers would lose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import lance
import pyarrow as pa
import pytest
from lancedb.remote.errors import LanceDBClientError

import tiltyard
from tests.conformance.conftest import Raw
from tests.services.wire import stream

ARROW = {"content-type": "application/vnd.apache.arrow.stream"}


def rows(*prices: float, start: int = 1) -> pa.Table:
    ids = pa.array(range(start, start + len(prices)), pa.int64())
    return pa.table({"id": ids, "price": pa.array(prices, pa.float64())})


@pytest.fixture
def table(raw: Raw, remote: Any, fresh: Callable[[str], str]) -> str:
    """A table with two rows, whose prices are not below 0."""
    name = fresh("orders")
    remote.create_table(name, rows(1, 2))
    assert contract(raw, name, "expect(price >= 0)").status_code == 200
    return name


def contract(raw: Raw, name: str, *checks: str, **fields: Any) -> httpx.Response:
    return raw.post(f"/tiltyard/v1/table/{name}/contract/set", {"checks": list(checks), **fields})


def described(raw: Raw, name: str) -> dict[str, Any]:
    found: dict[str, Any] = raw.post(f"/tiltyard/v1/table/{name}/contract/describe").json()
    return found


def prices(remote: Any, name: str) -> list[float]:
    return sorted(row["price"] for row in remote.open_table(name).search().limit(1000).to_list())


def test_stock_clients_are_refused_once_or_told_how_many_rows_are_parked(
    raw: Raw, rest: Any, remote: Any, table: str
) -> None:
    opened = remote.open_table(table)
    for refused in (
        lambda: opened.add(rows(3, -3)),
        lambda: opened.update(where="id = 2", values={"price": -4}),
        lambda: opened.merge_insert("id").when_matched_update_all().execute(rows(-5)),
    ):
        with pytest.raises(LanceDBClientError, match=r"expect\(price >= 0\) fails for a row with price = -\d") as error:
            refused()
        assert error.value.status_code == 400
    with pytest.raises(OSError, match="unknown"):  # pylance's word for every commit that a catalog refuses
        lance.write_dataset(rows(-6), namespace_client=rest, table_id=[table], mode="append")
    lance.write_dataset(rows(6, start=6), namespace_client=rest, table_id=[table], mode="append")
    assert contract(raw, table, "expect(price >= 0)", on_failure="reject").status_code == 200
    opened.add(rows(7, -7, start=7))  # lancedb's response has no word for parked rows
    response = raw.http.post(f"/v1/table/{table}/insert", content=stream(rows(8, -8, -9)), headers=ARROW)
    assert (response.json()["num_inserted_rows"], response.json()["num_rejected_rows"]) == (1, 2)
    assert prices(remote, table) == [1, 2, 6, 7, 8]
    assert [commit["rejected"] for commit in described(raw, table)["commits"]] == [2, 1]
    assert contract(raw, table, "not_null(id)", clients="refuse").status_code == 200
    with pytest.raises(OSError, match="unknown"):
        lance.write_dataset(rows(9), namespace_client=rest, table_id=[table], mode="append")
    opened.add(rows(9, start=9))
    lance.dataset(namespace_client=rest, table_id=[table]).delete("id = 9")  # which brings no rows


def test_idempotent_repeat_parks_nothing_twice(raw: Raw, remote: Any, table: str) -> None:
    contract(raw, table, "expect(price >= 0)", on_failure="reject")
    headers = {**ARROW, "x-lance-idempotency-key": "one", "idempotency-key": "one"}
    answers = [
        raw.http.post(f"/v1/table/{table}/insert", content=stream(rows(5, -5)), headers=headers) for _ in range(2)
    ]
    assert [(answer.status_code, answer.json()["num_rejected_rows"]) for answer in answers] == [(200, 1)] * 2
    assert prices(remote, table) == [1, 2, 5]
    assert [commit["rejected"] for commit in described(raw, table)["commits"]] == [1]


def test_publication_that_breaks_one_contract_changes_no_table(
    rest: Any, remote: Any, table: str, fresh: Callable[[str], str]
) -> None:
    other = fresh("other")
    remote.create_table(other, rows(1))

    def publish(price: float) -> None:
        with tiltyard.publish(rest) as tables:
            lance.write_dataset(rows(5), namespace_client=tables, table_id=[other], mode="append")
            lance.write_dataset(rows(price), namespace_client=tables, table_id=[table], mode="append")

    with pytest.raises(Exception, match=r"price = -5.0"):
        publish(-5)
    assert prices(remote, other) == [1]
    publish(5)
    assert (prices(remote, other), prices(remote, table)) == ([1, 5], [1, 2, 5])


def test_views_are_tested_and_columns_that_others_read_stay(
    raw: Raw, remote: Any, table: str, fresh: Callable[[str], str]
) -> None:
    view, other = fresh("cheap"), fresh("items")
    made = raw.post(f"/v1/view/{view}/create", {"query": f"SELECT id, price FROM {table} WHERE price < 2"})
    assert made.status_code == 200, made.text
    assert contract(raw, view, "expect(price < 2)", "unique(id)", "rows >= 1").status_code == 200
    assert raw.post(f"/tiltyard/v1/table/{view}/contract/test").json()["passed"]
    assert contract(raw, view, "expect(price > 100)").status_code == 200  # which no row of now has to pass
    tested = raw.post(f"/tiltyard/v1/table/{view}/contract/test").json()
    assert not tested["passed"]
    assert tested["results"][0]["found"] == "1 of 1 rows fail, the first is a row with price = 1.0"
    remote.create_table(other, pa.table({"order_id": pa.array([1], pa.int64()), "amount": [1]}))
    assert contract(raw, other, f"test: foreign_key(order_id, {table}.id)").status_code == 200
    assert raw.post(f"/tiltyard/v1/table/{other}/contract/test").json()["passed"]

    def drop(column: str, **fields: Any) -> httpx.Response:
        return raw.post(f"/v1/table/{table}/drop_columns", {"columns": [column], **fields})

    def rename(column: str, **fields: Any) -> httpx.Response:
        alterations = [{"path": column, "rename": f"{column}_2"}]
        return raw.post(f"/v1/table/{table}/alter_columns", {"alterations": alterations, **fields})

    assert drop("id").status_code == 400
    assert f"the contract of {other} (foreign_key(order_id, {table}.id)), the view {view}" in drop("id").text
    assert f"the view {view}" in rename("price").text
    raw.post(f"/v1/view/{view}/drop")
    raw.post(f"/tiltyard/v1/table/{table}/contract/drop")
    masks = {"name": "p", "masks": [{"column": "price", "mask": "null"}]}
    assert raw.post(f"/tiltyard/v1/table/{table}/policy/set", masks).status_code == 200
    assert "the policy 'p' of the table" in rename("price").text
    assert rename("price", allow_breaking=True).status_code == 200
    assert described(raw, table)["checks"] == []
