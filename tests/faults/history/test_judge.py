"""The judge itself: no complaint about a correct history, and one about each possible violation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pytest

from tests.faults.history.contents import TornTableError, Version
from tests.faults.history.journal import Attempt, History, Kind, Outcome, Read, Row, digest_of
from tests.faults.history.judge import judge


@dataclass
class Story:
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

    def tell(self, name: str, kind: Kind, keys: Mapping[str, Iterable[str]], target: int = 0) -> Attempt:
        """Add an acknowledged attempt."""
        keys = {table: tuple(mine) for table, mine in keys.items()}
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
        attempt = self.tell(name, Kind.APPEND, {table: keys})
        self.publish(table, [*self.rows(table).elements(), *attempt.rows(table)])

    def batch(self, name: str, *tables: str) -> None:
        """Add a batch of a row for each table, with versions only in `tables`."""
        attempt = self.tell(name, Kind.BATCH, {table: [f"{name}.{table}"] for table in self.versions})
        for table in tables:
            self.publish(table, [*self.rows(table).elements(), *attempt.rows(table)])

    def read(self, table: str, version: int) -> None:
        """Add a read of a version."""
        self.time += 10
        digest = digest_of(self.rows(table, version).elements())
        self.reads.append(Read("reader", table, self.time, self.time + 5, digest))

    def judge(self) -> list[str]:
        """Return the complaints."""
        return judge(History(self.attempts, tuple(self.reads)), self.versions, self.tags)

    def check(self, *words: str) -> None:
        """Assert that there is a complaint that has all of these words."""
        found = self.judge()
        assert any(all(word in complaint for word in words) for complaint in found), found


@pytest.fixture
def story() -> Story:
    """Build a correct history with every kind of attempt."""
    told = Story()
    beginning = told.tell("beginning", Kind.OVERWRITE, {"a": ["hot"], "b": ["hot"]})
    for table in "ab":
        told.publish(table, beginning.rows(table), "Overwrite")
    told.append("one", "a", "1", "2")
    told.batch("both", "a", "b")
    merged = told.tell("merged", Kind.MERGE, {"a": ["hot", "3"]})
    kept = [row for row in told.rows("a").elements() if row[0] != "hot"]
    told.publish("a", [*kept, *merged.rows("a")], "Update")
    told.tell("gone", Kind.DELETE, {"a": ["1"]})
    told.publish("a", [row for row in told.rows("a").elements() if row[0] != "1"], "Delete", "gone")
    told.tell("back", Kind.RESTORE, {"a": []}, 2)
    told.publish("a", told.rows("a", 2).elements(), "Restore", restored=2)
    told.tell("tagged", Kind.TAG, {"a": []}, 3)
    told.tags["a"]["tagged"] = 3
    told.read("a", 6)
    told.read("b", 2)
    return told


def test_judge_right_history_has_no_complaint(story: Story) -> None:
    assert story.judge() == []


def test_judge_lost_row_complains(story: Story) -> None:
    story.tell("two", Kind.APPEND, {"a": ["4"]})
    story.check("two", "is lost")


def test_judge_half_an_append_complains(story: Story) -> None:
    attempt = story.tell("two", Kind.APPEND, {"a": ["4", "5"]})
    story.publish("a", [*story.rows("a").elements(), *attempt.rows("a")[:1]])
    story.check("version 7", "lacks", "'5'")


def test_judge_row_lost_by_another_commit_complains(story: Story) -> None:
    attempt = story.tell("two", Kind.APPEND, {"a": ["4"]})
    story.publish("a", [*story.rows("a", 1).elements(), *attempt.rows("a")])  # as if it had read an old version
    story.check("version 7", "lacks", "'1'")


def test_judge_doubled_row_complains(story: Story) -> None:
    story.append("two", "a", "4")
    story.publish("a", [*story.rows("a").elements(), ("4", "two")])
    story.check("two", "more than once", "[7, 8]")
    story.check("version 8", "keys twice")


def test_judge_row_doubled_in_one_version_complains(story: Story) -> None:
    attempt = story.tell("two", Kind.APPEND, {"a": ["4"]})
    story.publish("a", [*story.rows("a").elements(), *attempt.rows("a") * 2])
    story.check("version 7", "keys twice")


def test_judge_refused_row_that_is_there_complains(story: Story) -> None:
    story.append("two", "a", "4")
    story.change("two", outcome=Outcome.REFUSED)
    story.check("two", "refused", "is there: version 7")


@pytest.mark.parametrize("times, complains", [(0, False), (1, False), (2, True)])
def test_judge_unknown_row_may_be_there_once(story: Story, times: int, complains: bool) -> None:
    story.tell("two", Kind.APPEND, {"a": ["4"]})
    for _ in range(times):
        story.publish("a", [*story.rows("a").elements(), ("4", "two")])
    story.change("two", outcome=Outcome.UNKNOWN)
    assert bool(story.judge()) == complains


def test_judge_row_of_nobody_complains(story: Story) -> None:
    story.publish("a", [*story.rows("a").elements(), ("4", "stranger")])
    story.check("stranger", "nobody tried")


def test_judge_answer_of_another_version_complains(story: Story) -> None:
    story.append("two", "a", "4")
    story.change("two", versions={"a": 8})
    story.check("two", "is version 7; its answer said 8")


def test_judge_overwrite_that_leaves_rows_complains(story: Story) -> None:
    attempt = story.tell("two", Kind.OVERWRITE, {"a": ["hot"]})
    story.publish("a", [*story.rows("a").elements(), *attempt.rows("a")], "Overwrite")
    story.check("version 7", "too much")


def test_judge_merge_that_keeps_the_old_row_complains(story: Story) -> None:
    attempt = story.tell("two", Kind.MERGE, {"a": ["hot"]})
    story.publish("a", [*story.rows("a").elements(), *attempt.rows("a")], "Update")
    story.check("version 7", "too much")


def test_judge_delete_that_deletes_too_much_complains(story: Story) -> None:
    story.tell("two", Kind.DELETE, {"a": ["1"]})
    story.publish("a", story.rows("a", 1).elements(), "Delete", "two")
    story.check("version 7", "Delete", "lacks")


def test_judge_lost_delete_complains(story: Story) -> None:
    story.tell("two", Kind.DELETE, {"a": ["1"]})
    story.check("two", "its rows are there")


def test_judge_delete_of_nothing_needs_no_version(story: Story) -> None:
    story.tell("two", Kind.DELETE, {"a": ["8", "9"]})
    assert story.judge() == []


@pytest.mark.parametrize("tables", ["a", "b"])
def test_judge_half_visible_batch_complains(story: Story, tables: str) -> None:
    story.batch("two", *tables)
    story.check("two", "half visible", f"in ['{tables}']")


def test_judge_reader_that_sees_half_a_batch_complains(story: Story) -> None:
    story.batch("two", "a", "b")
    story.change("two", end=story.time + 100)  # nobody has heard of it yet
    story.read("a", 7)
    story.read("b", 2)
    story.check("b: reader saw version 2, and 3 was there")


def test_judge_reader_that_sees_a_batch_grow_complains_not(story: Story) -> None:
    story.batch("two", "a", "b")
    story.change("two", end=story.time + 100)
    story.read("a", 6)
    story.read("b", 3)
    story.read("a", 7)
    assert story.judge() == []


def test_judge_reader_that_misses_what_was_acknowledged_complains(story: Story) -> None:
    story.append("two", "a", "4")
    story.read("a", 5)
    story.check("a: reader saw version 5, and 7 was there")


def test_judge_reader_that_goes_back_complains(story: Story) -> None:
    story.append("two", "a", "4")
    story.change("two", end=story.time + 100)
    story.read("a", 7)
    story.read("a", 5)
    story.check("a: reader saw version 5, and 7 was there")


def test_judge_reader_of_what_never_was_complains(story: Story) -> None:
    story.reads.append(Read("reader", "a", story.time + 1, story.time + 2, digest_of([("9", "ghost")])))
    story.check("a: reader saw rows that no version has")


def test_judge_write_that_was_overtaken_complains(story: Story) -> None:
    story.append("two", "a", "4")
    story.append("three", "a", "5")
    story.change("two", start=story.time + 6, end=story.time + 9)  # it began after the later version was answered
    story.check("two became version 7, and 8 was there")


@pytest.mark.parametrize("outcome, complains", [("acknowledged", True), ("unknown", False), ("refused", False)])
def test_judge_lost_restore_complains_if_it_was_acknowledged(story: Story, outcome: str, complains: bool) -> None:
    story.tell("two", Kind.RESTORE, {"a": []}, 1)
    story.change("two", outcome=Outcome(outcome))
    assert bool(story.judge()) == complains


def test_judge_restore_of_other_rows_complains(story: Story) -> None:
    story.tell("two", Kind.RESTORE, {"a": []}, 1)
    story.publish("a", story.rows("a", 2).elements(), "Restore", restored=1)
    story.check("version 7 restored 1")


def test_judge_tags_are_compared(story: Story) -> None:
    story.tell("two", Kind.TAG, {"a": []}, 1)
    story.check("tag two", "is lost")
    story.tags["a"]["two"] = 2
    story.check("tag two is of version 2, not 1")
    story.tags["a"]["two"] = 1
    assert story.judge() == []
    story.change("two", outcome=Outcome.REFUSED)
    story.check("tag two", "was refused")


def test_judge_version_that_does_not_open_complains(story: Story) -> None:
    def torn() -> Iterator[Version]:
        yield from story.versions["a"][:4]
        raise TornTableError("version 5 does not open: no such file")

    found = judge(History(story.attempts, ()), {**story.versions, "a": torn()})
    assert any("version 5 does not open" in complaint for complaint in found)
