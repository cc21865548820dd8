"""Tables whose pending versions could not be finalized: when each is tried again, so that none keeps others waiting."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    Pending: TypeAlias = Callable[[int, int], list[int]]
    """Return the ids of tables with pending versions: beyond an id, and at most so many."""

MOST_TABLES = 100
"""Tables of one turn."""
_PAGE = 1000
_MOST_PAGES = 10
"""Ids that are looked through in one turn: a hundred thousand tables that wait do not make it long."""
FIRST_MS = 2_000
LONGEST_MS = 300_000


@dataclass(frozen=True, slots=True)
class _Failure:
    times: int
    due_at: int


class Retries:
    """What one process knows of them. Safe to use from several threads.

    Turns go round the tables by their ids, from where the last one ended.
    """

    def __init__(self) -> None:
        self._failures: dict[int, _Failure] = {}
        self._after = 0
        self._lock = threading.Lock()

    def next_tables(self, pending: Pending, now: int) -> list[int]:
        """Return the tables of the next turn, without those that wait for a later one."""
        with self._lock:
            start, after = self._after, self._after
        taken: list[int] = []
        for _ in range(_MOST_PAGES):
            page = pending(after, _PAGE)
            for table_id in page:
                after = table_id
                if self._is_due(table_id, now):
                    taken.append(table_id)
                    if len(taken) == MOST_TABLES:
                        break
            if len(taken) == MOST_TABLES:
                break
            if len(page) < _PAGE:  # the last one: begin again, and end where this turn began
                if not start:
                    after = 0
                    break
                start = after = 0
        with self._lock:
            self._after = after
        return list(dict.fromkeys(taken))

    def failed(self, table_id: int, now: int) -> int:
        """Note that a table could not be finished; return for how long it is left alone, in milliseconds."""
        with self._lock:
            known = self._failures.get(table_id)
            times = known.times + 1 if known else 1
            pause = min(LONGEST_MS, FIRST_MS << min(times - 1, 20))
            pause = int(pause * random.uniform(0.8, 1))  # noqa: S311  # out of step with other processes
            self._failures[table_id] = _Failure(times, now + pause)
            if len(self._failures) > _PAGE * _MOST_PAGES:
                self._forget_old(now)
        return pause

    def succeeded(self, table_id: int) -> None:
        """Forget that a table failed."""
        with self._lock:
            self._failures.pop(table_id, None)

    def _is_due(self, table_id: int, now: int) -> bool:
        with self._lock:
            failure = self._failures.get(table_id)
        return failure is None or failure.due_at <= now

    def _forget_old(self, now: int) -> None:
        """Forget tables that nobody has tried for long: they were finished by others, or dropped."""
        self._failures = {key: one for key, one in self._failures.items() if one.due_at + 2 * LONGEST_MS > now}
