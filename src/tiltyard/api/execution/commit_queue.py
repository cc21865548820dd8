"""Let clients that commit to one table, and keep losing to each other, take turns.

Stock pylance asks for the latest version, writes a manifest on top of it, and commits that by CreateTableVersion. Of
eight that do so at once one wins; each of the others waits for a random time, retries, and gives up when it has lost
twenty times. So for a while after a commit was lost, writers of the table get its latest version in turn: the next one
when the commit of the one before has come, or when that takes too long. Turns decide nothing: who wins a version is up
to the catalog, as ever, and a client that has waited for long goes on without a turn. A client that has lost retries
its commit without asking for the latest version, so it has no turn: all others wait a moment for it, or it would lose
again, or get ahead of a client that has a turn.

A client is identified by its connection. Only those that have just committed to the table wait; other readers do not.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import ConcurrentModificationError

from tiltyard.model.branches import Branch
from tiltyard.runtime.batcher import WorkQueue

if TYPE_CHECKING:
    from tiltyard.api.exchange import Exchange
    from tiltyard.api.execution.threaded import Execution
    from tiltyard.context import Context
    from tiltyard.storage.locks import AcquiredLock, Locks

TURN_SECONDS = 0.03
"""How long a turn lasts at most. Small appends need a third of it; larger ones lose as seldom as they come."""
PATIENCE_SECONDS = 0.5
"""How long a client waits for its turn at most."""
CONTENDED_SECONDS = 5.0
"""How long there are turns after a client lost a commit, or waited, and how long a commit makes a client a writer."""
SERIES_SECONDS = 0.15
"""How long the turns of one process last before another may have them: its clients wait so long."""
RETURN_SECONDS = 0.06
"""How long no client gets a turn after a loss, until the loser's next commit has come: it pauses for less than this
after its first loss, and for up to twice as long after each further one."""
MAX_RETURN_SECONDS = 0.5
"""The most of that, however often it has lost."""
REST_SECONDS = 0.004
"""How long a process whose turns have lasted for a series leaves them to others: one that waits for them takes less."""
MAX_TABLES = 1000
MAX_WRITERS = 1000
"""How many entries are held before old ones are dropped."""

Peer = tuple[str, int]
"""The other end of a connection: address and port."""
Key = tuple[tuple[str, ...], str]
"""A table's id and the key of one of its branches."""


