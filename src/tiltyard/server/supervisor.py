"""Keep the processes of one server running: replace one that ended or hangs, renew all of them, stop them.

Each process sends a beat over a pipe of its own about once a second, from before its imports until it ends
(`tiltyard.server.child_process`). One that ends is replaced at once, and one that starts and ends over and over after
pauses that grow. One that sends nothing for `silence` seconds is killed: a few mean nothing on a busy machine.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.process import BaseProcess

SERVING = b"serving"
"""The beat of a process that answers; any other says that it is on its way."""
STOP_SECONDS = 9.5
"""How long processes may take to end once they are told to: `tiltyard serve` stops within ten."""
TICK_SECONDS = 0.5
STEADY_SECONDS = 30.0
"""A process that has served for so long did not fail at its start."""
LONGEST_PAUSE_SECONDS = 30.0
MOST_FAILED_STARTS = 3
"""In a row, while no process has ever served: then none will."""

log = logging.getLogger("tiltyard")

Start = Callable[[Connection], BaseProcess]
"""Starts a process that sends its beats over this end of a pipe."""


class NeverServedError(Exception):
    """No process of the server has come to serve; the message says how the last one ended."""


@dataclass(slots=True)
class Child:
    """A process, its beats, and since when there are none."""

    process: BaseProcess
    beats: Connection
    silent: float = 0.0
    """Seconds of the supervisor's own time: while it is stopped itself, nobody is called silent."""
    serving_since: float | None = None

    @property
    def serving(self) -> bool:
        """Whether it answers requests."""
        return self.serving_since is not None

    def read_beats(self) -> None:
        """Take note of all that it has sent."""
        try:
            while not self.beats.closed and self.beats.poll():
                beat = self.beats.recv_bytes()
                self.silent = 0.0
                if beat == SERVING and not self.serving:
                    self.serving_since = time.monotonic()
        except (EOFError, OSError):  # it is about to end: how, its exit says
            self.beats.close()

    def served_steadily(self) -> bool:
        """Whether it has served for long enough not to have failed at its start."""
        return self.serving_since is not None and time.monotonic() - self.serving_since > STEADY_SECONDS

    def end(self) -> None:
        """Ask it to end."""
        self.process.terminate()

    def kill(self) -> None:
        """End it without notice, also one that is stopped."""
        self.process.kill()
        self.process.join()

    def close(self) -> None:
        """Free what belongs to a process that has ended."""
        self.beats.close()
        self.process.close()


@dataclass(slots=True)
class Slot:
    """One of the server's processes: who does it now, who is to do it next, and how often starts have failed."""

    child: Child | None = None
    successor: Child | None = None
    failures: int = 0
    start_at: float = 0.0
    renew: bool = False


