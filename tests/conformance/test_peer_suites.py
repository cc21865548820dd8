"""The runner of other projects' test suites: what it counts, and what it says where it has no sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.peers import suites
from tests.conformance.peers.suites import SUITES, VERSION, Outcome, Result


def test_suites_without_sources_are_skipped_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEER_SUITES", str(tmp_path))
    results = [suites.observe(name) for name in SUITES]
    assert [result.skipped for result in results] == [
        f"PEER_SUITES has no folder {suite.project.name}" for suite in SUITES.values()
    ]


def test_only_failures_that_a_folder_does_not_have_count() -> None:
    outcomes = [
        Outcome("a", "passed", ""),
        Outcome("b", "failed", "boom"),
        Outcome("c", "failed", "bang\nmore"),
        Outcome("d", "by the client", "no such call"),
        Outcome("e", "on purpose", "allowed here"),
    ]
    baseline = [
        Outcome("a", "failed", "x"),
        Outcome("b", "failed", "boom"),
        Outcome("c", "failed", "Timeout (>9s) from pytest-timeout."),
    ]
    result = Result(SUITES["remote"], suites.without_failing_on_folders(outcomes, baseline))
    assert result.named("not applicable") == [Outcome("b", "not applicable", VERSION)]
    assert suites.failures(result) == [f"{SUITES['remote'].title}: c: bang more"]
    page = suites.table(result)
    assert "| 4 | 1 | 1 | 1 | 1 |" in page
    assert all(f"| {reason} | 1 |" in page for reason in ("no such call", "allowed here", "c: not expected", VERSION))


def test_tests_of_a_run_that_was_stopped_are_not_run() -> None:
    outcomes = [Outcome("a", "passed", ""), Outcome("b", "not run", "the run ended before them")]
    page = suites.table(Result(SUITES["lance-ray"], outcomes))
    assert "| 1 | 1 | 0 | 0 | 0 |" in page and "why tests were not run | tests |" in page
