"""Point look-ups: which queries qualify, their responses, and that slow ones run in a thread again."""

from __future__ import annotations

from typing import Any

import lance
import pyarrow as pa
import pytest
from lance_namespace.errors import LanceNamespaceError
from tests.services.cases import check_each
from tests.tables.served import Server, ask

from tiltyard.model.spec import models
from tiltyard.storage.caches import cached_rows
from tiltyard.tables.indexes.indexes import prewarm_table_page_cache
from tiltyard.tables.query.query import count_table_rows, query_table
from tiltyard.tables.query.response_sizes import NO_LIMIT
from tiltyard.tables.query.routes import route
from tiltyard.tables.query.routes.chooser import count_on_loop, query_on_loop
from tiltyard.tables.query.routes.point_lookup import lookup_columns
from tiltyard.tables.query.routes.route import PAUSE_SECONDS, SLOW_SECONDS, Pace

ROWS = pa.table(
    {
        "id": range(6000),
        "kind": [f"k{number % 4}" for number in range(6000)],
        "few": [number // 3 for number in range(6000)],
        "free": range(6000),
    }
)


@pytest.fixture
def table(server: Server, monkeypatch: pytest.MonkeyPatch) -> lance.LanceDataset:
    """Return a table of four fragments with three indexed columns, all rows in the column cache.

    Its look-ups are never slow: on a busy machine, they would take a thread for a while.
    """
    monkeypatch.setattr(route, "SLOW_SECONDS", 60.0)
    dataset = server.create("t", ROWS, max_rows_per_file=1500)
    for name, kind in (("id", "BTREE"), ("kind", "BITMAP"), ("few", "BTREE")):
        dataset.create_scalar_index(name, kind)
    prewarm(server)
    return server.open("t")


def prewarm(server: Server) -> None:
    prewarm_table_page_cache(server.ctx, ask(models.PrewarmTablePageCacheRequest, id="t"))
    query_rows(server, filter="id = 0")  # the first query selects the cached columns


def query(**fields: Any) -> models.QueryTableRequest:
    request: models.QueryTableRequest = ask(models.QueryTableRequest, **{"id": "t", "vector": None, "k": 10} | fields)
    return request


def query_rows(server: Server, *, inline: bool = False, **fields: Any) -> list[dict[str, Any]]:
    """Return the rows of a query, as in a thread or, `inline`, as on the event loop."""
    ctx = query_on_loop(server.ctx, query(**fields)) if inline else server.ctx
    assert ctx is not None, "no look-up"
    response = query_table(ctx, query(**fields))
    rows: list[dict[str, Any]] = pa.Table.from_batches(response.batches, response.schema).to_pylist()
    return rows


LOOKUPS: list[dict[str, Any]] = [
    {"filter": "id = 1234"},
    {"filter": " id=-1 "},
    {"filter": "kind = 'k3'", "k": 7},
    {"filter": "kind = 'it is none'"},
    {"filter": "few = 333", "k": 2},
    {"filter": "id = 5", "vector": {"single_vector": []}, "with_row_id": True},
]
LISTS_AND_RANGES: list[dict[str, Any]] = [
    {"filter": "id IN (4321, 17, 5999, 17, 77777, 1500)"},
    {"filter": "few in (333, 12,4)", "k": 5, "with_row_id": True},
    {"filter": "id IN (7)"},
    {"filter": "id >= 1495 AND id < 1505", "k": 8},
    {"filter": "few < 2"},
    {"filter": "few > 1998", "k": 100},
    {"filter": "id <= 9 and id > 5"},
    {"filter": "id BETWEEN 2998 AND 3002"},
    {"filter": "id between 9 and 5"},
    {"filter": "id >= 6000"},
]
OTHERS: list[dict[str, Any]] = [
    {},
    {"filter": "free < 5"},
    {"filter": "id = 5 or id = 6"},
    {"filter": "id NOT IN (5)"},
    {"filter": "id >= 5 AND few < 9"},
    {"filter": "id = id"},
    {"filter": "kind = 'a''b'"},
    {"filter": "free = 5"},
    {"filter": "missing = 5"},
    {"filter": "id = 5", "k": 1000},
    {"filter": "id = 5", "offset": 1},
    {"filter": "id = 5", "version": 1},
    {"filter": "id = 5", "branch": "main"},
    {"filter": "id = 5", "order_by": [{"column_name": "id"}]},
    {"filter": "id = 5", "columns": {"column_aliases": {"x": "id + 1"}}},
    {"filter": "id = 5", "id": ["missing"]},
    {"filter": "id = 5", "id": []},
]


@pytest.mark.usefixtures("table")
def test_look_up_answers_what_a_scan_finds(server: Server) -> None:
    def check(fields: dict[str, Any]) -> None:
        column, _, value = fields["filter"].replace(" ", "").partition("=")
        key = value.strip("'") if column == "kind" else int(value)
        expected = [row for row in ROWS.to_pylist() if row[column] == key][: fields.get("k", 10)]
        for inline in (True, False):
            rows = query_rows(server, inline=inline, **fields)
            assert [{name: row[name] for name in ROWS.schema.names} for row in rows] == expected

    check_each(LOOKUPS, check)


@pytest.mark.parametrize(
    "fields", [*(fields for fields in LOOKUPS if "kind" not in fields["filter"]), *LISTS_AND_RANGES], ids=str
)
@pytest.mark.usefixtures("table")
def test_integer_that_is_looked_up_often_is_found_without_lance(
    fields: dict[str, Any], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns in (None, {"column_names": ["kind", "free"]}):
        request = fields | ({"columns": columns} if columns else {})
        expected = response_of(server, request)  # by Lance
        for _ in range(cached_rows._LOOKUPS_BEFORE_SORT):
            query_rows(server, **request)
        with monkeypatch.context() as patch:
            patch.setattr("tiltyard.tables.query.plan.make_scanner", refuse_scanner)
            found = response_of(server, request)
        assert found.schema.equals(expected.schema, check_metadata=True)
        assert found.equals(expected)


@pytest.mark.parametrize("fields", LISTS_AND_RANGES, ids=str)
@pytest.mark.usefixtures("table")
def test_list_or_range_runs_on_the_loop_once_it_is_found_in_memory(fields: dict[str, Any], server: Server) -> None:
    assert query_on_loop(server.ctx, query(**fields)) is None
    expected = query_rows(server, **fields)
    for _ in range(cached_rows._LOOKUPS_BEFORE_SORT):
        query_rows(server, **fields)
    assert query_rows(server, inline=True, **fields) == expected


ROW_IDS: list[dict[str, Any]] = [
    {"filter": f"_rowid IN ({3 << 32}, 7, 1499, 7, {1 << 32 | 3})"},
    {"filter": f"_rowid in ({3 << 32},7)", "k": NO_LIMIT, "with_row_id": True},
    {"filter": f"_rowid IN (7, 1500, {9 << 32}, {10**17})", "k": NO_LIMIT},
    {"filter": f"_rowid IN (8, 7, {2 << 32})", "k": 2},
    {"filter": f"_rowid = {2 << 32 | 5}", "k": 100},
    {"filter": "_rowid = 1500"},
]


@pytest.mark.parametrize("fields", ROW_IDS, ids=str)
def test_rows_by_ids_are_found_without_lance_and_on_the_loop(
    fields: dict[str, Any], server: Server, table: lance.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"with_row_id": fields.get("with_row_id", False), "limit": min(fields.get("k", 10), 100)}
    expected = table.to_table(filter=fields["filter"], **names)
    monkeypatch.setattr("tiltyard.tables.query.plan.make_scanner", refuse_scanner)
    found = response_of(server, fields)
    assert found.equals(expected) and found.schema.equals(expected.schema, check_metadata=True)
    assert query_rows(server, inline=True, **fields) == expected.to_pylist()
    page = response_of(server, fields | {"columns": {"column_names": ["kind"]}})
    assert page["kind"].to_pylist() == expected["kind"].to_pylist()


def test_rows_by_ids_are_found_by_lance_where_rows_are_deleted(server: Server, table: lance.LanceDataset) -> None:
    def check(fields: dict[str, Any]) -> None:
        assert query_on_loop(server.ctx, query(**fields)) is None
        expected = server.open("t").to_table(filter=fields["filter"], limit=min(fields.get("k", 10), 100))
        assert response_of(server, fields).select(expected.schema.names).equals(expected)

    table.delete("id = 7 OR id = 4500")
    prewarm(server)
    check_each(ROW_IDS, check)


OTHER_OPTIONS: list[tuple[dict[str, Any], list[int]]] = [
    ({"offset": 1}, [9, 4500]),
    ({"order_by": [{"column_name": "id", "ascending": False}]}, [4500, 9, 7]),
    ({"k": 0}, []),
    ({"version": 1}, [7, 9, 4500]),
]


@pytest.mark.usefixtures("table")
def test_rows_by_ids_with_other_options_are_those_of_a_scan(server: Server) -> None:
    def check(case: tuple[dict[str, Any], list[int]]) -> None:
        fields = {"filter": f"_rowid IN (9, 7, {3 << 32})", "k": NO_LIMIT} | case[0]
        assert [row["id"] for row in query_rows(server, **fields)] == case[1]

    check_each(OTHER_OPTIONS, check)


def test_rows_by_ids_that_are_no_addresses_are_found_by_lance(server: Server) -> None:
    server.create("t", ROWS, max_rows_per_file=1500, enable_stable_row_ids=True)
    prewarm(server)
    fields = {"filter": "_rowid IN (4501, 7)", "k": NO_LIMIT}
    assert query_on_loop(server.ctx, query(**fields)) is None
    assert [row["id"] for row in query_rows(server, **fields)] == [7, 4501]


def test_row_id_below_zero_is_refused_as_by_lance(server: Server, table: lance.LanceDataset) -> None:
    with pytest.raises(ValueError, match="-1"):
        table.to_table(filter="_rowid IN (-1, 7)")
    with pytest.raises(LanceNamespaceError, match="-1"):
        query_rows(server, filter="_rowid IN (-1, 7)")


def test_more_rows_than_a_look_up_orders_are_found_by_lance(
    server: Server, table: lance.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_rows, "_MAX_FOUND_ROWS", 99)
    for _ in range(cached_rows._LOOKUPS_BEFORE_SORT + 1):
        query_rows(server, filter="id = 1")
    assert [row["id"] for row in query_rows(server, filter="id >= 100 AND id < 200")] == [*range(100, 110)]
    with monkeypatch.context() as patch:
        patch.setattr("tiltyard.tables.query.plan.make_scanner", refuse_scanner)
        assert [row["id"] for row in query_rows(server, filter="id > 100 AND id < 200")] == [*range(101, 111)]
        with pytest.raises(AssertionError, match="Lance was asked"):
            query_rows(server, filter="id >= 100 AND id < 200")


def count(server: Server, predicate: str, *, inline: bool = False) -> int:
    request = ask(models.CountTableRowsRequest, id="t", predicate=predicate)
    ctx = count_on_loop(server.ctx, request) if inline else server.ctx
    assert ctx is not None, "not counted in memory"
    return count_table_rows(ctx, request)


@pytest.mark.parametrize("predicate", ["id = 4", *(fields["filter"] for fields in LISTS_AND_RANGES), "id >= 0"])
def test_count_by_integers_is_that_of_lance_and_needs_no_thread_once_the_column_is_sorted(
    predicate: str, server: Server, table: lance.LanceDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = table.count_rows(predicate)
    assert count_on_loop(server.ctx, ask(models.CountTableRowsRequest, id="t", predicate=predicate)) is None
    for _ in range(cached_rows._LOOKUPS_BEFORE_SORT + 1):
        assert count(server, predicate) == expected
    monkeypatch.setattr("tiltyard.tables.query.routes.scan.make_scanner", refuse_scanner)
    assert count(server, predicate, inline=True) == expected


def test_count_by_integers_sees_deleted_and_new_rows(server: Server, table: lance.LanceDataset) -> None:
    for _ in range(cached_rows._LOOKUPS_BEFORE_SORT + 1):
        assert count(server, "id < 10") == 10
    table.delete("id = 7")
    for _ in range(cached_rows._LOOKUPS_BEFORE_SORT + 2):
        assert count(server, "id < 10") == 9
    fresh = {"id": [3], "kind": ["k"], "few": [1], "free": [1]}
    lance.write_dataset(pa.table(fresh), table.uri, mode="append")
    for _ in range(cached_rows._LOOKUPS_BEFORE_SORT + 2):
        assert count(server, "id < 10") == 10


@pytest.mark.usefixtures("table")
def test_other_counts_are_left_to_lance(server: Server) -> None:
    def check(predicate: str) -> None:
        assert count_on_loop(server.ctx, ask(models.CountTableRowsRequest, id="t", predicate=predicate)) is None

    others = ("id < 'x'", "id IN (1.5)", "missing > 5", "id > 99999999999999999999", "id BETWEEN 1 AND NULL")
    check_each(others, check)


def refuse_scanner(*_: Any) -> Any:
    raise AssertionError("Lance was asked")


def response_of(server: Server, fields: dict[str, Any]) -> pa.Table:
    response = query_table(server.ctx, query(**fields))
    return pa.Table.from_batches(response.batches, response.schema)


@pytest.mark.parametrize("literal", ["9223372036854775807", "9999999999999999999"])
@pytest.mark.usefixtures("table")
def test_integer_beyond_the_column_is_answered_as_by_lance(literal: str, server: Server) -> None:
    def outcome() -> object:
        try:
            return query_rows(server, filter=f"id = {literal}")
        except LanceNamespaceError as error:
            return str(error)

    first = outcome()
    for _ in range(cached_rows._LOOKUPS_BEFORE_SORT + 1):
        query_rows(server, filter="id = 1")
    assert outcome() == first


@pytest.mark.parametrize("name", ["null", "true", "NULL", "current_date"])
def test_column_with_the_name_of_a_value_is_left_to_lance(server: Server, name: str) -> None:
    dataset = server.create("t", pa.table({name: range(100), "id": range(100)}))
    for column in (name, "id"):
        dataset.create_scalar_index(column, "BTREE")
    prewarm(server)

    def outcome() -> object:
        try:
            return query_rows(server, filter=f"{name} = 5")
        except LanceNamespaceError as error:
            return str(error)

    first = outcome()
    for _ in range(cached_rows._LOOKUPS_BEFORE_SORT + 1):
        outcome()
    assert outcome() == first


def test_deleted_rows_are_not_found_in_memory(server: Server, table: lance.LanceDataset) -> None:
    for _ in range(cached_rows._LOOKUPS_BEFORE_SORT + 1):
        assert len(query_rows(server, filter="id = 7")) == 1
    table.delete("id = 7")
    prewarm(server)
    for _ in range(cached_rows._LOOKUPS_BEFORE_SORT + 2):
        assert query_rows(server, filter="id = 7") == []


@pytest.mark.usefixtures("table")
def test_other_queries_take_a_thread(server: Server) -> None:
    def check(fields: dict[str, Any]) -> None:
        assert query_on_loop(server.ctx, query(**fields)) is None

    check_each(OTHERS, check)


def test_rows_that_are_not_in_memory_take_a_thread(server: Server) -> None:
    server.create("t", ROWS).create_scalar_index("id", "BTREE")
    assert query_on_loop(server.ctx, query(filter="id = 5")) is None


def test_commit_is_seen_and_rows_outside_the_index_take_a_thread(server: Server, table: lance.LanceDataset) -> None:
    fields = {"filter": "id = 50000"}
    assert query_rows(server, inline=True, **fields) == []
    fresh = {"id": [50000], "kind": ["k"], "few": [1], "free": [1]}
    lance.write_dataset(pa.table(fresh), table.uri, mode="append")
    assert query_on_loop(server.ctx, query(**fields)) is None
    assert [row["id"] for row in query_rows(server, **fields)] == [50000]
    prewarm(server)
    assert query_on_loop(server.ctx, query(**fields)) is None
    server.open("t").optimize.optimize_indices()
    query_rows(server, **fields)
    assert [row["id"] for row in query_rows(server, inline=True, **fields)] == [50000]


def test_limit_is_left_out_until_a_value_is_seen_to_have_many_rows(server: Server, table: lance.LanceDataset) -> None:
    snapshot = server.services.storage.datasets.cached_snapshot(server.services.store.describe_table(("t",)).location)
    assert snapshot is not None
    for column, value, stays in (("few", "333", True), ("kind", "'k1'", False)):
        expression = f"{column} = {value}"
        assert snapshot.fact(lookup_columns).has_few_rows(column)
        assert len(query_rows(server, filter=expression, k=2)) == 2
        assert snapshot.fact(lookup_columns).has_few_rows(column) is stays
        assert len(query_rows(server, filter=expression, k=2)) == 2
    assert not snapshot.fact(lookup_columns).has_few_rows("free")


@pytest.mark.usefixtures("table")
def test_slow_look_ups_take_a_thread_for_a_while(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(route, "monotonic", lambda: now[0])
    monkeypatch.setattr(route, "SLOW_SECONDS", 0.0)
    assert len(query_rows(server, inline=True, filter="id = 7")) == 1
    assert query_on_loop(server.ctx, query(filter="id = 7")) is None
    now[0] += PAUSE_SECONDS
    assert len(query_rows(server, inline=True, filter="id = 7")) == 1


def test_pace_is_an_average() -> None:
    pace = Pace()
    pace.record(SLOW_SECONDS * 4)
    assert pace.is_fast
    for _ in range(4):
        pace.record(SLOW_SECONDS * 4)
    assert not pace.is_fast