class Supervisor:
    """Runs `number` processes until a signal says to stop."""

    def __init__(self, start: Start, number: int, silence: float) -> None:
        """`silence` is how many seconds without a beat end a process."""
        self._start_process = start
        self._silence = silence
        self._slots = [Slot() for _ in range(number)]
        self._leaving: list[tuple[Child, float]] = []
        """Processes that were told to end, and until when."""
        self._ever_served = False
        self._stopping = False
        self._now = time.monotonic()

    def run(self) -> None:
        """Keep the processes running until SIGTERM or SIGINT; SIGHUP renews them one after the other.

        Raises NeverServedError.
        """
        with self._signals() as wakeup:
            try:
                while not self._stopping:
                    for slot in self._slots:
                        self._fill(slot)
                    self._renew()
                    self._wait(wakeup)
                    self._look()
            finally:
                self._stop(wakeup)

    @contextmanager
    def _signals(self) -> Iterator[int]:
        """Take the signals over; each writes to the descriptor that is given, so that no wait misses one."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        stop, renew = self._ask_to_stop, self._ask_to_renew
        handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: renew}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        woken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        try:
            yield reading
        finally:
            signal.set_wakeup_fd(woken)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(reading)
            os.close(writing)

    def _ask_to_stop(self, *_: object) -> None:
        self._stopping = True

    def _ask_to_renew(self, *_: object) -> None:
        for slot in self._slots:
            slot.renew = True

    def _children(self) -> list[Child]:
        """All processes that there are, on their way in and out too."""
        current = [child for slot in self._slots for child in (slot.child, slot.successor) if child is not None]
        return [*current, *(child for child, _ in self._leaving)]

    def _new_child(self) -> Child:
        ours, theirs = Pipe(duplex=True)
        try:
            process = self._start_process(theirs)
        finally:
            theirs.close()  # only the child has it: its end is ours to see, and ours is the child's
        return Child(process, ours)

    def _fill(self, slot: Slot) -> None:
        """Start a process where there is none, once its time has come."""
        if slot.child is None and time.monotonic() >= slot.start_at:
            slot.child = self._new_child()

    def _renew(self) -> None:
        """Start the next successor, if renewal is asked for and none is on its way."""
        if any(slot.successor is not None for slot in self._slots) or self._leaving:
            return
        slot = next((slot for slot in self._slots if slot.renew and slot.child is not None), None)
        if slot is not None:
            slot.successor = self._new_child()

    def _wait(self, wakeup: int) -> None:
        """Return when something has happened, after half a second at the latest."""
        children = self._children()
        open_beats = [child.beats for child in children if not child.beats.closed]
        wait([*open_beats, *(child.process.sentinel for child in children), wakeup], TICK_SECONDS)
        with suppress(BlockingIOError):
            os.read(wakeup, 1024)

    def _look(self) -> None:
        """Read beats, and see to those that ended, hang, or have come to serve."""
        now = time.monotonic()
        passed, self._now = min(now - self._now, 2 * TICK_SECONDS), now
        for child in self._children():
            child.silent += passed
            child.read_beats()
        for slot in self._slots:
            self._look_at_successor(slot)
            self._look_at_child(slot)
        self._look_at_leaving()

    def _look_at_child(self, slot: Slot) -> None:
        child = slot.child
        if child is None:
            return
        self._ever_served = self._ever_served or child.serving
        if (reason := self._ended(child)) is None:
            return
        slot.failures = 0 if child.served_steadily() else slot.failures + 1
        pause = min(2.0 ** (slot.failures - 2), LONGEST_PAUSE_SECONDS) if slot.failures > 1 else 0.0
        slot.child, slot.start_at = None, time.monotonic() + pause
        if not self._ever_served and slot.failures >= MOST_FAILED_STARTS:
            raise NeverServedError(reason)
        following = f"in {pause:g} s" if pause else "now"
        log.error("server process %s: another one starts %s", reason, following)

    def _look_at_successor(self, slot: Slot) -> None:
        """Let a successor that serves take over; one that failed ends the renewal, and the old ones stay."""
        if slot.successor is None:
            return
        if (reason := self._ended(slot.successor)) is not None:
            slot.successor = None
            for other in self._slots:
                other.renew = False
            log.error("server process %s: the processes that serve are not renewed", reason)
        elif slot.successor.serving:
            if slot.child is not None:
                self._let_go(slot.child)
            slot.child, slot.successor, slot.renew = slot.successor, None, False

    def _let_go(self, child: Child) -> None:
        child.end()
        self._leaving.append((child, time.monotonic() + STOP_SECONDS))

    def _look_at_leaving(self) -> None:
        for child, until in list(self._leaving):
            if child.process.is_alive() and time.monotonic() > until:
                log.error("server process %d did not end within %g s: it is killed", child.process.pid, STOP_SECONDS)
                child.kill()
            if not child.process.is_alive():
                child.close()
                self._leaving.remove((child, until))

    def _ended(self, child: Child) -> str | None:
        """Which process ended and how, if it did; one that hangs does so here."""
        pid = child.process.pid
        if not child.process.is_alive():
            reason = _exit_reason(child.process.exitcode)
        elif child.silent > self._silence:
            child.kill()
            reason = f"was killed after no sign of life for {self._silence:g} s"
        else:
            return None
        child.close()
        return f"{pid} {reason}"

    def _stop(self, wakeup: int) -> None:
        """End all processes, within `STOP_SECONDS`."""
        leaving = [child for slot in self._slots for child in (slot.child, slot.successor) if child is not None]
        self._slots = []
        for child in leaving:
            self._let_go(child)
        while self._leaving:
            self._wait(wakeup)
            for child, _ in self._leaving:
                child.read_beats()
            self._look_at_leaving()


def _exit_reason(status: int | None) -> str:
    if status is not None and status < 0:
        with suppress(ValueError):  # a number without a name, as those for real-time have
            return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"
