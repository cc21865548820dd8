"""Upsert: the rows of a source replace those with the same key, and join the table where there is none. One commit.

    source → fragments (written, not visible) → keys looked up in the table, fragment by fragment → one Lance commit

Keys stay unique beside concurrent writers: the commit goes through `strict`, which looks at everything that was
committed since the lookup before it lets the next version pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import lance
from lance import LanceOperation
from lance_namespace.errors import ConcurrentModificationError, InvalidInputError

from tiltyard.pipeline.changes import brought, changed_fragments, fragments_of
from tiltyard.pipeline.matching import KEYS_AT_ONCE, CheckKeys, Keys, Match, Matched, match, share_keys
from tiltyard.pipeline.session import slots
from tiltyard.pipeline.strict import OvertakenError, StrictTable, checked_columns
from tiltyard.pipeline.tasks import run_tasks

if TYPE_CHECKING:
    from lance.fragment import FragmentMetadata
    from pyspark.sql import SparkSession

    from tiltyard.pipeline.connecting import Table
    from tiltyard.pipeline.runs import Run

ROWS_OF_A_TASK = 4_000_000
ROWS_IN_THE_DRIVER = 500_000
"""Up to so many rows that came in meanwhile are looked through here: a task would be late again."""


@dataclass(frozen=True, slots=True)
class Upserted:
    """What an upsert did; `version` is that of its commit."""

    version: int
    rows: int
    updated: int
    inserted: int

    def figures(self) -> dict[str, object]:
        """For the run."""
        return {"version": self.version, "rows": self.rows, "updated": self.updated, "inserted": self.inserted}


def upsert_fragments(
    run: Run,
    table: Table,
    spark: SparkSession,
    written: Sequence[FragmentMetadata],
    on: Sequence[str],
    *,
    branch: str | None = None,
) -> Upserted:
    """Upsert the rows of fragments that are written in the table's folder and not committed.

    Raises RefusedError (a key that is null or there twice), InvalidInputError (no such column),
    ConcurrentModificationError (the schema changed), RunCanceledError; nothing is changed then.
    """
    strict = StrictTable(table, branch)
    dataset = strict.latest()
    checked_columns(dataset, list(on), "Key columns")
    if not written:
        return Upserted(int(dataset.version), 0, 0, 0)
    keys = Keys.of(table.place(), on, written)
    plan = _Plan(keys, list(written), dataset, branch)
    plan.look(run, spark, check=True)
    while True:
        run.check()
        try:
            version = strict.commit(plan.dataset, plan.operation(), run, verify=plan.admits)
        except OvertakenError:
            plan.renew(run, spark, strict.latest())
            continue
        updated = sum(one.rows for one in plan.matched.values())
        return Upserted(version, keys.rows, updated, keys.rows - updated)


@dataclass(slots=True)
class _Plan:
    """What is to be committed on top of `dataset`."""

    keys: Keys
    written: list[FragmentMetadata]
    dataset: lance.LanceDataset
    branch: str | None
    matched: dict[int, Matched] = field(default_factory=dict)
    seen: lance.LanceDataset = field(init=False)

    def __post_init__(self) -> None:
        self.seen = self.dataset

    def operation(self) -> LanceOperation.Update:
        """The commit: rows with the keys go from their fragments, and the source's fragments come."""
        return LanceOperation.Update(
            removed_fragment_ids=[number for number, one in self.matched.items() if one.left is None],
            updated_fragments=[one.left for one in self.matched.values() if one.left is not None],
            new_fragments=self.written,
            fields_modified=[],
            update_mode="rewrite_rows",
        )

    def look(self, run: Run, spark: SparkSession, numbers: Sequence[int] | None = None, *, check: bool = False) -> None:
        """Find the keys in fragments of `dataset`: these, or all. With `check`, the keys themselves are looked at."""
        there = fragments_of(self.dataset)
        asked = list(there) if numbers is None else list(numbers)
        rows = sum(there[number].num_rows for number in asked)
        run.progress(stage="match", rows_total=rows)
        if numbers is not None and rows <= ROWS_IN_THE_DRIVER and self.keys.rows <= KEYS_AT_ONCE:
            self._take(match(self.dataset, asked, self.keys))
            return
        buckets = math.ceil(self.keys.rows / KEYS_AT_ONCE)
        checks = [CheckKeys(self.keys, bucket, buckets) for bucket in range(buckets)] if check else []
        at_once = slots(spark)
        groups = grouped({number: there[number].num_rows for number in asked}, ROWS_OF_A_TASK, at_once)
        matches = [Match(self.keys, int(self.dataset.version), self.branch, group) for group in groups]
        payloads: list[Match | CheckKeys] = [*matches, *checks]
        for found in run_tasks(spark, run, _work, payloads, name="upsert: match", wave=at_once + 1):
            self._take(found)

    def _take(self, found: Sequence[Matched]) -> None:
        self.matched.update({one.fragment: one for one in found})

    def admits(self, newer: lance.LanceDataset) -> bool:
        """Whether the commit may go behind `newer`: no key of ours came in since, and the schema is the same.

        Lance itself has refused if both touched one fragment.
        """
        came = brought(self.seen, newer)
        if came is None:
            return False
        theirs = Keys.of(self.keys.place, self.keys.on, came)
        if theirs.rows > ROWS_IN_THE_DRIVER or self.keys.rows > KEYS_AT_ONCE or share_keys(self.keys, theirs):
            return False
        self.seen = newer
        return True

    def renew(self, run: Run, spark: SparkSession, newer: lance.LanceDataset) -> None:
        """Plan on a newer version: only fragments that changed are looked at again. Raises as `upsert_fragments`."""
        _check_schema(self.dataset, newer)
        changed = changed_fragments(self.dataset, newer)
        for number in (*changed.gone, *changed.came):
            self.matched.pop(number, None)
        self.dataset = self.seen = newer
        self.look(run, spark, list(changed.came))


def _work(payload: Match | CheckKeys) -> list[Matched]:
    return payload()


def grouped(rows: dict[int, int], most: int, tasks: int) -> list[tuple[int, ...]]:
    """Fragments (their rows by their number) in groups of up to `most` rows, at least as many as there are slots."""
    if not rows:
        return []
    size = min(most, math.ceil(sum(rows.values()) / tasks))
    groups: list[list[int]] = [[]]
    held = 0
    for number, count in rows.items():
        if groups[-1] and held + count > size:
            groups.append([])
            held = 0
        groups[-1].append(number)
        held += count
    return [tuple(group) for group in groups]


def _check_schema(old: lance.LanceDataset, new: lance.LanceDataset) -> None:
    """New columns are fine, they are null in our rows; anything else is not. Raises ConcurrentModificationError."""
    if old.schema == new.schema:
        return
    there = {field.name: field for field in new.schema}
    for column in old.schema:
        if column.name not in there or not column.equals(there[column.name]):
            raise ConcurrentModificationError(
                f"The column '{column.name}' was changed while rows for it were written: run the job again."
            )


def check_whole(source: list[str], table: list[str]) -> None:
    """Raise InvalidInputError if the source lacks a column: an update would have to make its values null."""
    if missing := [name for name in table if name not in source]:
        raise InvalidInputError(
            f"The source lacks {', '.join(missing)}: an upsert replaces whole rows, so give every column of the table."
        )
