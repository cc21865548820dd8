"""The queue by which records leave a process: a thread of its own hands over what waits, in order, in batches.

Not a `runtime.batcher.Batcher`: most records have no caller that waits, what waits is bounded, failed batches may be
handed over again, and closing is limited in time.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections import deque
from typing import Generic, TypeVar

from tiltyard.runtime.batcher import WorkQueue

T = TypeVar("T")

FLUSH_SECONDS = 0.5
"""How often records that nobody waits for are handed over."""


class RecordQueue(WorkQueue, Generic[T]):
    """Records on their way to the catalog, or to another server. `add` may be called from any thread."""

    max_batch = 1
    """Records that are handed over at once."""

    def __init__(self, thread_name: str) -> None:
        self._thread_name = thread_name
        self._queue: deque[T] = deque()
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        super().__init__("audit", "Records of requests on their way to the catalog, and to another server")

    @property
    def waiting(self) -> int:
        return len(self._queue)

    def add(self, record: T) -> None:
        """Queue a record, whatever waits already."""
        self._queue.append(record)
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name=self._thread_name, daemon=True)
                    self._thread.start()

    def hand_over_soon(self) -> None:
        """Hand over what waits at once, in the thread."""
        self._wake.set()

    def end(self, seconds: float) -> None:
        """Hand over what waits, for so long at most; no record may be added after this. Idempotent."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(seconds)

    @abstractmethod
    def hand_over(self, batch: list[T]) -> None:
        """Hand over records, in the thread. Raises nothing."""

    def hand_over_again(self) -> None:
        """Hand over what could not be before, in the thread, after all that waits. By default nothing is."""

    def _run(self) -> None:
        closing = False
        while not closing:
            self._wake.wait(FLUSH_SECONDS)
            self._wake.clear()
            closing = self._closing  # read first: so all that was added before the end is tried once more
            while self._queue:
                self.hand_over([self._queue.popleft() for _ in range(min(self.max_batch, len(self._queue)))])
            self.hand_over_again()
