"""Commits that wait for each other: a conflict is tried again on the table as it is then."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from tiltyard.storage.errors import is_conflict, lance_errors
from tiltyard.tables.opening import open_for_writing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import lance

    from tiltyard.context import Context

T = TypeVar("T")

_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 1.0


def commit(
    ctx: Context, names: Sequence[str] | None, branch: str | None, change: Callable[[lance.LanceDataset], T]
) -> tuple[T, int]:
    """What `change` answers, and the version it made; it is given a handle of its own, opened on the latest version.

    `change` checks what it needs of the table and commits once at most: it is run again, on a new handle, when another
    commit came first. Raises what opening a table for writing raises, what `change` raises,
    ConcurrentModificationError after `settings.conflict_timeout` seconds.
    """
    deadline = time.monotonic() + ctx.settings.conflict_timeout
    pause = _FIRST_PAUSE
    while True:
        dataset = open_for_writing(ctx, names, branch=branch).dataset
        try:
            with lance_errors(dataset):
                return change(dataset), dataset.version
        except Exception as error:
            if not is_conflict(error) or time.monotonic() + pause > deadline:
                raise
        time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 — spreads the writers out, keeps no secret
        pause = min(pause * 2, _LONGEST_PAUSE)
