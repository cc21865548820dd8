"""The checker itself: no complaint about a correct history, and one about each possible violation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pytest

from tests.faults.soak.checker import check_history
from tests.faults.soak.contents import TornTableError, Version
from tests.faults.soak.journal import Attempt, History, Kind, Outcome, Read, Row, digest_of


@dataclass
class HistoryBuilder:
    """Two tables and their history; each write takes the ten points in time after the previous one."""

    attempts: dict[str, Attempt] = field(default_factory=dict)
    versions: dict[str, list[Version]] = field(default_factory=lambda: {"a": [], "b": []})
    tags: dict[str, dict[str, int]] = field(default_factory=lambda: {"a": {}, "b": {}})
    reads: list[Read] = field(default_factory=list)
    time: int = 0

    def rows(self, table: str, version: int = -1) -> Counter[Row]:
        """The rows of a version."""
        versions = self.versions[table]
        return Counter(versions[version if version < 0 else version - 1].rows) if versions else Counter()

    def add_attempt(self, name: str, kind: Kind, keys: Mapping[str, Iterable[str]], target: int = 0) -> Attempt:
        """Add an acknowledged attempt."""
        keys = {table: tuple(names) for table, names in keys.items()}
        self.time += 10
        attempt = Attempt(name, kind, keys, target, "test", self.time, self.time + 5, Outcome.ACKNOWLEDGED)
        self.attempts[name] = attempt
        return attempt

    def change(self, name: str, **changes: object) -> None:
        """Replace fields of an attempt."""
        self.attempts[name] = replace(self.attempts[name], **changes)

    def publish(
        self, table: str, rows: Iterable[Row], operation: str = "Append", mark: str = "", restored: int = 0
    ) -> None:
        """Add a version of a table."""
        versions = self.versions[table]
        versions.append(Version(len(versions) + 1, operation, Counter(rows), mark, restored))

    def append(self, name: str, table: str, *keys: str) -> None:
        """Add an acknowledged append, and its version."""
        attempt = self.add_attempt(name, Kind.APPEND, {table: keys})
        self.publish(table, [*self.rows(table).elements(), *attempt.rows(table)])

    def batch(self, name: str, *tables: str) -> None:
        """Add a batch of a row for each table, with versions only in `tables`."""
        attempt = self.add_attempt(name, Kind.BATCH, {table: [f"{name}.{table}"] for table in self.versions})
        for table in tables:
            self.publish(table, [*self.rows(table).elements(), *attempt.rows(table)])

    def read(self, table: str, version: int) -> None:
        """Add a read of a version."""
        self.time += 10
        digest = digest_of(self.rows(table, version).elements())
        self.reads.append(Read("reader", table, self.time, self.time + 5, digest))

    def check_history(self) -> list[str]:
        """Return the complaints."""
        return check_history(History(self.attempts, tuple(self.reads)), self.versions, self.tags)

    def assert_complaint(self, *parts: str) -> None:
        """Assert that there is a complaint that has all of these words."""
        complaints = self.check_history()
        assert any(all(part in complaint for part in parts) for complaint in complaints), complaints


@pytest.fixture
def builder() -> HistoryBuilder:
    """Build a correct history with every kind of attempt."""
    correct = HistoryBuilder()
    beginning = correct.add_attempt("beginning", Kind.OVERWRITE, {"a": ["hot"], "b": ["hot"]})
    for table in "ab":
        correct.publish(table, beginning.rows(table), "Overwrite")
    correct.append("one", "a", "1", "2")
    correct.batch("both", "a", "b")
    merged = correct.add_attempt("merged", Kind.MERGE, {"a": ["hot", "3"]})
    unmerged = [row for row in correct.rows("a").elements() if row[0] != "hot"]
    correct.publish("a", [*unmerged, *merged.rows("a")], "Update")
    correct.add_attempt("gone", Kind.DELETE, {"a": ["1"]})
    correct.publish("a", [row for row in correct.rows("a").elements() if row[0] != "1"], "Delete", "gone")
    correct.add_attempt("back", Kind.RESTORE, {"a": []}, 2)
    correct.publish("a", correct.rows("a", 2).elements(), "Restore", restored=2)
    correct.add_attempt("tagged", Kind.TAG, {"a": []}, 3)
    correct.tags["a"]["tagged"] = 3
    correct.read("a", 6)
    correct.read("b", 2)
    return correct


def test_check_history_right_history_has_no_complaint(builder: HistoryBuilder) -> None:
    assert builder.check_history() == []


def test_check_history_lost_row_complains(builder: HistoryBuilder) -> None:
    builder.add_attempt("two", Kind.APPEND, {"a": ["4"]})
    builder.assert_complaint("two", "is lost")


def test_check_history_half_an_append_complains(builder: HistoryBuilder) -> None:
    attempt = builder.add_attempt("two", Kind.APPEND, {"a": ["4", "5"]})
    builder.publish("a", [*builder.rows("a").elements(), *attempt.rows("a")[:1]])
    builder.assert_complaint("version 7", "lacks", "'5'")


def test_check_history_row_lost_by_another_commit_complains(builder: HistoryBuilder) -> None:
    attempt = builder.add_attempt("two", Kind.APPEND, {"a": ["4"]})
    builder.publish("a", [*builder.rows("a", 1).elements(), *attempt.rows("a")])  # as if it had read an old version
    builder.assert_complaint("version 7", "lacks", "'1'")


def test_check_history_doubled_row_complains(builder: HistoryBuilder) -> None:
    builder.append("two", "a", "4")
    builder.publish("a", [*builder.rows("a").elements(), ("4", "two")])
    builder.assert_complaint("two", "more than once", "[7, 8]")
    builder.assert_complaint("version 8", "keys twice")


def test_check_history_row_doubled_in_one_version_complains(builder: HistoryBuilder) -> None:
    attempt = builder.add_attempt("two", Kind.APPEND, {"a": ["4"]})
    builder.publish("a", [*builder.rows("a").elements(), *attempt.rows("a") * 2])
    builder.assert_complaint("version 7", "keys twice")


def test_check_history_refused_row_that_is_there_complains(builder: HistoryBuilder) -> None:
    builder.append("two", "a", "4")
    builder.change("two", outcome=Outcome.REFUSED)
    builder.assert_complaint("two", "refused", "is there: version 7")


@pytest.mark.parametrize("times, complains", [(0, False), (1, False), (2, True)])
def test_check_history_unknown_row_may_be_there_once(builder: HistoryBuilder, times: int, complains: bool) -> None:
    builder.add_attempt("two", Kind.APPEND, {"a": ["4"]})
    for _ in range(times):
        builder.publish("a", [*builder.rows("a").elements(), ("4", "two")])
    builder.change("two", outcome=Outcome.UNKNOWN)
    assert bool(builder.check_history()) == complains


def test_check_history_row_of_nobody_complains(builder: HistoryBuilder) -> None:
    builder.publish("a", [*builder.rows("a").elements(), ("4", "stranger")])
    builder.assert_complaint("stranger", "nobody tried")


def test_check_history_answer_of_another_version_complains(builder: HistoryBuilder) -> None:
    builder.append("two", "a", "4")
    builder.change("two", versions={"a": 8})
    builder.assert_complaint("two", "is version 7; its answer said 8")


def test_check_history_overwrite_that_leaves_rows_complains(builder: HistoryBuilder) -> None:
    attempt = builder.add_attempt("two", Kind.OVERWRITE, {"a": ["hot"]})
    builder.publish("a", [*builder.rows("a").elements(), *attempt.rows("a")], "Overwrite")
    builder.assert_complaint("version 7", "too much")


def test_check_history_merge_that_keeps_the_old_row_complains(builder: HistoryBuilder) -> None:
    attempt = builder.add_attempt("two", Kind.MERGE, {"a": ["hot"]})
    builder.publish("a", [*builder.rows("a").elements(), *attempt.rows("a")], "Update")
    builder.assert_complaint("version 7", "too much")


def test_check_history_delete_that_deletes_too_much_complains(builder: HistoryBuilder) -> None:
    builder.add_attempt("two", Kind.DELETE, {"a": ["1"]})
    builder.publish("a", builder.rows("a", 1).elements(), "Delete", "two")
    builder.assert_complaint("version 7", "Delete", "lacks")


def test_check_history_lost_delete_complains(builder: HistoryBuilder) -> None:
    builder.add_attempt("two", Kind.DELETE, {"a": ["1"]})
    builder.assert_complaint("two", "its rows are there")


def test_check_history_delete_of_nothing_needs_no_version(builder: HistoryBuilder) -> None:
    builder.add_attempt("two", Kind.DELETE, {"a": ["8", "9"]})
    assert builder.check_history() == []


@pytest.mark.parametrize("tables", ["a", "b"])
def test_check_history_half_visible_batch_complains(builder: HistoryBuilder, tables: str) -> None:
    builder.batch("two", *tables)
    builder.assert_complaint("two", "half visible", f"in ['{tables}']")


def test_check_history_reader_that_sees_half_a_batch_complains(builder: HistoryBuilder) -> None:
    builder.batch("two", "a", "b")
    builder.change("two", end=builder.time + 100)  # nobody has heard of it yet
    builder.read("a", 7)
    builder.read("b", 2)
    builder.assert_complaint("b: reader saw version 2, and 3 was there")


def test_check_history_reader_that_sees_a_batch_grow_complains_not(builder: HistoryBuilder) -> None:
    builder.batch("two", "a", "b")
    builder.change("two", end=builder.time + 100)
    builder.read("a", 6)
    builder.read("b", 3)
    builder.read("a", 7)
    assert builder.check_history() == []


def test_check_history_reader_that_misses_what_was_acknowledged_complains(builder: HistoryBuilder) -> None:
    builder.append("two", "a", "4")
    builder.read("a", 5)
    builder.assert_complaint("a: reader saw version 5, and 7 was there")


def test_check_history_reader_that_goes_back_complains(builder: HistoryBuilder) -> None:
    builder.append("two", "a", "4")
    builder.change("two", end=builder.time + 100)
    builder.read("a", 7)
    builder.read("a", 5)
    builder.assert_complaint("a: reader saw version 5, and 7 was there")


def test_check_history_reader_of_what_never_was_complains(builder: HistoryBuilder) -> None:
    builder.reads.append(Read("reader", "a", builder.time + 1, builder.time + 2, digest_of([("9", "ghost")])))
    builder.assert_complaint("a: reader saw rows that no version has")


def test_check_history_write_that_was_overtaken_complains(builder: HistoryBuilder) -> None:
    builder.append("two", "a", "4")
    builder.append("three", "a", "5")
    builder.change("two", start=builder.time + 6, end=builder.time + 9)  # it began after the later version was answered
    builder.assert_complaint("two became version 7, and 8 was there")


@pytest.mark.parametrize("outcome, complains", [("acknowledged", True), ("unknown", False), ("refused", False)])
def test_check_history_lost_restore_complains_if_it_was_acknowledged(
    builder: HistoryBuilder, outcome: str, complains: bool
) -> None:
    builder.add_attempt("two", Kind.RESTORE, {"a": []}, 1)
    builder.change("two", outcome=Outcome(outcome))
    assert bool(builder.check_history()) == complains


def test_check_history_restore_of_other_rows_complains(builder: HistoryBuilder) -> None:
    builder.add_attempt("two", Kind.RESTORE, {"a": []}, 1)
    builder.publish("a", builder.rows("a", 2).elements(), "Restore", restored=1)
    builder.assert_complaint("version 7 restored 1")


def test_check_history_tags_are_compared(builder: HistoryBuilder) -> None:
    builder.add_attempt("two", Kind.TAG, {"a": []}, 1)
    builder.assert_complaint("tag two", "is lost")
    builder.tags["a"]["two"] = 2
    builder.assert_complaint("tag two is of version 2, not 1")
    builder.tags["a"]["two"] = 1
    assert builder.check_history() == []
    builder.change("two", outcome=Outcome.REFUSED)
    builder.assert_complaint("tag two", "was refused")


def test_check_history_version_that_does_not_open_complains(builder: HistoryBuilder) -> None:
    def torn() -> Iterator[Version]:
        yield from builder.versions["a"][:4]
        raise TornTableError("version 5 does not open: no such file")

    complaints = check_history(History(builder.attempts, ()), {**builder.versions, "a": torn()})
    assert any("version 5 does not open" in complaint for complaint in complaints)
