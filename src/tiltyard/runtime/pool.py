"""Run work in threads, counted where a process keeps them; where principals share them, they take turns.

In a `FairPool` the queue of one principal does not delay another's work. A free thread goes to the principal that has
the fewest threads, divided by its weight; of several, to the one whose work began longest ago. So a principal alone has
as many threads as there are, less the reserved ones: those are for principals that have none at the moment, whose first
piece of work starts at once however much work others have.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, ParamSpec, TypeVar

from tiltyard.runtime.current_request import is_in_request, track_work
from tiltyard.runtime.machinery import Kind, Machine

P = ParamSpec("P")
T = TypeVar("T")

RESERVED_SHARE = 4
"""One reserved place for so many, at least one where there are several."""

_Work = tuple[Future[Any], Callable[[], Any]]

log = logging.getLogger("tiltyard")


class Pool(ThreadPoolExecutor, Machine):
    """Threads whose work belongs to the request that has submitted it; waits and runs are added to it."""

    kind = Kind.POOL
    unit = "threads"

    def __init__(self, name: str, purpose: str, threads: int, initializer: Callable[[], object] | None = None) -> None:
        """Start up to `threads`, each with the first work that finds none idle; `initializer` is called in each."""
        ThreadPoolExecutor.__init__(self, threads, name, initializer)
        Machine.__init__(self, name, purpose)

    @property
    def waiting(self) -> int:
        """How many calls wait for a thread."""
        return self._work_queue.qsize()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if not is_in_request():
            return super().submit(fn, *args, **kwargs)
        return super().submit(track_work(partial(fn, *args, **kwargs)))

    def figures(self) -> Mapping[str, float]:
        started = len(self._threads)
        active = max(0, started - self._idle_semaphore._value)
        return {"size": started, "bound": self._max_workers, "waiting": self.waiting, "active": active}

    def close(self) -> None:
        """Begin nothing more, and cancel what waits; what runs is not waited for."""
        self.shutdown(wait=False, cancel_futures=True)


@dataclass(slots=True)
class _Principal:
    """The work of one principal: what waits, how much runs, and when work of it began last, as a number."""

    weight: float
    waiting: deque[_Work] = field(default_factory=deque)
    running: int = 0
    last_begin: int = 0


class FairPool(Pool):
    """Runs work in threads that principals share. Thread-safe; `submit` is for work of no principal."""

    def __init__(self, name: str, purpose: str, threads: int, reserved: int, weights: Mapping[str, float]) -> None:
        """Have `reserved` threads besides `threads`; a principal without an entry in `weights` has a weight of 1."""
        super().__init__(name, purpose, threads + reserved)
        self._free = threads + reserved
        self._reserved = reserved
        self._weights = weights
        self._lock = threading.Lock()
        self._principals: dict[str, _Principal] = {}
        self._numbers = count(1)
        self._is_shut_down = False

    @property
    def waiting(self) -> int:
        with self._lock:
            return sum(len(principal.waiting) for principal in self._principals.values())

    def figures(self) -> Mapping[str, float]:
        return {**super().figures(), "active": self._max_workers - self._free}

    def share_of(self, principal: str) -> Executor:
        """Return an executor for the work of a principal."""
        return _Share(self, principal)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self.submit_for("", partial(fn, *args, **kwargs))

    def submit_for(self, name: str, work: Callable[[], T]) -> Future[T]:
        """Run a principal's work in a thread when it is its turn. Raises RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        tracked = track_work(work)
        with self._lock:
            if self._is_shut_down:
                raise RuntimeError("no work can be submitted after a shutdown")
            principal = self._principals.get(name)
            if principal is None:
                principal = self._principals[name] = _Principal(self._weights.get(name, 1.0))
            principal.waiting.append((future, tracked))
            turn = self._take_turn()
            if turn is not None:
                ThreadPoolExecutor.submit(self, self._run, *turn)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Start nothing that is submitted from now on, and with `cancel_futures` nothing that waits."""
        with self._lock:
            self._is_shut_down = True
            if cancel_futures:
                for principal in self._principals.values():
                    while principal.waiting:
                        principal.waiting.popleft()[0].cancel()
        super().shutdown(wait=wait)

    def _take_turn(self) -> tuple[str, _Work] | None:
        """Take the work whose turn it is, with a thread for it; None where there is no work, or no thread."""
        while (name := self._next_principal()) is not None:
            principal = self._principals[name]
            work = principal.waiting.popleft()
            if work[0].set_running_or_notify_cancel():
                principal.running += 1
                principal.last_begin = next(self._numbers)
                self._free -= 1
                return name, work
            self._forget_if_idle(name)
        return None

    def _next_principal(self) -> str | None:
        """Return the principal whose turn it is; None where no work may begin."""
        if not self._free:
            return None
        may_have_more = self._free > self._reserved
        turns = [
            (principal.running / principal.weight, principal.last_begin, name)
            for name, principal in self._principals.items()
            if principal.waiting and (may_have_more or not principal.running)
        ]
        return min(turns)[2] if turns else None

    def _forget_if_idle(self, name: str) -> None:
        principal = self._principals[name]
        if not principal.waiting and not principal.running:
            del self._principals[name]

    def _run(self, name: str, work: _Work) -> None:
        """Run work in this thread, and then other work for as long as it has a turn."""
        turn: tuple[str, _Work] | None = name, work
        while turn is not None:
            name, (future, function) = turn
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001  # it is the outcome of this work alone
                outcome = partial(future.set_exception, error)
            else:
                outcome = partial(future.set_result, result)
                del result
            with self._lock:
                self._free += 1
                self._principals[name].running -= 1
                self._forget_if_idle(name)
            outcome()
            del outcome, future, function, turn  # what they refer to must not live until this thread's next work
            with self._lock:
                turn = self._take_turn()


class _Share(Executor):
    """The executor of one principal's work."""

    __slots__ = ("_name", "_pool")

    def __init__(self, pool: FairPool, name: str) -> None:
        self._pool = pool
        self._name = name

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._pool.submit_for(self._name, partial(fn, *args, **kwargs))


def attempt(step: Callable[[], None]) -> bool:
    """Run a step of a thread that must not end by it; what it raises is logged. Return whether it raised nothing.

    Whatever a step does may fail for a while: where a process has no descriptors left, even to read /proc.
    """
    try:
        step()
    except Exception:
        log.exception("a step of the thread '%s' failed, which goes on", threading.current_thread().name)
        return False
    return True


@contextmanager
def run_in_background(name: str, work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work(done)` in a thread during the block; at its end set the event `done`, and join the thread."""
    done = threading.Event()
    thread = threading.Thread(target=work, args=(done,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
