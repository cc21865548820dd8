"""Leave out tests that do not apply, expect failures that are known, and record what came out of each test.

A test that connects to no server, itself or by a fixture, is recorded as such, whatever came out of it.

`PEER_LIST` is a TOML file of patterns of test ids, each with a reason: `[not_applicable]` are left out; `[client]` and
`[on_purpose]` are expected to fail, by a fault of the client or as the server chooses. One of these that passes fails
the run, so that the list stays true; but on a folder ("local"), nothing is expected. `PEER_OUTCOMES` is the file of the
record: a JSON object a line, of which the last of a test counts.
"""

from __future__ import annotations

import fnmatch
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import peer_server
import pytest

LIST: dict[str, dict[str, str]] = tomllib.loads(Path(os.environ["PEER_LIST"]).read_text())
OUTCOMES = Path(os.environ["PEER_OUTCOMES"])
NOT_APPLICABLE = LIST.get("not_applicable", {})
EXPECTED = {"client": "by the client", "on_purpose": "on purpose"}
"""Sections of tests that are expected to fail, and the outcome that is recorded if they do."""
IS_LOCAL = os.environ["PEER_CONNECTION"] == "local"

_connecting_fixtures: set[int] = set()
_connecting_tests: set[str] = set()


def reason_of(test: str, patterns: Mapping[str, str]) -> str | None:
    """Return the reason of the first pattern that has this test id; None if none has."""
    plain = test.replace("[", "(").replace("]", ")")  # brackets are parameters here, not sets of characters
    for pattern, reason in patterns.items():
        if fnmatch.fnmatchcase(plain, pattern.replace("[", "(").replace("]", ")")):
            return reason
    return None


def expected_failure(test: str) -> tuple[str, str] | None:
    """Return the outcome and the reason of a test that is expected to fail; None for any other."""
    for section, outcome in EXPECTED.items():
        if not IS_LOCAL and (reason := reason_of(test, LIST.get(section, {}))) is not None:
            return outcome, reason
    return None


def record(test: str, outcome: str, reason: str) -> None:
    with OUTCOMES.open("a") as file:
        file.write(json.dumps({"test": test, "outcome": outcome, "reason": reason}) + "\n")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kept, left_out = [], []
    for item in items:
        if (reason := reason_of(item.nodeid, NOT_APPLICABLE)) is not None:
            left_out.append(item)
            record(item.nodeid, "not applicable", reason)
            continue
        if (expected := expected_failure(item.nodeid)) is not None:
            item.add_marker(pytest.mark.xfail(reason=expected[1], strict=True))
        kept.append(item)
        record(item.nodeid, "not run", "the run ended before them")  # until its outcome is recorded
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Iterator[None]:
    before = peer_server.connections
    try:
        return (yield)
    finally:
        if peer_server.connections > before:
            _connecting_fixtures.add(id(fixturedef))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    before = peer_server.connections
    try:
        return (yield)
    finally:
        fixtures = {id(fixture) for names in item._fixtureinfo.name2fixturedefs.values() for fixture in names}
        if peer_server.connections > before or fixtures & _connecting_fixtures:
            _connecting_tests.add(item.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        record(report.nodeid, "failed", f"is not collected: {_last_line(report)}")
    elif report.skipped:
        record(report.nodeid, "skipped", _skip_reason(report))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        expected = expected_failure(report.nodeid) if hasattr(report, "wasxfail") else None
        if report.when == "call" and report.nodeid not in _connecting_tests:
            record(report.nodeid, "no connection", "")
        elif expected is not None:
            record(report.nodeid, *expected)
        elif report.skipped:
            record(report.nodeid, "skipped", _skip_reason(report))
        else:
            record(report.nodeid, report.outcome, _last_line(report) if report.failed else "")


def _skip_reason(report: Any) -> str:
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)


def _last_line(report: Any) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash else report.longrepr).strip()[:500]
