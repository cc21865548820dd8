"""Group commit: what several threads want to do to one thing at once is done in one go.

The first to come leads: it takes all that is waiting, runs it, and hands the lead to the next in line. Under load a
group is whatever came while the one before it ran, so nobody waits for company.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

T = TypeVar("T")

MOST_AT_ONCE = 1024


class Waiting(Generic[T]):
    """One caller's work; whoever leads sets its `outcome` or its `error`."""

    __slots__ = ("_ready", "error", "item", "leads", "outcome")

    def __init__(self, item: T) -> None:
        self.item = item
        self.outcome: Any = None
        self.error: BaseException | None = None
        self.leads = False
        self._ready = threading.Event()

    def wait(self) -> None:
        """Until the work is done, or the lead is handed over."""
        self._ready.wait()
        self._ready.clear()

    def wake(self) -> None:
        """Let `wait` return."""
        self._ready.set()


class Gathering:
    """One line of waiting callers for each key."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[Waiting[Any]]] = {}
        self._lock = threading.Lock()

    def submit(self, key: Hashable, item: T, run: Callable[[Sequence[Waiting[T]]], None]) -> Any:
        """Run `item` with others of the same key and return its outcome, or raise its error.

        `run` is given a group with `item` in it, and sets every member's outcome or error; what it raises is the
        error of all that have neither.
        """
        mine = Waiting(item)
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                self._lines[key] = deque()
                mine.leads = True
            else:
                line.append(mine)
        if not mine.leads:
            mine.wait()
        if mine.leads:
            self._lead(key, mine, run)
        if mine.error is not None:
            raise mine.error
        return mine.outcome

    def _lead(self, key: Hashable, mine: Waiting[T], run: Callable[[Sequence[Waiting[T]]], None]) -> None:
        with self._lock:
            line = self._lines[key]
            group = [mine, *(line.popleft() for _ in range(min(len(line), MOST_AT_ONCE - 1)))]
        try:
            run(group)
        except BaseException as error:  # noqa: BLE001  # whatever it is, nobody may wait for ever
            for member in group:
                if member.outcome is None and member.error is None:
                    member.error = error
        finally:
            self._hand_over(key)
            for member in group[1:]:
                member.wake()

    def _hand_over(self, key: Hashable) -> None:
        with self._lock:
            line = self._lines[key]
            if not line:
                del self._lines[key]
                return
            heir = line.popleft()
        heir.leads = True
        heir.wake()
