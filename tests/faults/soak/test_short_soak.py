"""The short soak test: each variant for a few seconds, with a fixed seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.soak.environment import Variant
from tests.faults.soak.journal import Kind
from tests.faults.soak.run import Plan, run


@pytest.mark.extended
@pytest.mark.parametrize("variant, seconds", [(Variant.EMBEDDED, 6), (Variant.REPLICAS, 6), (Variant.OBJECTS, 8)])
def test_run_with_faults_keeps_every_guarantee(tmp_path: Path, variant: Variant, seconds: float) -> None:
    report = run(Plan(variant, seconds, seed=3, processes=2, patience=5), tmp_path)
    assert not report.complaints, str(report)
    assert report.faults["kill"] >= 1, str(report)  # a slow machine starts servers slowly
    assert report.history.reads, str(report)
    assert report.count(Kind.APPEND), str(report)
    assert report.count(Kind.BATCH) or variant is Variant.OBJECTS, str(report)  # which is slow
