"""Supervise the processes of one server: replace one that ended or hangs, restart all of them in turn, stop them.

Each process sends heartbeats over a pipe of its own about once a second, from before its imports until it ends
(`Heartbeats`). One that ends is replaced at once, and one that ends over and over, after pauses
that grow. One that sends no heartbeat for `silence_limit` seconds is killed: on a busy machine a few are no sign of a
hang. Little is imported here, so that the first heartbeat comes before the imports that take long.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.process import BaseProcess

from tiltyard.config import Settings
from tiltyard.runtime.lazy_imports import import_lazily
from tiltyard.server.flight_address import FlightAddress

SERVING = b"serving"
"""The heartbeat of a process that answers requests; any other says that it is starting."""
STOP_SECONDS = 9.5
"""How long processes may take to end after SIGTERM: `tiltyard serve` stops within ten seconds."""
TICK_SECONDS = 0.5
STEADY_SECONDS = 30.0
"""A process that has served for so long did not fail at its start."""
MAX_PAUSE_SECONDS = 30.0
MAX_FAILED_STARTS = 3
"""In a row, while no process has ever served: then none will."""

log = logging.getLogger("tiltyard")

Start = Callable[[Connection], BaseProcess]
"""Starts a process that sends its heartbeats over this end of a pipe."""


class NeverServedError(Exception):
    """No process of the server has ever answered requests; the message says how the last one ended."""


@dataclass(slots=True)
class Child:
    """A process of the server, its heartbeats, and for how long there have been none."""

    process: BaseProcess
    heartbeats: Connection
    silent_seconds: float = 0.0
    """Seconds without a heartbeat, in the supervisor's own time: those for which it was stopped itself do not count."""
    serving_since: float | None = None

    @property
    def is_serving(self) -> bool:
        """Whether it answers requests."""
        return self.serving_since is not None

    def read_heartbeats(self) -> None:
        """Read all heartbeats that it has sent."""
        try:
            while not self.heartbeats.closed and self.heartbeats.poll():
                heartbeat = self.heartbeats.recv_bytes()
                self.silent_seconds = 0.0
                if heartbeat == SERVING and not self.is_serving:
                    self.serving_since = time.monotonic()
        except (EOFError, OSError):  # it is about to end: how, its exit says
            self.heartbeats.close()

    def has_served_steadily(self) -> bool:
        """Whether it has served for long enough not to have failed at its start."""
        return self.serving_since is not None and time.monotonic() - self.serving_since > STEADY_SECONDS

    def end(self) -> None:
        """Send SIGTERM."""
        self.process.terminate()

    def kill(self) -> None:
        """End it by SIGKILL, which ends a stopped process, too."""
        self.process.kill()
        self.process.join()

    def close(self) -> None:
        """Free the resources of a process that has ended."""
        self.heartbeats.close()
        self.process.close()


@dataclass(slots=True)
class Slot:
    """The place of one of the server's processes: its process, the successor that is starting, and failed starts."""

    child: Child | None = None
    successor: Child | None = None
    failures: int = 0
    start_at: float = 0.0
    must_restart: bool = False


