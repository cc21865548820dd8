"""Run work in threads, counted where a process keeps them; where principals share them, they take turns.

In a `FairPool` the queue of one principal does not delay another's work. A free thread goes to the principal that has
the fewest threads, divided by its weight; of several, to the one whose work began longest ago. So a principal alone has
as many threads as there are, less the reserved ones: those are for principals that have none at the moment, whose first
piece of work starts at once however much work others have.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, Generic, ParamSpec, TypeVar

from tiltyard.runtime.machinery import Kind, Machine
from tiltyard.runtime.tracing import bind_to_request, is_in_request, track_work

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")
Key = TypeVar("Key")

MAX_SHARED_THREADS = 128
_NICENESS = 10

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


def filling_thread(lowers_priority: bool = False) -> Pool:
    """Return the thread of a cache, which fills it with one thing after the other while requests go on."""
    initializer = _lower_priority if lowers_priority else None
    return Pool(
        "cache fills", "What is read, copied and built for caches, one thing at a time for each", 1, initializer
    )


def _lower_priority() -> None:
    """Let requests go before this thread, where the system has priorities of threads."""
    if sys.platform == "linux":
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)


_shared = Pool("shared", "Parts of calls that wait for storage, at the same time", MAX_SHARED_THREADS)


def _renew_shared() -> None:
    """Let a forked process, which has no threads of the one before, start its own."""
    global _shared  # noqa: PLW0603  # of the process
    _shared = Pool("shared", _shared.purpose, MAX_SHARED_THREADS)


os.register_at_fork(after_in_child=_renew_shared)


class Started(Generic[T]):
    """Work that was given to a shared thread."""

    __slots__ = ("_future", "_work")

    def __init__(self, work: Callable[[], T], future: Future[T]) -> None:
        self._work, self._future = work, future

    def result(self) -> T:
        """Return its result, or raise its error; work that no thread has begun yet is done here."""
        return self._work() if self._future.cancel() else self._future.result()


def start_soon(work: Callable[[], T]) -> Started[T]:
    """Run work in a shared thread, while the caller goes on."""
    return Started(work, _shared.submit(work))


def submit_shared(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Run work in a shared thread that waits for no other in these threads, but by `run_together` and `start_soon`."""
    return _shared.submit(work, *args, **kwargs)


def run_together(work: Callable[[Item], T], items: Iterable[Item], at_once: int) -> list[T]:
    """Call `work` for each item, up to `at_once` at the same time; return the results in the order of the items.

    The caller works on items itself, with shared threads where some are free: so it may be called in `work`, too.
    After an error nothing more is begun, and the error of the first item that has one is raised.
    """
    given = list(items)
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}
    remaining = deque(range(len(given)))

    def take_part() -> None:
        while remaining:
            try:
                position = remaining.popleft()
            except IndexError:  # another thread has taken the last one
                return
            try:
                results[position] = work(given[position])
            except BaseException as error:  # noqa: BLE001  # it is raised in the caller's thread
                errors[position] = error
                remaining.clear()

    helpers: list[Future[None]] = []
    with suppress(RuntimeError):  # the interpreter shuts down, and its pools take no more work
        helpers.extend(_shared.submit(take_part) for _ in range(min(at_once, len(given)) - 1))
    take_part()
    for helper in helpers:
        if not helper.cancel():
            helper.result()
    if errors:
        raise errors[min(errors)]
    return [results[position] for position in range(len(given))]


def start_thread(name: str, work: Callable[[], T]) -> Future[T]:
    """Run work in a thread of its own, which the end of the process does not wait for; return its outcome.

    For work that waits for others of its kind, or for what may hang, and for calls of Lance that begin in a callback of
    Lance: it must not be called in its own threads.
    """
    outcome: Future[T] = Future()
    tracked = bind_to_request(work)

    def run() -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        try:
            outcome.set_result(tracked())
        except BaseException as error:  # noqa: BLE001  # it is the outcome
            outcome.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return outcome


class KeyedThreads(Generic[Key]):
    """Threads that each work on something of its own, by its key: one that hangs delays no other.

    The end of the process does not wait for them. One thread starts and stops them.
    """

    def __init__(self) -> None:
        self._running: dict[Key, threading.Thread] = {}

    def __len__(self) -> int:
        """Return how many work."""
        return len(self._running)

    def __contains__(self, key: Key) -> bool:
        """Return whether one works on what has this key."""
        return key in self._running

    def start(self, key: Key, name: str, work: Callable[[], object]) -> None:
        """Start a thread of this name on what has this key, on which none works."""

        def run() -> None:
            try:
                work()
            finally:
                del self._running[key]

        self._running[key] = threading.Thread(target=run, name=name, daemon=True)
        self._running[key].start()

    def stop(self, timeout: float) -> None:
        """Wait up to `timeout` seconds, for all of them together, until they have ended."""
        deadline = time.monotonic() + timeout
        for thread in list(self._running.values()):
            thread.join(max(0.0, deadline - time.monotonic()))


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
