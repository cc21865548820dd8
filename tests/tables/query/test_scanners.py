"""Scanners created without pylance's builder equal those that it creates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from lance.dataset import ColumnOrdering
from lance.query import BooleanQuery, MatchQuery, Occur
from tests.tables.query.query_table import rows

from tiltyard.tables.query import scanners
from tiltyard.tables.query.scanners import make_scanner

if TYPE_CHECKING:
    from pathlib import Path

    from lance.dataset import LanceScanner

SCORED = {"columns": ["id", "_distance"], "disable_scoring_autoprojection": True}
TEXT = {
    "columns": ["id", "_score"],
    "disable_scoring_autoprojection": True,
    "full_text_query": MatchQuery("text", "text"),
    "limit": 5,
}
VEC = {"column": "vec", "q": pa.array(np.full(8, 0.5, np.float32)), "k": 3}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> lance.LanceDataset:
    """Some rows with an IVF_PQ on `vec`, a BTREE on `id` and a full-text index on `text`."""
    written = lance.write_dataset(rows(300), str(tmp_path_factory.mktemp("scanners") / "t.lance"))
    written.create_index("vec", "IVF_PQ", num_partitions=2, num_sub_vectors=4)
    written.create_scalar_index("id", "BTREE")
    written.create_scalar_index("text", "INVERTED")
    return written


@pytest.fixture
def public_scanner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the native scanner of pylance look as if it had other options."""
    monkeypatch.setattr(scanners, "_native_scanner_accepts", lambda native: False)


CASES: list[tuple[dict[str, Any], dict[str, Any] | None]] = [
    ({}, None),
    ({"prefilter": True, "filter": "id = 7", "columns": ["id", "text"], "limit": 1}, None),
    ({"prefilter": False, "filter": "grp > 2", "limit": 5, "offset": 3, "with_row_id": True}, None),
    ({"columns": [], "with_row_id": True}, None),
    (TEXT, None),
    (TEXT | {"prefilter": True, "filter": "grp < 3", "limit": 4, "offset": 1, "with_row_id": True}, None),
    (TEXT | {"fast_search": True, "full_text_query": BooleanQuery([(Occur.MUST, MatchQuery("text", "text"))])}, None),
    (SCORED, VEC),
    (SCORED | {"prefilter": True, "filter": "grp = 1", "offset": 1}, VEC | {"metric": None, "nprobes": 2}),
    (SCORED | {"prefilter": False, "filter": "grp = 1"}, VEC | {"metric": "cosine", "use_index": False}),
    (SCORED, VEC | {"minimum_nprobes": 1, "maximum_nprobes": 2, "refine_factor": 2, "distance_range": (0.1, None)}),
    (SCORED | {"with_row_id": True}, VEC | {"approx_mode": "fast", "ef": 50}),
    (SCORED, {"column": "double", "q": pa.array(np.full(5, 0.5)), "k": 4}),
    (SCORED, {"column": "half", "q": pa.array(np.full(6, 0.5, np.float32)), "k": 4}),
    (SCORED, {"column": "small", "q": pa.array(np.full(2, 3, np.int8)), "k": 4}),
    (SCORED, {"column": "bits", "q": pa.array(np.full(4, 3, np.uint8)), "k": 4, "metric": "hamming"}),
    (SCORED, {"column": "several", "q": [pa.array(np.full(3, 0.5, np.float32))] * 2, "k": 4, "metric": "cosine"}),
]


def plan_and_rows(scanner: LanceScanner) -> tuple[str, pa.Table]:
    return scanner.explain_plan(verbose=True), scanner.to_table()


@pytest.mark.parametrize("case", CASES)
def test_make_scanner_short_or_public_plans_and_answers_the_same(
    case: tuple[dict[str, Any], dict[str, Any] | None], dataset: lance.LanceDataset, request: pytest.FixtureRequest
) -> None:
    short = plan_and_rows(make_scanner(dataset, *case))
    request.getfixturevalue("public_scanner")
    assert short == plan_and_rows(make_scanner(dataset, *case))


def test_make_scanner_with_this_pylance_takes_the_short_way(dataset: lance.LanceDataset) -> None:
    assert make_scanner(dataset, {"filter": "id = 1"})._snapshot is None
    assert make_scanner(dataset, SCORED, VEC)._snapshot is None
    assert make_scanner(dataset, TEXT)._snapshot is None


def test_make_scanner_of_an_unknown_column_names_it(dataset: lance.LanceDataset) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        make_scanner(dataset, {"columns": ["nowhere"]}).to_table()


def test_make_scanner_of_options_with_objects_leaves_them_to_pylance(tmp_path: Path) -> None:
    written = lance.write_dataset(pa.table({"a": [2, 1]}), str(tmp_path / "t.lance"))
    ordered = make_scanner(written, {"order_by": [ColumnOrdering("a")]}).to_table()
    assert ordered["a"].to_pylist() == [1, 2]
    assert make_scanner(written, {"columns": {"b": "a + 1"}}).to_table()["b"].to_pylist() == [3, 2]
