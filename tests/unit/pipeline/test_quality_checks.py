"""Checks of new rows: what each counts, what is a check, and the report of a run."""

from __future__ import annotations

import datetime
import json

import pyarrow as pa
import pytest

from tiltyard.contracts.checks import parse_check, validate_checks
from tiltyard.model.refusals import RefusedError
from tiltyard.pipeline.writing.quality_checks import CheckCounter, judge_counts, report_checks

NOW = datetime.datetime.now(datetime.UTC)
ROWS = pa.record_batch(
    {
        "id": pa.array([1, 2, 3, None], pa.int64()),
        "code": pa.array(["AB12", "b1", None, "AB12x"]),
        "kind": pa.array(["film", "a, b", "play", None]),
        "seen": pa.array([NOW - datetime.timedelta(days=3), NOW - datetime.timedelta(hours=5), None, None],
                         pa.timestamp("ms", "UTC")),
        "day": pa.array([NOW.date() - datetime.timedelta(days=9)] * 4, pa.date32()),
    }
)  # fmt: skip


def judged(*texts: str, rows: pa.RecordBatch = ROWS) -> list[str]:
    """Return what the checks find in the rows, after a schema has been found fit for them."""
    checks = tuple(parse_check(text) for text in texts)
    validate_checks(checks, rows.schema)
    counter = CheckCounter(checks)
    counter.count(rows.slice(0, 3))
    second = CheckCounter(checks)
    second.count(rows.slice(3))
    return [found.sentence for found in judge_counts(checks, rows.num_rows, 1, [counter.failures, second.failures])]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("rows >= 4", ""),
        ("rejected < 1", "1 rejected"),
        ("not_null(id, code)", "2 rows are not"),
        ("between(id, 1, 2)", "1 rows are not"),
        ("matches(code, [A-Z]{2}\\d+)", "2 rows are not"),
        ('matches(code, "[A-Zb]{1,2}\\\\d+x?")', ""),
        ('in_set(kind, film, "a, b", play)', ""),
        ("in_set(kind, film)", "2 rows are not"),
        ("in_set(id, 1, 2, 3)", ""),
        ("freshness(seen, 6h)", ""),
        ("freshness(seen, 4h)", "no row is so new"),
        ("freshness(day, 11d)", ""),
        ("freshness(day, 8d)", "no row is so new"),
    ],
)
def test_check_counts_the_rows_that_are_not_as_it_says(text: str, found: str) -> None:
    assert judged(text) == [found and f"{text}: {found}"]


def test_no_rows_are_not_fresh_and_pass_checks_of_single_rows() -> None:
    assert judged("in_set(kind, x)", "freshness(day, 11d)", rows=ROWS.slice(4)) == [
        "",
        "freshness(day, 11d): no row is so new",
    ]


@pytest.mark.parametrize(
    "text",
    ["unknown(a)", "rows ~ 3", "between(a, 1)", "", "matches(a)", "in_set(a)", "freshness(a)", "warn:", "warn: x"],
)
def test_text_that_is_no_check_is_refused(text: str) -> None:
    with pytest.raises(RefusedError, match="is not a check"):
        parse_check(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("not_null(nothing)", "there is no column 'nothing'"),
        ("between(id, a, b)", "check between"),
        ("in_set(id, one)", "check in_set"),
        ("matches(code, [)", "check matches"),
        ("matches(id, 1)", "check matches"),
        ("freshness(seen, soon)", "'soon' is no age"),
        ("freshness(id, 1d)", "'id' is int64"),
    ],
)
def test_check_that_does_not_fit_its_column_is_refused(text: str, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        validate_checks([parse_check(text)], ROWS.schema)


def test_report_has_each_check_and_a_warning_is_no_failure() -> None:
    checks = [parse_check("warn: rows >= 9"), parse_check("rows >= 1"), parse_check("rejected == 0")]
    results = judge_counts(checks, 4, 1, [])
    assert [result.is_failure for result in results] == [False, False, True]
    assert json.loads(report_checks(results)["checks"]) == [
        {"check": "warn: rows >= 9", "severity": "warn", "passed": False, "found": "4 rows"},
        {"check": "rows >= 1", "severity": "fail", "passed": True},
        {"check": "rejected == 0", "severity": "fail", "passed": False, "found": "1 rejected"},
    ]
    assert report_checks([]) == {}
