"""Turns: clients that write to one table, and keep losing to each other, do it one after the other.

Stock pylance asks for the latest version, writes a manifest on top of it, and commits that by CreateTableVersion. Of
eight that do so at once one wins; each of the others waits for a random time, does it again, and gives up when it has
lost twenty times. So for a while after a commit was lost, those who commit to the table hear of its latest version in
turn: the next one when the commit of the one before has come, or when it takes too long. Turns decide nothing. Who
wins a version is up to the catalog, as ever, and who has waited for long goes on without a turn. A client that has lost
commits again without asking for the latest version, so it has no turn: all others wait a moment for it, else it would
lose again, or get ahead of one who has a turn.

A client is known by its connection. Only those that have just committed to the table wait: nobody else's reads do.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from lance_namespace.errors import ConcurrentModificationError

if TYPE_CHECKING:
    from tiltyard.storage.locks import AcquiredLock, Locks

TURN_SECONDS = 0.03
"""How long a turn lasts at most. Small appends need a third of it; larger ones lose as seldom as they come."""
PATIENCE_SECONDS = 0.5
"""How long a client waits for its turn at most."""
CONTENDED_SECONDS = 5.0
"""How long there are turns since somebody lost a commit, or waited; and how long a client counts since it committed."""
SERIES_SECONDS = 0.15
"""How long the turns of one process last before another may have them: its clients wait so long."""
RETURN_SECONDS = 0.06
"""How long nobody has a turn after a loss, until the loser's next commit has come: it pauses for less than this after
its first loss, and for up to twice as long after each further one."""
LONGEST_RETURN_SECONDS = 0.5
"""The most of that, however often it has lost."""
BETWEEN_SECONDS = 0.004
"""How long a process whose turns have lasted for a series leaves them to others: who waits for them is there sooner."""
MOST_TABLES = 1000
MOST_WRITERS = 1000
"""What is remembered before what is old is looked for, to be forgotten."""

Peer = tuple[str, int]
"""The other end of a connection: address and port."""
Key = tuple[tuple[str, ...], str]
"""A table and one of its branches."""


class Turns:
    """The turns of all tables in one process. Belongs to the event loop."""

    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self._tables: dict[Key, _Queue] = {}

    async def wait(self, operation: str, request: Any, peer: Peer) -> None:
        """Return when it is the turn of who asks for a table's latest version; at once for any other request."""
        if operation == "ListTableVersions" and request.limit == 1 and request.descending:
            queue = self._tables.get(_key(request))
            if queue is not None:
                await queue.wait(peer)

    async def run(self, operation: str, request: Any, peer: Peer, work: Callable[[], Awaitable[Any]]) -> Any:
        """What `work` gives, which serves a request; a commit ends the turn of who sends it. Raises what it raises.

        A commit that is refused for anything but a conflict, as of who may not write, makes nobody a writer.
        """
        if operation != "CreateTableVersion":
            return await work()
        key = _key(request)
        try:
            result = await work()
        except ConcurrentModificationError:
            self._opened(key).committed(peer, lost=True)
            raise
        if (queue := self._tables.get(key)) is not None:
            queue.committed(peer, lost=False)
            if queue.calm:
                del self._tables[key]
            else:
                await asyncio.sleep(0)  # whose turn it is now need not wait until this one is answered
        return result

    def _opened(self, key: Key) -> _Queue:
        if len(self._tables) >= MOST_TABLES:
            for old in [old for old, queue in self._tables.items() if queue.calm]:
                del self._tables[old]
        return self._tables.setdefault(key, _Queue(self._locks, f"turn {key}"))


