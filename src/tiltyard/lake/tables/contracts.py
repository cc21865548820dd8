"""The contract of a table, and the results of its tests, as the API shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tiltyard.lake.display import render_table

OnFailure = Literal["fail", "reject", "warn"]
Clients = Literal["check", "refuse"]


@dataclass(frozen=True, slots=True)
class TableContract:
    """What rows of a table have to be: `checks`, what happens to those that fail, and to commits of clients.

    `tests` and `commits` are the latest tests, and versions of which checks have found something, as dicts.
    """

    checks: tuple[str, ...]
    on_failure: str
    clients: str
    tests: tuple[Mapping[str, Any], ...] = ()
    commits: tuple[Mapping[str, Any], ...] = ()

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> TableContract:
        """Return the contract of a response."""
        tests, commits = tuple(described.get("tests") or ()), tuple(described.get("commits") or ())
        return cls(tuple(described["checks"]), described["on_failure"], described["clients"], tests, commits)


@dataclass(frozen=True, slots=True)
class TestResult:
    """The result of a test: whether it `passed`, the `version` it read, and what was found, a dict for each check.

    A result that has not passed is false.
    """

    __test__ = False  # pytest's word, too

    passed: bool
    version: int
    results: tuple[Mapping[str, Any], ...]

    def __bool__(self) -> bool:
        return self.passed

    @property
    def failures(self) -> tuple[Mapping[str, Any], ...]:
        """Return the results of the checks that failed, warnings included."""
        return tuple(result for result in self.results if not result["passed"])

    def _repr_html_(self) -> str:
        rows = [(result["check"], result["level"], result.get("found") or "passed") for result in self.results]
        return render_table(("check", "level", "found"), rows)