class CommitQueues(WorkQueue):
    """The queues of all tables in one process. Belongs to the event loop."""

    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self._tables: dict[Key, _Queue] = {}
        super().__init__("commit turns", "Clients that commit to one table and lose to each other, one after the other")

    @property
    def waiting(self) -> int:
        return sum(queue.waiting for queue in list(self._tables.values()))

    async def wait_for_turn(self, request: Any, peer: Peer) -> None:
        """Return when it is the client's turn to read a table's latest version; at once for a client without one."""
        queue = self._tables.get(_key(request))
        if queue is not None:
            await queue.wait_for_turn(peer)

    async def run_commit(self, request: Any, peer: Peer, work: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of `work`, which commits; that ends the client's turn. Raises what `work` raises.

        A commit that is refused for anything but a conflict, as by missing privileges, makes its client no writer.
        """
        key = _key(request)
        try:
            response = await work()
        except ConcurrentModificationError:
            self._queue(key).add_commit(peer, is_lost=True)
            raise
        if (queue := self._tables.get(key)) is not None:
            queue.add_commit(peer, is_lost=False)
            if queue.is_calm:
                del self._tables[key]
            else:
                await asyncio.sleep(0)  # the next client need not wait until this one has its response
        return response

    def _queue(self, key: Key) -> _Queue:
        if len(self._tables) >= MAX_TABLES:
            for calm in [other for other, queue in self._tables.items() if queue.is_calm]:
                del self._tables[calm]
        return self._tables.setdefault(key, _Queue(self._locks, f"turn {key}"))


class LatestVersionTurn:
    """Let a client that reads a table's latest version, to commit on top of it, wait for its turn."""

    def __init__(self, queues: CommitQueues, execution: Execution) -> None:
        self._queues = queues
        self._execution = execution

    async def run(self, exchange: Exchange, ctx: Context, request: Any) -> Any:
        if request.limit == 1 and request.descending and not request.load_changes:
            await self._queues.wait_for_turn(request, exchange.peer)
        return await self._execution.run(exchange, ctx, request)


class CommitTurn:
    """Run a commit, which ends its client's turn."""

    def __init__(self, queues: CommitQueues, execution: Execution) -> None:
        self._queues = queues
        self._execution = execution

    async def run(self, exchange: Exchange, ctx: Context, request: Any) -> Any:
        work = partial(self._execution.run, exchange, ctx, request)
        return await self._queues.run_commit(request, exchange.peer, work)


class _Queue:
    """The turns of one table."""

    def __init__(self, locks: Locks, name: str) -> None:
        self._locks = locks
        self._name = name
        self._contended_at = 0.0
        self._writers: dict[Peer, float] = {}
        self._losses: dict[Peer, int] = {}
        self._losers: dict[Peer, float] = {}
        self._waiting: deque[tuple[Peer, asyncio.Future[None]]] = deque()
        self._holder: Peer | None = None
        self._turn_timer: asyncio.TimerHandle | None = None
        self._next_timer: asyncio.TimerHandle | None = None
        self._lock: AcquiredLock | None = None
        self._is_acquiring = False
        self._series_ends_at = self._rests_until = 0.0

    @property
    def waiting(self) -> int:
        """How many clients wait for a turn."""
        return len(self._waiting)

    @property
    def is_calm(self) -> bool:
        """Whether no client has lost or waited for a while."""
        is_idle = self._holder is None and not self._waiting
        return is_idle and time.monotonic() - self._contended_at > CONTENDED_SECONDS

    def add_commit(self, peer: Peer, *, is_lost: bool) -> None:
        """Record a client's commit, which ends its turn."""
        now = time.monotonic()
        if is_lost:
            self._contended_at = now
        if len(self._writers) >= MAX_WRITERS:
            self._writers = {writer: at for writer, at in self._writers.items() if now - at < CONTENDED_SECONDS}
            self._losses = {writer: losses for writer, losses in self._losses.items() if writer in self._writers}
        self._writers[peer] = now
        if is_lost:
            losses = self._losses.get(peer, 0)
            self._losses[peer] = losses + 1
            self._losers[peer] = now + min(RETURN_SECONDS * 2**losses, MAX_RETURN_SECONDS)
        else:
            self._losses.pop(peer, None)
            self._losers.pop(peer, None)
        if self._holder == peer:
            self._end_turn()
        else:
            self._start_next_in(0)

    async def wait_for_turn(self, peer: Peer) -> None:
        """Return when it is a writer's turn, or it has waited for long; at once for any other client."""
        now = time.monotonic()
        if self._holder == peer or self.is_calm or now - self._writers.pop(peer, 0.0) > CONTENDED_SECONDS:
            return
        self._contended_at = now
        self._losers.pop(peer, None)  # it starts from the latest version again
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.append((peer, turn))
        self._start_next()
        patience = loop.call_later(PATIENCE_SECONDS, _give_up, turn)
        try:
            await turn
        except asyncio.CancelledError:  # the client left, perhaps with a turn
            if self._holder == peer:
                self._end_turn()
            raise
        finally:
            patience.cancel()

    def _start_next(self) -> None:
        """Give the turn to the client that has waited longest, if it is free."""
        self._cancel_next()
        while self._waiting and self._waiting[0][1].done():
            self._waiting.popleft()
        if self._holder is not None:
            return
        is_loser_expected = self._is_loser_expected()
        if not self._waiting and not is_loser_expected:
            self._release()
            return
        if not self._has_lock():
            return
        if is_loser_expected:
            self._start_next_in(max(0.0, min(self._losers.values()) - time.monotonic()))
            return
        self._holder, turn = self._waiting.popleft()
        self._turn_timer = asyncio.get_running_loop().call_later(TURN_SECONDS, self._end_turn)
        turn.set_result(None)

    def _has_lock(self) -> bool:
        """Whether this process has the turns, and not another one; if not, `_start_next` runs once it has."""
        if self._lock is not None:
            return True
        if self._is_acquiring:
            return False
        if (seconds := self._rests_until - time.monotonic()) > 0:
            self._start_next_in(seconds)
            return False
        if (lock := self._locks.try_acquire(self._name)) is not None:
            self._start_series(lock)
            return True
        self._is_acquiring = True
        loop = asyncio.get_running_loop()
        self._locks.acquire_later(self._name, lambda lock: _call_on_loop(loop, self._on_acquired, lock))
        return False

    def _on_acquired(self, lock: AcquiredLock) -> None:
        """Start a series, or release the lock if no client of this process waits any more."""
        self._is_acquiring = False
        self._start_series(lock)
        self._start_next()

    def _start_series(self, lock: AcquiredLock) -> None:
        self._lock = lock
        self._series_ends_at = time.monotonic() + SERIES_SECONDS

    def _is_loser_expected(self) -> bool:
        """Whether a client that has lost is about to retry: no other is to get ahead of it once more."""
        now = time.monotonic()
        for peer in [peer for peer, until in self._losers.items() if until < now]:
            del self._losers[peer]
        return bool(self._losers)

    def _end_turn(self) -> None:
        if self._turn_timer is not None:
            self._turn_timer.cancel()
        self._holder = self._turn_timer = None
        if self._losers or time.monotonic() < self._series_ends_at:
            self._start_next()
            return
        self._release()
        self._rests_until = time.monotonic() + REST_SECONDS
        self._start_next()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _start_next_in(self, seconds: float) -> None:
        """Call `_start_next` after a time, or as soon as something else does."""
        self._cancel_next()
        self._next_timer = asyncio.get_running_loop().call_later(seconds, self._start_next)

    def _cancel_next(self) -> None:
        if self._next_timer is not None:
            self._next_timer.cancel()
            self._next_timer = None


def _give_up(turn: asyncio.Future[None]) -> None:
    """End a client's wait: it goes on without a turn."""
    if not turn.done():
        turn.set_result(None)


def _call_on_loop(
    loop: asyncio.AbstractEventLoop, on_acquired: Callable[[AcquiredLock], None], lock: AcquiredLock
) -> None:
    """Call a function on the event loop, from another thread."""
    try:
        loop.call_soon_threadsafe(on_acquired, lock)
    except RuntimeError:  # the loop has ended, and with it every client that waited
        lock.release()


def _key(request: Any) -> Key:
    return tuple(request.id or ()), Branch.parse(request.branch).key
