"""Find the rows that a view's source lost and gained between two versions, from its change feed.

A row that was changed twice, moved, or written again as it was is in the feed before and after: such pairs cancel each
other, so that what is left is in the older version, or in the newer one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from lance_namespace.errors import TableVersionNotFoundError

from tiltyard.model.views.changes import FullRefreshRequiredError
from tiltyard.pipeline.changes.groups import CHANGE, CHANGE_FIELDS, Change, ChangeGroup, ChangePlan
from tiltyard.pipeline.changes.planning import plan_changes
from tiltyard.pipeline.changes.row_digests import row_digests
from tiltyard.pipeline.changes.tasks import read_changes
from tiltyard.pipeline.task_errors import RefusedError
from tiltyard.pipeline.views.sources import SourceTable
from tiltyard.pipeline.views.tasks import ChangedRows

MAX_CHANGED_ROWS = 1_000_000
"""Changes that a refresh follows at most: about 200 bytes of each are held in memory."""
MAX_CHANGED_VERSIONS = 5_000
"""Versions whose changes a refresh follows at most: each is opened."""
_FEW_ROWS = 1_000
"""So many changes are followed even of a table that has fewer rows."""
_ROWS_PER_TASK = 65_536
_REMOVING = frozenset({Change.DELETE, Change.UPDATE_BEFORE})


@dataclass(frozen=True, slots=True)
class NetChanges:
    """The rows that a table lost and gained, as tasks that read them."""

    lost: tuple[ChangedRows, ...]
    gained: tuple[ChangedRows, ...]


def find_net_changes(source: SourceTable, since: int, columns: Sequence[str]) -> NetChanges:
    """Return what changed in some columns of a source after a version.

    Raises FullRefreshRequiredError where that is too much, or no longer known.
    """
    plan = _plan(source, since, columns)
    digests: list[bytes] = []
    signs: list[int] = []
    ends: list[int] = []
    open_version = lru_cache(maxsize=2)(source.dataset.checkout_version)
    try:
        for group in plan.groups:
            for batch in read_changes([group], plan.schema, open_version):
                digests += row_digests(batch.columns[len(CHANGE_FIELDS) :])
                signs += [-1 if change in _REMOVING else 1 for change in batch.column(CHANGE).to_pylist()]
            ends.append(len(digests))
    except RefusedError as error:  # a column had another type meanwhile
        raise FullRefreshRequiredError(f"the changes of {source.name} cannot be followed: {error}") from error
    kept = _cancel(digests, signs)
    return NetChanges(*(_split(source, plan, ends, np.flatnonzero(kept == sign)) for sign in (-1, 1)))


def _plan(source: SourceTable, since: int, columns: Sequence[str]) -> ChangePlan:
    """Plan the feed. Raises FullRefreshRequiredError."""
    name, versions = source.name, int(source.dataset.version) - since
    if versions > MAX_CHANGED_VERSIONS:
        raise FullRefreshRequiredError(
            f"rows of {name} were changed, and only {MAX_CHANGED_VERSIONS:,} versions are followed, not {versions:,}"
        )
    try:
        plan = plan_changes(source.dataset, since, columns=columns)
    except (RefusedError, TableVersionNotFoundError) as error:
        raise FullRefreshRequiredError(f"the changes of {name} cannot be followed: {error}") from error
    changed = sum(group.rows for group in plan.groups)
    if changed > MAX_CHANGED_ROWS:
        raise FullRefreshRequiredError(
            f"{changed:,} rows of {name} were changed, and at most {MAX_CHANGED_ROWS:,} changes are followed"
        )
    if changed > max(rows := source.dataset.count_rows(), _FEW_ROWS):
        raise FullRefreshRequiredError(f"{changed:,} rows of {name} were changed, and it has {rows:,}")
    return plan


def _cancel(digests: Sequence[bytes], signs: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
    """Return of each change its sign if no change of equal values and the other sign cancels it, else 0."""
    balance: Counter[bytes] = Counter()
    for digest, sign in zip(digests, signs, strict=True):
        balance[digest] += sign
    kept = np.zeros(len(signs), np.int8)
    for number, (digest, sign) in enumerate(zip(digests, signs, strict=True)):
        if balance[digest] * sign > 0:
            balance[digest] -= sign
            kept[number] = sign
    return kept


def _split(
    source: SourceTable, plan: ChangePlan, ends: Sequence[int], rows: np.ndarray[tuple[int], np.dtype[np.intp]]
) -> tuple[ChangedRows, ...]:
    """Return tasks that read some rows of a plan, by their numbers; `ends` are those after each group's last row."""
    tasks: list[ChangedRows] = []
    groups: list[ChangeGroup] = []
    chosen: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
    read, start = 0, 0
    for group, end in zip(plan.groups, ends, strict=True):
        within = rows[np.searchsorted(rows, start) : np.searchsorted(rows, end)]
        if len(within):
            groups.append(group)
            chosen.append(within - start + read)
            read += end - start
        start = end
        if read and (read >= _ROWS_PER_TASK or end == ends[-1]):
            tasks.append(ChangedRows(source.location, plan.schema, tuple(groups), np.concatenate(chosen).tobytes()))
            groups, chosen, read = [], [], 0
    return tuple(tasks)
