"""What checks of contracts have found: of the rows of commits, and tests of versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiltyard.store.repository import Record, Repository, reads, writes

if TYPE_CHECKING:
    pass

MAX_TESTS = 1000
"""Tests of a table that are kept: the latest ones."""
INSERT = """
    INSERT INTO table_tests (table_id, tested_at, branch, version, requested_by, passed, results)
    VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
DELETE_OLD = """
    DELETE FROM table_tests WHERE table_id = ? AND tested_at < (
        SELECT min(tested_at) FROM (
            SELECT tested_at FROM table_tests WHERE table_id = ? ORDER BY tested_at DESC LIMIT ?
        ) AS latest
    )
"""
LIST = """
    SELECT tested_at, branch, version, requested_by, passed, results FROM table_tests
    WHERE table_id = ? ORDER BY tested_at DESC LIMIT ?
"""
LIST_COMMITS = """
    SELECT created_at, branch, version, checks FROM table_versions
    WHERE table_id = ? AND checks IS NOT NULL ORDER BY created_at DESC, version DESC LIMIT ?
"""


class TestRecord(Record, frozen=True):
    """A test of a version of a table: `results` as JSON, in the form of TestTable."""

    tested_at: int
    branch: str
    version: int
    requested_by: str
    passed: bool
    results: str


class CheckedVersion(Record, frozen=True):
    """A version whose rows failed checks that warn or reject: `checks` says how many, as JSON."""

    committed_at: int
    branch: str
    version: int
    checks: str


class ContractResults(Repository):
    """The methods for what checks have found."""

    __slots__ = ()

    @writes
    def add_test(self, table_id: int, test: TestRecord) -> None:
        """Keep a test of a table; the oldest beyond MAX_TESTS are deleted."""
        values = test.row
        self.connection.change(INSERT, table_id, *values)
        self.connection.change(DELETE_OLD, table_id, table_id, MAX_TESTS)

    @reads
    def list_tests(self, table_id: int, limit: int) -> list[TestRecord]:
        """Return the latest tests of a table, the latest first."""
        return [TestRecord.of(row) for row in self.connection.rows(LIST, table_id, limit)]

    @reads
    def list_checked_versions(self, table_id: int, limit: int) -> list[CheckedVersion]:
        """Return the latest versions of which checks have found something, the latest first."""
        return [CheckedVersion.of(row) for row in self.connection.rows(LIST_COMMITS, table_id, limit)]
