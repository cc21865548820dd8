"""Histories of a table against a model: what its change feed has of each version.

Rows are told apart by stable row ids or by a key; without both, an update is a deletion and an insertion.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.histories import KEYED, PLAIN, STABLE, History, Row
from tiltyard.change_feed.planning import plan_changes
from tiltyard.change_feed.reader import read_changes

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "append", "append", "update", "update", "delete", "delete", "merge", "merge", "overwrite", "compact",
                "restore", "add column", "drop column", "create branch",
            ]
        ),
        st.integers(0, 6),
    ),
    min_size=4,
    max_size=12,
)  # fmt: skip


def read_feed(history: History, since: int) -> dict[int, dict[str, list[Row]]]:
    """Return the rows of the feed, by version and change."""
    on = ["id"] if history.kind == KEYED else []
    plan = plan_changes(history.dataset, since, on=on, branch=history.branch)
    feed: dict[int, dict[str, list[Row]]] = {}
    last = since
    for batch in read_changes(plan.groups, plan.schema, open_version(history)):
        for row in batch.to_pylist():
            change, version, time = row.pop("_change"), row.pop("_version"), row.pop("_timestamp")
            assert version >= last and time.tzinfo is not None
            last = version
            feed.setdefault(version, {}).setdefault(change, []).append(row)
    return feed


def open_version(history: History) -> Any:
    """Return what opens a version of the history's branch."""
    return lambda version: history.dataset.checkout_version((history.branch, version) if history.branch else version)


def texts(rows: Any) -> Counter[str]:
    """Count rows, whatever their order."""
    return Counter(map(str, rows))


@settings(max_examples=12)
@given(st.sampled_from([STABLE, KEYED, PLAIN]), STEPS)
def test_change_feed_of_any_history_has_the_changes_that_the_model_has(kind: str, steps: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as folder:
        history = History.begin(kind, str(Path(folder) / "table"))
        for step, number in steps:
            history.do(step, number)
        names = history.dataset.schema.names
        versions = sorted(history.models)
        since = versions[0] if history.branch else 0
        feed = read_feed(history, since)
        assert feed.keys() <= set(versions)
        for version in versions[1:] if history.branch else versions:
            old, new = (
                {key: {name: row.get(name) for name in names} for key, row in history.models.get(each, {}).items()}
                for each in (version - 1, version)
            )
            changes = {name: texts(rows) for name, rows in feed.get(version, {}).items()}
            nothing = Counter[str]()
            removed = changes.get("delete", nothing) + changes.get("update_before", nothing)
            added = changes.get("insert", nothing) + changes.get("update_after", nothing)
            assert texts(old.values()) - removed + added == texts(new.values()), version
            assert removed <= texts(old.values()), version
            if kind == PLAIN:
                continue
            updated = [key for key in old.keys() & new.keys() if old[key] != new[key]]
            expected = {
                "delete": texts(old[key] for key in old.keys() - new.keys()),
                "insert": texts(new[key] for key in new.keys() - old.keys()),
                "update_before": texts(old[key] for key in updated),
                "update_after": texts(new[key] for key in updated),
            }
            assert changes == {name: rows for name, rows in expected.items() if rows}, version
