"""Rows by ids and offsets, as lancedb's permutations ask for them: the same as a scan of Lance finds."""

from __future__ import annotations

from typing import Any

import lance
import pyarrow as pa
import pytest
from tests.services.cases import check_each
from tests.tables.query.test_point_lookups import query
from tests.tables.served import Server

from tiltyard.storage.caches.version_cache import CachedVersion
from tiltyard.tables.query.plan import limit_to_row_ids, plan_search
from tiltyard.tables.query.response_sizes import NO_LIMIT
from tiltyard.tables.query.routes.chooser import choose
from tiltyard.tables.query.routes.route import Query, Refused
from tiltyard.tables.query.routes.row_take import RowTake
from tiltyard.tables.query.routes.scan import Scan

ROWS = pa.table(
    {
        "id": range(600),
        "name": [f"row {number}" for number in range(600)],
        "deep": [{"x": number} for number in range(600)],
        "Upper": range(600),
    }
)
IDS = f"_rowid IN (9, 7, 9, 50, {(3 << 32) + 5}, {1 << 32}, 400)"
OFFSETS = "_rowoffset IN (5, 3, 400, 595, 596, 100000)"
RENAMED = {"__lancedb_take_row_offset": "_rowoffset", "id": "id", "text": "name"}

TAKES: list[dict[str, Any]] = [
    {"filter": IDS},
    {"filter": IDS, "with_row_id": True},
    {"filter": "_rowid = 9", "columns": {"column_names": ["name"]}},
    {"filter": "_rowid IN (600000, 700000)"},
    {"filter": IDS, "columns": {"column_names": ["deep", "_rowid", "id"]}, "with_row_id": True},
    {"filter": IDS, "columns": {"column_aliases": {"id": "id", "name": "name"}}, "with_row_id": True},
    {"filter": OFFSETS, "columns": {"column_aliases": RENAMED}},
    {"filter": OFFSETS, "columns": {"column_names": ["id"]}, "with_row_id": True},
    {"filter": "_rowoffset IN (70000)", "with_row_id": True},
]
OTHERS: list[dict[str, Any]] = [
    {"filter": f"({IDS}) AND (id > 8)"},
    {"filter": IDS, "k": 3},
    {"filter": IDS, "offset": 1},
    {"filter": "_rowid >= 3"},
    {"filter": IDS, "columns": {"column_aliases": {"id": "id + 1"}}},
    {"filter": IDS, "columns": {"column_names": ["deep.x"]}},
    {"filter": IDS, "order_by": [{"column_name": "id", "ascending": False}]},
]


@pytest.fixture(params=[False, True], ids=["addresses", "stable ids"])
def dataset(request: pytest.FixtureRequest, server: Server) -> lance.LanceDataset:
    """Return a table of four fragments without some of their rows."""
    dataset = server.create("t", ROWS, max_rows_per_file=150, enable_stable_row_ids=request.param)
    dataset.delete("id IN (7, 12, 151, 599)")
    return server.open("t")


def offer_of(dataset: lance.LanceDataset, fields: dict[str, Any]) -> Any:
    request = limit_to_row_ids(query(**{"k": NO_LIMIT} | fields))
    search = plan_search(CachedVersion(dataset), request)
    return choose(Query(search, Refused("no caches here")))


def rows_of(offer: Any) -> pa.Table:
    (reader,) = offer.readers()
    return pa.Table.from_batches(reader, reader.schema)


def test_rows_by_ids_or_offsets_are_those_of_a_scan(dataset: lance.LanceDataset) -> None:
    def check(fields: dict[str, Any]) -> None:
        offer = offer_of(dataset, fields)
        assert isinstance(offer, RowTake)
        assert rows_of(offer).equals(rows_of(Scan(offer.query)), check_metadata=True)

    check_each(TAKES, check)


def test_rows_by_ids_with_other_options_are_not_taken(dataset: lance.LanceDataset) -> None:
    def check(fields: dict[str, Any]) -> None:
        assert not isinstance(offer_of(dataset, fields), RowTake)

    check_each(OTHERS, check)
