"""Contracts in Python: the page's example, and jobs of this process, whose commits are held to them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from lance_namespace.errors import InvalidInputError, TableSchemaValidationError

import tiltyard

PAGE = Path(__file__).resolve().parents[2] / "docs/contracts.md"


def test_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(compile(example, "docs/contracts.md", "exec"), {})


def rows(*prices: float, start: int = 1) -> pa.Table:
    return pa.table({"id": range(start, start + len(prices)), "price": pa.array(prices, pa.float64())})


def test_jobs_are_held_to_the_contract(tmp_path: Path) -> None:
    lake = tiltyard.connect(str(tmp_path / "root"))
    table = lake.table("orders")
    table.ingest(rows(1, 2))
    table.set_contract("expect(price >= 0)")
    with pytest.raises((TableSchemaValidationError, InvalidInputError), match=r"price = -3.0"):
        table.ingest(rows(-3, 4, start=3), mode="append")
    with pytest.raises((TableSchemaValidationError, InvalidInputError), match=r"price = -5.0"):
        table.upsert(rows(-5), on="id")
    assert table.count() == 2
    assert table.ingest(rows(3, start=3), mode="append").rows == 1
    table.set_contract("expect(price >= 0)", on_failure="reject")
    run = table.ingest(rows(4, -5, -6, start=4), mode="append")
    assert (run.rows, run.figures["rejected"]) == (1, "2")
    folder = tmp_path / "bad"
    run = table.upsert(rows(7, -7, start=1), on="id", rejects=str(folder))
    assert (run.figures["rejected"], table.count()) == ("1", 4)
    (line,) = [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]
    assert line == {"reason": "expect(price >= 0)", "row": {"id": 2, "price": -7.0}}
    parked = list((tmp_path / "root").rglob("_rejects/*.jsonl"))
    assert sum(len(file.read_text().splitlines()) for file in parked) == 2
    with pytest.raises(InvalidInputError, match=r"expect.price < 5."):
        table.ingest(rows(8, start=9), mode="append", checks="expect(price < 5)")
    assert table.test()
