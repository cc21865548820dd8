"""Check new rows before they are published: counts are taken in tasks, and the driver decides.

The words of checks are those of contracts (`tiltyard.contracts.checks`), and so is the evaluator. A check that warns is
in the run's figures, and the rows are published. `unique(id)` and `foreign_key(genre, genres.name)` look at other rows,
too: see `key_checks`. `distribution(score, 0.1)` compares with the last run: see `distribution_checks`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tiltyard.contracts.checks import COMPARE, KEY_CHECKS, QualityCheck, validate_checks
from tiltyard.contracts.contract import PROPERTY, Level, property_contract
from tiltyard.contracts.row_checks import ROW_KINDS, failing_rows

if TYPE_CHECKING:
    from tiltyard.pipeline.catalog_client import Table


_READING_CHECKS = (*KEY_CHECKS, "distribution")
"""Kinds of checks that take more than counts: they read the new rows again."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Whether written rows pass a check; `sentence` says what is wrong with them."""

    check: QualityCheck
    sentence: str = ""

    @property
    def is_failure(self) -> bool:
        """Return whether the rows must not be published."""
        return bool(self.sentence) and not self.check.warns


@dataclass(slots=True)
class CheckCounter:
    """Counts the rows that fail each check, by the check's text; of `freshness`, those that are too old."""

    checks: tuple[QualityCheck, ...]
    failures: dict[str, int] = field(default_factory=dict)

    def count(self, batch: pa.RecordBatch) -> None:
        """Count the failures in a batch. Raises RefusedError."""
        checks = [check for check in self.checks if check.kind in (*ROW_KINDS, "freshness")]
        if not checks:
            return
        for check, failing in zip(checks, failing_rows(checks, pa.Table.from_batches([batch])), strict=True):
            if bad := pc.sum(failing).as_py():
                self.failures[check.text] = self.failures.get(check.text, 0) + bad


def judge_counts(
    checks: Sequence[QualityCheck], rows: int, rejected: int, failures: Sequence[Mapping[str, int]]
) -> list[CheckResult]:
    """Return the result of each check but those that read the rows again."""
    results = []
    for check in checks:
        count = sum(counts.get(check.text, 0) for counts in failures)
        sentence = ""
        if check.kind in ("rows", "rejected"):
            number = rows if check.kind == "rows" else rejected
            if not COMPARE[check.arguments[0]](number, int(check.arguments[1])):
                sentence = f"{check.text}: {number} {check.kind}"
        elif check.kind == "freshness":
            if count >= rows:
                sentence = f"{check.text}: no row is so new"
        elif count:
            sentence = f"{check.text}: {count} rows are not"
        if check.kind not in _READING_CHECKS:
            results.append(CheckResult(check, sentence))
    return results


def report_checks(results: Sequence[CheckResult]) -> dict[str, str]:
    """Return the figure `checks` of a run: JSON, a list of the checks with `passed` and, where not, `found`."""
    if not results:
        return {}
    entries = [
        {
            "check": result.check.text,
            "severity": "warn" if result.check.warns else "fail",
            "passed": not result.sentence,
            **({"found": result.sentence.removeprefix(f"{result.check.text}: ")} if result.sentence else {}),
        }
        for result in results
    ]
    return {"checks": json.dumps(entries)}


def rejecting_checks(table: Table, rows: pa.Schema) -> tuple[QualityCheck, ...]:
    """Return the checks by which a table's contract rejects rows that have these columns; none without a contract.

    Raises RefusedError for a column of a type that a check does not take, TableNotFoundError.
    """
    text = (table.describe().properties or {}).get(PROPERTY)
    if text is None:
        return ()
    checks = [each.check for each in property_contract(text).row_checks(Level.REJECT)]
    validate_checks(checks, rows)
    return tuple(checks)
