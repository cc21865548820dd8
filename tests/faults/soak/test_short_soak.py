"""The short soak test: each variant for a few seconds, with a fixed seed; and endurance."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.soak.endurance import EndurancePlan, endure
from tests.faults.soak.environment import Variant
from tests.faults.soak.journal import Kind
from tests.faults.soak.load import CLIENTS
from tests.faults.soak.run import Plan, run

PROCESS_FIGURES = ("anonymous MiB", "rss MiB", "pss MiB", "descriptors", "threads", "processes")


@pytest.mark.extended
@pytest.mark.parametrize("variant, seconds", [(Variant.EMBEDDED, 6), (Variant.REPLICAS, 6), (Variant.OBJECTS, 8)])
def test_run_with_faults_keeps_every_guarantee(tmp_path: Path, variant: Variant, seconds: float) -> None:
    report = run(Plan(variant, seconds, seed=3, processes=2, patience=5), tmp_path)
    assert not report.complaints, str(report)
    assert report.faults["kill"] >= 1, str(report)  # a slow machine starts servers slowly
    assert report.history.reads, str(report)
    assert report.count(Kind.APPEND), str(report)
    assert report.count(Kind.BATCH) or variant is Variant.OBJECTS, str(report)  # which is slow


@pytest.mark.extended
def test_endurance_run_has_every_kind_of_load_and_all_figures(tmp_path: Path) -> None:
    report = endure(EndurancePlan(10, seed=3, every=2), tmp_path)
    assert not report.complaints, str(report)
    assert {name.partition(".")[0] for name in report.load.done} == {client.__name__ for client in CLIENTS}, str(report)
    judged = {judgement.figure: judgement.most for judgement in report.judgements}
    needed = ("rows.audit", "rows.requests", "catalog.MiB", "disk.root MiB", "cache.Lance's pages MiB", "cache.rights")
    needed += ("server.given out beyond caches MiB", "server.thousand blocks of Python")
    assert set(needed) <= set(judged)
    assert all(judged[f"{role}.{what}"] for role in ("server", "children") for what in PROCESS_FIGURES), str(report)
    lines = (tmp_path / "samples.csv").read_text().splitlines()
    assert len(lines) == len(report.samples) + 1 and lines[0].startswith("seconds,bound.")
