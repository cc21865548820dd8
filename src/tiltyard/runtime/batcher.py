"""Batch concurrent work on the same key into one run: group commit.

A shared thread takes everything that is queued, runs it, and repeats for what was queued in the meantime; no caller
needs a thread of its own to wait in. A single caller waits for nobody. After a batch, the next one is delayed briefly
until the callers of the last one are back: else the first of them would get a run of its own, and all the others would
wait for that.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from tiltyard.runtime.machinery import Kind, Machine
from tiltyard.runtime.pool import submit_shared

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    Run: TypeAlias = Callable[[Sequence["PendingItem[Any]"]], None]

T = TypeVar("T")

MAX_BATCH = 1024
REGATHER_SECONDS = 0.02
"""How long at most a batch waits for the callers of the last one."""
REGATHER_GAP_SECONDS = 0.006
"""How long at most it waits for the next of them. An event loop reads thirty requests before it begins the first."""


class PendingItem(Generic[T]):
    """A caller's item in a batch; `run` sets its `outcome` or its `error`."""

    __slots__ = ("error", "future", "item", "outcome", "run")

    def __init__(self, item: T, run: Run) -> None:
        self.item = item
        self.run = run
        self.outcome: Any = None
        self.error: BaseException | None = None
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()  # it runs even if its caller stops waiting

    def settle(self) -> None:
        """Resolve the caller's future."""
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.outcome)


class _Queue:
    """The items queued for one key, guarded by the batcher's lock; `expected` is the size the next batch waits for."""

    __slots__ = ("expected", "full", "gap", "items")

    def __init__(self, lock: threading.Lock, first: PendingItem[Any]) -> None:
        self.items = deque([first])
        self.expected = 0
        self.gap = REGATHER_GAP_SECONDS
        self.full = threading.Condition(lock)

    def add(self, item: PendingItem[Any]) -> None:
        """Queue an item."""
        self.items.append(item)
        if len(self.items) == self.expected:
            self.full.notify()

    def take_batch(self) -> list[PendingItem[Any]]:
        """Remove and return the next batch."""
        return [self.items.popleft() for _ in range(min(len(self.items), MAX_BATCH))]

    def wait_for_callers(self, callers: int) -> None:
        """Wait until so many more items are queued, for as long as they arrive; for a single one nobody waits."""
        self.expected = min(len(self.items) + callers, MAX_BATCH)
        deadline, last_size = time.monotonic() + REGATHER_SECONDS, -1
        while last_size < len(self.items) < self.expected > 1 and time.monotonic() < deadline:
            last_size = len(self.items)
            self.full.wait(self.gap)
        self.expected = 0


class WorkQueue(Machine):
    """Work that waits to be done together, or in turn: what every batcher and queue of a process extends."""

    kind = Kind.BATCHER

    @property
    @abstractmethod
    def waiting(self) -> int:
        """How much waits."""

    def figures(self) -> Mapping[str, float]:
        return {"waiting": self.waiting}

    def close(self) -> None:
        """Take nothing more that nobody waits for. By default nothing is."""


class Batcher(WorkQueue):
    """Queue items by key, and run those of one key in batches. Safe to use from several threads."""

    def __init__(self, name: str, purpose: str) -> None:
        self._queues: dict[Hashable, _Queue] = {}
        self._lock = threading.Lock()
        super().__init__(name, purpose)

    @property
    def waiting(self) -> int:
        with self._lock:
            return sum(len(queue.items) for queue in self._queues.values())

    def figures(self) -> Mapping[str, float]:
        return {**super().figures(), "active": len(self._queues)}

    def submit(self, key: Hashable, item: T, run: Run, gap: float = REGATHER_GAP_SECONDS) -> Future[Any]:
        """Run `item` in a batch with others of the same key; the future gets its outcome, or its error.

        The next batch waits for at most `gap` seconds for each of the last one's callers.

        `run(batch)` is that of the batch's first item. It sets every item's outcome or error; an exception that it
        raises is the error of all items that have neither.
        """
        pending = PendingItem(item, run)
        with self._lock:
            queue = self._queues.get(key)
            if queue is not None:
                queue.gap = gap
                queue.add(pending)
                return pending.future
            self._queues[key] = queue = _Queue(self._lock, pending)
            queue.gap = gap
        submit_shared(self._run_batch, key)
        return pending.future

    def _run_batch(self, key: Hashable) -> None:
        queue = self._queues[key]
        with self._lock:
            batch = queue.take_batch()
        try:
            batch[0].run(batch)
        except BaseException as error:  # noqa: BLE001  # whatever it is, no caller may wait for ever
            for pending in batch:
                if pending.outcome is None and pending.error is None:
                    pending.error = error
        finally:
            for pending in batch:
                pending.settle()
            self._continue(key, queue, len(batch))

    def _continue(self, key: Hashable, queue: _Queue, callers: int) -> None:
        """Start the next batch of a key, or remove its queue if it is empty."""
        with self._lock:
            queue.wait_for_callers(callers)
            if not queue.items:
                del self._queues[key]
                return
        submit_shared(self._run_batch, key)
