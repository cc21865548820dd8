"""Retry changes whose commit met a concurrent one, with growing random pauses, until a deadline: then they are 409."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from tiltyard.storage.errors import is_conflict, lance_errors
from tiltyard.store import RequestLeaseLostError
from tiltyard.tables.opening import finish_direct_commit, open_for_writing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import lance

    from tiltyard.context import Context
    from tiltyard.model.branches import Branch

Result = TypeVar("Result")

_FIRST_PAUSE_SECONDS = 0.005
_MAX_PAUSE_SECONDS = 0.5


class ConflictRetry:
    """Decide whether a conflicting write is attempted again, and pause before it is; `seconds` from now at most."""

    def __init__(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds
        self._pause = _FIRST_PAUSE_SECONDS
        self.attempts = 1

    @property
    def remaining_seconds(self) -> float:
        """Return the seconds until the deadline, at least 0."""
        return max(self._deadline - time.monotonic(), 0)

    def wait_or_raise(self, error: BaseException, *, is_overtaken: bool = False) -> None:
        """Pause before another attempt; raise the error if it is no conflict, or the deadline is too close.

        `is_overtaken` says that the error comes of another commit although it is none of the errors of a conflict.
        """
        is_retryable = (is_overtaken or is_conflict(error)) and not isinstance(error, RequestLeaseLostError)
        if not is_retryable or self.remaining_seconds <= self._pause:
            raise error
        time.sleep(self._pause * random.uniform(0.5, 1.0))  # noqa: S311  # spreads writers out, keeps no secret
        self._pause = min(self._pause * 2, _MAX_PAUSE_SECONDS)
        self.attempts += 1


def commit_with_retry(
    ctx: Context, names: Sequence[str] | None, branch: Branch, change: Callable[[lance.LanceDataset], Result]
) -> tuple[Result, int]:
    """Apply `change` to an exclusive handle of a table's latest version; return its result and the new version.

    `change` checks what it needs of the table and commits once at most: after a conflict it runs again, on a new
    handle of the version that is the latest then. Raises what opening a table for writing raises, what `change`
    raises, ConcurrentModificationError after `settings.conflict_timeout` seconds.
    """
    retry = ConflictRetry(ctx.settings.conflict_timeout)
    while True:
        table = open_for_writing(ctx, names, branch=branch)
        dataset = table.dataset
        base = dataset.version
        try:
            with lance_errors(dataset):
                result = change(dataset)
        except Exception as error:  # noqa: BLE001  # raised again unless it is a conflict
            retry.wait_or_raise(error)
            continue
        if not table.record.managed:
            finish_direct_commit(ctx, table.record, branch, dataset.version, is_new=dataset.version != base)
        return result, dataset.version
