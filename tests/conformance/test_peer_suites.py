"""The runner of other projects' test suites: what it counts, and what it says where it has no sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.peers import suites
from tests.conformance.peers.suites import SUITES, VERSION, Outcome, Result


def test_suites_without_sources_are_skipped_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEER_SUITES", str(tmp_path))
    results = suites.observe()
    assert [result.skipped.count("\n") for result in results] == [0] * len(SUITES)
    assert {result.skipped for result in results} == {
        f"PEER_SUITES has no folder {name}" for name in ("lancedb", "lance", "lance-ray")
    }
    assert suites.failures(results) == []
    assert suites.table(results).count(suites.NOT_RUN) == len(SUITES)


def test_only_failures_that_a_folder_does_not_have_count() -> None:
    outcomes = [Outcome("a", "passed", ""), Outcome("b", "failed", "boom"), Outcome("c", "failed", "bang\nmore")]
    baseline = [
        Outcome("a", "failed", "x"),
        Outcome("b", "failed", "boom"),
        Outcome("c", "failed", "Timeout (>9s) from pytest-timeout."),
    ]
    result = Result(SUITES["remote"], suites.without_failing_on_folders(outcomes, baseline))
    assert result.named("not applicable") == [Outcome("b", "not applicable", VERSION)]
    assert suites.failures([result]) == [f"{SUITES['remote'].title}: c: bang more"]
    assert "| 2 | 1 | 1 |" in suites.table([result])
