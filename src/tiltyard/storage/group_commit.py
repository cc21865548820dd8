"""Group commit: what several callers want to do to one thing at once is done in one go.

A thread takes all that is waiting, runs it, and comes again for what came meanwhile; no caller needs a thread of its
own to wait in. A lone caller waits for nobody. Callers that came together are expected together again: else the first
to return would have a run for itself, and all the others would wait for that.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    Run: TypeAlias = Callable[[Sequence["Waiting[Any]"]], None]

T = TypeVar("T")

MOST_AT_ONCE = 1024
HOPING_SECONDS = 0.02
"""Who was in a group is expected back for so long at most."""
HOPING_GAP_SECONDS = 0.006
"""And for no longer than this if nobody comes. An event loop reads thirty requests before it begins the first."""
_THREADS = 64
"""As many keys are served at once."""


class Waiting(Generic[T]):
    """One caller's work; `run` sets its `outcome` or its `error`."""

    __slots__ = ("error", "future", "item", "outcome", "run")

    def __init__(self, item: T, run: Run) -> None:
        self.item = item
        self.run = run
        self.outcome: Any = None
        self.error: BaseException | None = None
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()  # it is done, whoever gave up waiting

    def settle(self) -> None:
        """Tell the caller."""
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.outcome)


class _Line:
    """Who waits for one key, guarded by the lock of all lines; `hoped` is how many the next group would like to be."""

    __slots__ = ("full", "hoped", "waiting")

    def __init__(self, lock: threading.Lock, first: Waiting[Any]) -> None:
        self.waiting = deque([first])
        self.hoped = 0
        self.full = threading.Condition(lock)

    def add(self, one: Waiting[Any]) -> None:
        """Stand in line."""
        self.waiting.append(one)
        if len(self.waiting) == self.hoped:
            self.full.notify()

    def take(self) -> list[Waiting[Any]]:
        """Those whose turn it is."""
        return [self.waiting.popleft() for _ in range(min(len(self.waiting), MOST_AT_ONCE))]

    def hope_for(self, callers: int) -> None:
        """Wait until so many more are here, for as long as they come; for one alone nobody waits."""
        self.hoped = min(len(self.waiting) + callers, MOST_AT_ONCE)
        until, seen = time.monotonic() + HOPING_SECONDS, -1
        while seen < len(self.waiting) < self.hoped > 1 and time.monotonic() < until:
            seen = len(self.waiting)
            self.full.wait(HOPING_GAP_SECONDS)
        self.hoped = 0


class Gathering:
    """One line of waiting callers for each key."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, _Line] = {}
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, "gathered")

    def submit(self, key: Hashable, item: T, run: Run) -> Future[Any]:
        """Have `item` run with others of the same key; the future has its outcome, or its error.

        `run(group)` is that of the first in line. It sets every member's outcome or error; what it raises is the error
        of all that have neither.
        """
        mine = Waiting(item, run)
        with self._lock:
            line = self._lines.get(key)
            if line is not None:
                line.add(mine)
                return mine.future
            self._lines[key] = _Line(self._lock, mine)
        self._threads.submit(self._lead, key)
        return mine.future

    def _lead(self, key: Hashable) -> None:
        line = self._lines[key]
        with self._lock:
            group = line.take()
        try:
            group[0].run(group)
        except BaseException as error:  # noqa: BLE001  # whatever it is, nobody may wait for ever
            for member in group:
                if member.outcome is None and member.error is None:
                    member.error = error
        finally:
            for member in group:
                member.settle()
            self._go_on(key, line, len(group))

    def _go_on(self, key: Hashable, line: _Line, callers: int) -> None:
        with self._lock:
            line.hope_for(callers)
            if not line.waiting:
                del self._lines[key]
                return
        self._threads.submit(self._lead, key)
