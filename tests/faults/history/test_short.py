"""The short form of the long run: each variant for a few seconds, from a seed of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.history.ground import Variant
from tests.faults.history.journal import Kind
from tests.faults.history.run import Plan, run


@pytest.mark.extended
@pytest.mark.parametrize("variant, seconds", [(Variant.EMBEDDED, 6), (Variant.REPLICAS, 6), (Variant.OBJECTS, 8)])
def test_history_of_writers_in_a_storm_keeps_every_promise(tmp_path: Path, variant: Variant, seconds: float) -> None:
    report = run(Plan(variant, seconds, seed=3, processes=2, patience=5), tmp_path)
    assert not report.complaints, str(report)
    assert report.strikes["kill"] >= 1, str(report)  # a slow machine starts servers slowly
    assert report.history.reads, str(report)
    assert report.count(Kind.APPEND), str(report)
    assert report.count(Kind.BATCH) or variant is Variant.OBJECTS, str(report)  # which is slow
