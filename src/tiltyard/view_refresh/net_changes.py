"""Find the rows that a view's source lost and gained between two versions, from its change feed.

A row that was changed twice, moved, or written again as it was is in the feed before and after: such pairs cancel each
other, so that what is left is in the older version, or in the newer one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from lance_namespace.errors import TableVersionNotFoundError

from tiltyard.change_feed.groups import CHANGE, CHANGE_FIELDS, Change, ChangeGroup, ChangePlan
from tiltyard.change_feed.planning import plan_changes
from tiltyard.change_feed.reader import read_groups
from tiltyard.change_feed.row_digests import row_digests
from tiltyard.model.refusals import RefusedError
from tiltyard.view_refresh.net_rows import NetRows
from tiltyard.view_refresh.source_changes import FullRefreshRequiredError

if TYPE_CHECKING:
    import lance

    from tiltyard.change_feed.reader import OpenVersion

MAX_CHANGED_ROWS = 1_000_000
"""Changes that a refresh follows at most: about 200 bytes of each are held in memory."""
MAX_CHANGED_VERSIONS = 5_000
"""Versions whose changes a refresh follows at most: each is opened."""
_FEW_ROWS = 1_000
"""So many changes are followed even of a table that has fewer rows."""
_ROWS_PER_PART = 65_536
_REMOVING = frozenset({Change.DELETE, Change.UPDATE_BEFORE})


@dataclass(frozen=True, slots=True)
class NetChanges:
    """The rows that a table lost and gained, each in parts for tasks of similar size."""

    lost: tuple[NetRows, ...]
    gained: tuple[NetRows, ...]


def find_net_changes(
    name: str,
    dataset: lance.LanceDataset,
    since: int,
    columns: Sequence[str],
    *,
    branch: str | None = None,
    max_rows: int = MAX_CHANGED_ROWS,
) -> NetChanges:
    """Return what changed in some columns of a source after a version, of `branch` if the dataset is.

    Raises FullRefreshRequiredError where that is too much, or no longer known.
    """
    plan = _plan(name, dataset, since, columns, branch, max_rows)
    digests: list[bytes] = []
    signs: list[int] = []
    ends: list[int] = []
    try:
        for batches in read_groups(plan.groups, plan.schema, version_opener(dataset, branch)):
            for batch in batches:
                digests += row_digests(batch.columns[len(CHANGE_FIELDS) :])
                signs += [-1 if change in _REMOVING else 1 for change in batch.column(CHANGE).to_pylist()]
            ends.append(len(digests))
    except RefusedError as error:  # a column had another type meanwhile
        raise FullRefreshRequiredError(f"the changes of {name} cannot be followed: {error}") from error
    kept = _cancel(digests, signs)
    return NetChanges(*(_split(plan, ends, np.flatnonzero(kept == sign)) for sign in (-1, 1)))


def version_opener(dataset: lance.LanceDataset, branch: str | None) -> OpenVersion:
    """Return what opens the versions that a change feed reads."""
    return lambda version: dataset.checkout_version((branch, version) if branch else version)


def _plan(
    name: str, dataset: lance.LanceDataset, since: int, columns: Sequence[str], branch: str | None, max_rows: int
) -> ChangePlan:
    """Plan the feed. Raises FullRefreshRequiredError."""
    versions = int(dataset.version) - since
    if versions > MAX_CHANGED_VERSIONS:
        raise FullRefreshRequiredError(
            f"rows of {name} were changed, and only {MAX_CHANGED_VERSIONS:,} versions are followed, not {versions:,}"
        )
    try:
        plan = plan_changes(dataset, since, columns=columns, branch=branch)
    except (RefusedError, TableVersionNotFoundError) as error:
        raise FullRefreshRequiredError(f"the changes of {name} cannot be followed: {error}") from error
    changed = sum(group.rows for group in plan.groups)
    if changed > max_rows:
        raise FullRefreshRequiredError(
            f"{changed:,} rows of {name} were changed, and at most {max_rows:,} changes are followed"
        )
    if changed > max(rows := dataset.count_rows(), _FEW_ROWS):
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
    plan: ChangePlan, ends: Sequence[int], rows: np.ndarray[tuple[int], np.dtype[np.intp]]
) -> tuple[NetRows, ...]:
    """Return some rows of a plan, by their numbers, in parts; `ends` are the numbers after each group's last row."""
    parts: list[NetRows] = []
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
        if read and (read >= _ROWS_PER_PART or end == ends[-1]):
            parts.append(NetRows(plan.schema, tuple(groups), np.concatenate(chosen).tobytes()))
            groups, chosen, read = [], [], 0
    return tuple(parts)