class _Queue:
    """The turns of one table."""

    def __init__(self, locks: Locks, name: str) -> None:
        self._locks = locks
        self._name = name
        self._wanted = 0.0
        self._writers: dict[Peer, float] = {}
        self._losses: dict[Peer, int] = {}
        self._losers: dict[Peer, float] = {}
        self._waiting: deque[tuple[Peer, asyncio.Future[None]]] = deque()
        self._holder: Peer | None = None
        self._ending: asyncio.TimerHandle | None = None
        self._looking: asyncio.TimerHandle | None = None
        self._claimed: AcquiredLock | None = None
        self._claiming = False
        self._series_ends = self._rests_until = 0.0

    @property
    def calm(self) -> bool:
        """Whether nobody has lost or waited for a while."""
        return self._holder is None and not self._waiting and time.monotonic() - self._wanted > CONTENDED_SECONDS

    def committed(self, peer: Peer, *, lost: bool) -> None:
        """A commit has come, and has won or lost: that ends the turn of who sent it."""
        now = time.monotonic()
        if lost:
            self._wanted = now
        if len(self._writers) >= MOST_WRITERS:
            self._writers = {one: at for one, at in self._writers.items() if now - at < CONTENDED_SECONDS}
            self._losses = {one: times for one, times in self._losses.items() if one in self._writers}
        self._writers[peer] = now
        if lost:
            before = self._losses.get(peer, 0)
            self._losses[peer] = before + 1
            self._losers[peer] = now + min(RETURN_SECONDS * 2**before, LONGEST_RETURN_SECONDS)
        else:
            self._losses.pop(peer, None)
            self._losers.pop(peer, None)
        if self._holder == peer:
            self._end()
        else:
            self._look_in(0)

    async def wait(self, peer: Peer) -> None:
        """Return when it is a writer's turn, or it has waited for long; at once for anybody else."""
        now = time.monotonic()
        if self._holder == peer or self.calm or now - self._writers.pop(peer, 0.0) > CONTENDED_SECONDS:
            return
        self._wanted = now
        self._losers.pop(peer, None)  # it begins anew
        loop = asyncio.get_running_loop()
        mine = loop.create_future()
        self._waiting.append((peer, mine))
        self._next()
        patience = loop.call_later(PATIENCE_SECONDS, _give_up, mine)
        try:
            await mine
        except asyncio.CancelledError:  # it has left, perhaps with a turn
            if self._holder == peer:
                self._end()
            raise
        finally:
            patience.cancel()

    def _next(self) -> None:
        """Give the turn to who waits longest, if it is free."""
        self._look_no_more()
        while self._waiting and self._waiting[0][1].done():
            self._waiting.popleft()
        if self._holder is not None:
            return
        awaiting = self._is_awaiting()
        if not self._waiting and not awaiting:
            self._release()
            return
        if not self._has_claim():
            return
        if awaiting:
            self._look_in(max(0.0, min(self._losers.values()) - time.monotonic()))
            return
        self._holder, mine = self._waiting.popleft()
        self._ending = asyncio.get_running_loop().call_later(TURN_SECONDS, self._end)
        mine.set_result(None)

    def _has_claim(self) -> bool:
        """Whether other processes leave the turns to this one; if they do not, `_next` is called once they do."""
        if self._claimed is not None:
            return True
        if self._claiming:
            return False
        if (left := self._rests_until - time.monotonic()) > 0:
            self._look_in(left)
            return False
        if (claimed := self._locks.try_acquire(self._name)) is not None:
            self._begin_series(claimed)
            return True
        self._claiming = True
        loop = asyncio.get_running_loop()
        self._locks.acquire_later(self._name, lambda claimed: _tell(loop, self._came, claimed))
        return False

    def _came(self, claimed: AcquiredLock) -> None:
        """The turns are this process's; by now perhaps nobody here wants one."""
        self._claiming = False
        self._begin_series(claimed)
        self._next()

    def _begin_series(self, claimed: AcquiredLock) -> None:
        self._claimed = claimed
        self._series_ends = time.monotonic() + SERIES_SECONDS

    def _is_awaiting(self) -> bool:
        """Whether somebody who has lost is about to commit again: nobody is to get ahead of it once more."""
        now = time.monotonic()
        for peer in [peer for peer, until in self._losers.items() if until < now]:
            del self._losers[peer]
        return bool(self._losers)

    def _end(self) -> None:
        """The turn is over."""
        if self._ending is not None:
            self._ending.cancel()
        self._holder = self._ending = None
        if self._losers or time.monotonic() < self._series_ends:
            self._next()
            return
        self._release()
        self._rests_until = time.monotonic() + BETWEEN_SECONDS
        self._next()

    def _release(self) -> None:
        if self._claimed is not None:
            self._claimed.release()
            self._claimed = None

    def _look_in(self, seconds: float) -> None:
        """Call `_next` after a time, or as soon as something else does."""
        self._look_no_more()
        self._looking = asyncio.get_running_loop().call_later(seconds, self._next)

    def _look_no_more(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None


def _give_up(waiting: asyncio.Future[None]) -> None:
    """End the wait of a client that has waited for long: it goes on, and gets no turn any more."""
    if not waiting.done():
        waiting.set_result(None)


def _tell(loop: asyncio.AbstractEventLoop, told: Callable[[AcquiredLock], None], claimed: AcquiredLock) -> None:
    """Call something on an event loop, from another thread."""
    try:
        loop.call_soon_threadsafe(told, claimed)
    except RuntimeError:  # the loop has ended, and with it whoever wanted the turns
        claimed.release()


def _key(request: Any) -> Key:
    return tuple(request.id or ()), request.branch or ""