class Supervisor:
    """Runs `number` processes until a signal stops them."""

    def __init__(self, start: Start, number: int, silence_limit: float) -> None:
        """Make a supervisor; a process without a heartbeat for `silence_limit` seconds is killed."""
        self._start_process = start
        self._silence_limit = silence_limit
        self._slots = [Slot() for _ in range(number)]
        self._leaving: list[tuple[Child, float]] = []
        """Processes that were sent SIGTERM, and until when they may take to end."""
        self._ever_served = False
        self._stopping = False
        self._now = time.monotonic()

    def run(self) -> None:
        """Keep the processes running until SIGTERM or SIGINT; SIGHUP restarts them one after the other.

        Raises NeverServedError.
        """
        with self._handle_signals() as wakeup:
            try:
                while not self._stopping:
                    for slot in self._slots:
                        self._fill(slot)
                    self._restart_next()
                    self._wait(wakeup)
                    self._check_children()
            finally:
                self._stop(wakeup)

    @contextmanager
    def _handle_signals(self) -> Iterator[int]:
        """Handle the signals within the block; each writes to the yielded descriptor, so that no wait misses it."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        os.set_blocking(writing, False)
        stop, restart = self._request_stop, self._request_restart
        handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: restart}
        handlers_before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        wakeup_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        try:
            yield reading
        finally:
            signal.set_wakeup_fd(wakeup_before)
            for number, handler in handlers_before.items():
                signal.signal(number, handler)
            os.close(reading)
            os.close(writing)

    def _request_stop(self, *_: object) -> None:
        self._stopping = True

    def _request_restart(self, *_: object) -> None:
        for slot in self._slots:
            slot.must_restart = True

    def _children(self) -> list[Child]:
        """Return all processes, also those that are starting or ending."""
        current = [child for slot in self._slots for child in (slot.child, slot.successor) if child is not None]
        return [*current, *(child for child, _ in self._leaving)]

    def _new_child(self) -> Child:
        ours, theirs = Pipe(duplex=True)
        try:
            process = self._start_process(theirs)
        finally:
            theirs.close()  # the child alone has this end open, so that each side sees the other's end
        return Child(process, ours)

    def _fill(self, slot: Slot) -> None:
        """Start a process where there is none, once its time has come."""
        if slot.child is None and time.monotonic() >= slot.start_at:
            slot.child = self._new_child()

    def _restart_next(self) -> None:
        """Start the next successor, if a restart was requested and no successor is starting."""
        if any(slot.successor is not None for slot in self._slots) or self._leaving:
            return
        slot = next((slot for slot in self._slots if slot.must_restart and slot.child is not None), None)
        if slot is not None:
            slot.successor = self._new_child()

    def _wait(self, wakeup: int) -> None:
        """Return when something has happened, after half a second at the latest."""
        children = self._children()
        pipes = [child.heartbeats for child in children if not child.heartbeats.closed]
        wait([*pipes, *(child.process.sentinel for child in children), wakeup], TICK_SECONDS)
        with suppress(BlockingIOError):
            os.read(wakeup, 1024)

    def _check_children(self) -> None:
        """Read heartbeats, and replace processes that ended, hang, or have a successor that serves."""
        now = time.monotonic()
        passed, self._now = min(now - self._now, 2 * TICK_SECONDS), now
        for child in self._children():
            child.silent_seconds += passed
            child.read_heartbeats()
        for slot in self._slots:
            self._check_successor(slot)
            self._check_child(slot)
        self._check_leaving()

    def _check_child(self, slot: Slot) -> None:
        child = slot.child
        if child is None:
            return
        self._ever_served = self._ever_served or child.is_serving
        if (reason := self._end_reason(child)) is None:
            return
        slot.failures = 0 if child.has_served_steadily() else slot.failures + 1
        pause = min(2.0 ** (slot.failures - 2), MAX_PAUSE_SECONDS) if slot.failures > 1 else 0.0
        slot.child, slot.start_at = None, time.monotonic() + pause
        if not self._ever_served and slot.failures >= MAX_FAILED_STARTS:
            raise NeverServedError(reason)
        restart = f"in {pause:g} s" if pause else "now"
        log.error("server process %s: another one starts %s", reason, restart)

    def _check_successor(self, slot: Slot) -> None:
        """Let a successor that serves take over; one that failed ends the restart, and the old processes stay."""
        if slot.successor is None:
            return
        if (reason := self._end_reason(slot.successor)) is not None:
            slot.successor = None
            for other in self._slots:
                other.must_restart = False
            log.error("server process %s: the processes that serve are not replaced", reason)
        elif slot.successor.is_serving:
            if slot.child is not None:
                self._terminate(slot.child)
            slot.child, slot.successor, slot.must_restart = slot.successor, None, False

    def _terminate(self, child: Child) -> None:
        child.end()
        self._leaving.append((child, time.monotonic() + STOP_SECONDS))

    def _check_leaving(self) -> None:
        for child, until in list(self._leaving):
            if child.process.is_alive() and time.monotonic() > until:
                log.error("server process %d did not end within %g s: it is killed", child.process.pid, STOP_SECONDS)
                child.kill()
            if not child.process.is_alive():
                child.close()
                self._leaving.remove((child, until))

    def _end_reason(self, child: Child) -> str | None:
        """Return which process ended and how, None if it runs; kill one that hangs."""
        pid = child.process.pid
        if not child.process.is_alive():
            reason = _exit_reason(child.process.exitcode)
        elif child.silent_seconds > self._silence_limit:
            child.kill()
            reason = f"was killed after no heartbeat for {self._silence_limit:g} s"
        else:
            return None
        child.close()
        return f"{pid} {reason}"

    def _stop(self, wakeup: int) -> None:
        """End all processes, within `STOP_SECONDS`."""
        leaving = [child for slot in self._slots for child in (slot.child, slot.successor) if child is not None]
        self._slots = []
        for child in leaving:
            self._terminate(child)
        while self._leaving:
            self._wait(wakeup)
            for child, _ in self._leaving:
                child.read_heartbeats()
            self._check_leaving()


def _exit_reason(status: int | None) -> str:
    if status is not None and status < 0:
        with suppress(ValueError):  # a number without a name, as those for real-time have
            return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


HEARTBEAT_SECONDS = 1.0
_STARTING = b"starting"


class Heartbeats:
    """Tell the parent that this process lives, and end this process when the parent ends."""

    def __init__(self, parent: Connection) -> None:
        self._parent = parent
        self._lock = threading.Lock()
        self._state = _STARTING

    def start(self) -> None:
        """Send a heartbeat now, and then regularly."""
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def report_serving(self) -> None:
        """Tell the parent that requests are answered from now on."""
        self._state = SERVING
        try:
            self._send()
        except OSError:  # the parent is gone: the thread ends this process
            return

    def _run(self) -> None:
        try:
            while True:
                self._send()
                if self._parent.poll(HEARTBEAT_SECONDS):
                    self._parent.recv_bytes()  # the parent sends nothing: this is its end
        except (EOFError, OSError):
            _stop()

    def _send(self) -> None:
        with self._lock:
            self._parent.send_bytes(self._state)


def _stop() -> None:
    """Stop as the parent would have stopped this process, so that the port is free at once."""
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os._exit(1)


def run_child(parent: Connection, listener: socket.socket, settings: Settings, flight: FlightAddress | None) -> None:
    """Serve on a listening socket, and SQL at `flight`, until SIGTERM, or until the parent is gone."""
    for number in (signal.SIGTERM, signal.SIGINT):  # the server takes them over once it runs
        signal.signal(number, lambda *_: os._exit(0))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a closed terminal's goes to the parent as well, which decides
    heartbeat = Heartbeats(parent)
    heartbeat.start()
    import_lazily()
    from tiltyard.server.process import serve_shared_socket

    serve_shared_socket(settings, listener, flight, heartbeat.report_serving)
