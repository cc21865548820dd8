"""Group commit: what several callers want to do to one thing at once is done in one go.

A thread takes all that is waiting, runs it, and comes again for what came meanwhile: nobody waits for company, and no
caller needs a thread of its own to wait in.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

T = TypeVar("T")

MOST_AT_ONCE = 1024
_THREADS = 64
"""As many keys are served at once."""


class Waiting(Generic[T]):
    """One caller's work; `run` sets its `outcome` or its `error`."""

    __slots__ = ("error", "future", "item", "outcome", "run")

    def __init__(self, item: T, run: Callable[[Sequence[Waiting[T]]], None]) -> None:
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


class Gathering:
    """One line of waiting callers for each key."""

    def __init__(self) -> None:
        self._lines: dict[Hashable, deque[Waiting[Any]]] = {}
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, "gathered")

    def submit(self, key: Hashable, item: T, run: Callable[[Sequence[Waiting[T]]], None]) -> Future[Any]:
        """Have `item` run with others of the same key; the future has its outcome, or its error.

        `run` is that of the first of a group. It is given the group, and sets every member's outcome or error; what it
        raises is the error of all that have neither.
        """
        mine = Waiting(item, run)
        with self._lock:
            line = self._lines.get(key)
            if line is not None:
                line.append(mine)
                return mine.future
            self._lines[key] = deque([mine])
        self._threads.submit(self._lead, key)
        return mine.future

    def _lead(self, key: Hashable) -> None:
        with self._lock:
            line = self._lines[key]
            group = [line.popleft() for _ in range(min(len(line), MOST_AT_ONCE))]
        try:
            group[0].run(group)
        except BaseException as error:  # noqa: BLE001  # whatever it is, nobody may wait for ever
            for member in group:
                if member.outcome is None and member.error is None:
                    member.error = error
        finally:
            self._go_on(key)
            for member in group:
                member.settle()

    def _go_on(self, key: Hashable) -> None:
        with self._lock:
            if not self._lines[key]:
                del self._lines[key]
                return
        self._threads.submit(self._lead, key)
