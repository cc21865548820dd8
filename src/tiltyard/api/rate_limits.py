"""Requests per second, counted for all processes of a server together.

Kept for each caller is only when its bucket will be full again (the virtual scheduling of ITU-T I.371): one number. The
processes of one server have these numbers in a file that all of them map, and take turns by its lock; the clock is the
machine's own. Without that lock two processes would let through what is for one. Servers on several machines count each
for itself: asking a database at each request would cost more than the request.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from tiltyard.runtime.shared_file import shared_file

SHARED_FILE = "TILTYARD_SHARED_RATES"
"""The variable by which a parent tells its processes where they count together."""
MOST_BUCKETS = 10_000

_PLACE = struct.Struct("<Qd")
"""Whose bucket it is, and when that is full."""
_PLACES = 1 << 16
_TRIES = 32
"""How many places are looked at for a caller: far fewer than that are taken at once."""


class Times(Protocol):
    """When the buckets of callers are full."""

    def take(self, caller: str, now: float, cost: float, room: float) -> float:
        """Take `cost` of a caller's bucket of `room`, all in seconds; 0 if there is so much, else how long to wait."""


class OwnTimes:
    """Of one process."""

    def __init__(self) -> None:
        self._full_at: dict[str, float] = {}

    def take(self, caller: str, now: float, cost: float, room: float) -> float:
        """See Times."""
        full_at = max(now, self._full_at.get(caller, 0.0)) + cost
        wait = _wait(full_at, now, room)
        if not wait:
            if len(self._full_at) >= MOST_BUCKETS:
                self._full_at = {name: at for name, at in self._full_at.items() if at > now}
            self._full_at[caller] = full_at
        return wait


class SharedTimes:
    """Of all processes that map the same file, which is never closed: it lasts as long as they do."""

    def __init__(self, file: Path) -> None:
        """Map a file that `shared_rates` made."""
        self._lock = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        self._places = mmap.mmap(self._lock, _PLACE.size * _PLACES)

    def take(self, caller: str, now: float, cost: float, room: float) -> float:
        """See Times. Holds the lock for some microseconds; the end of a process lets go of it, too."""
        key = int.from_bytes(blake2b(caller.encode(), digest_size=8).digest(), "little") or 1
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            place, full_at = self._find(key, now)
            full_at = max(now, full_at) + cost
            wait = _wait(full_at, now, room)
            if not wait:
                _PLACE.pack_into(self._places, place, key, full_at)
            return wait
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _find(self, key: int, now: float) -> tuple[int, float]:
        """The place of a caller, and what is there; a new caller takes that of one whose bucket is full the soonest."""
        soonest, place = float("inf"), 0
        for number in range(_TRIES):
            at = (key + number) % _PLACES * _PLACE.size
            whose, full_at = _PLACE.unpack_from(self._places, at)
            if whose == key:
                return at, full_at
            if full_at < soonest:
                soonest, place = full_at, at
        return place, now


def _wait(full_at: float, now: float, room: float) -> float:
    wait = full_at - now - room
    return wait if wait > 1e-9 else 0.0


class Bucket:
    """Requests per second, each caller's for itself; after a pause, a burst may come at once."""

    def __init__(
        self,
        rates: Mapping[str, float],
        rate: float,
        burst: float,
        clock: Callable[[], float],
        times: Times | None = None,
    ) -> None:
        """`rate` for whom `rates` does not name (0: no limit); `burst` in seconds; `clock` counts seconds."""
        self._rates = rates
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._times = times or OwnTimes()

    def take(self, caller: str) -> float:
        """Take one request; 0 if it may run, else the seconds to wait."""
        rate = self._rates.get(caller, self._rate)
        if not rate:
            return 0.0
        # One request is always allowed after a pause, however slow the rate.
        return self._times.take(caller, self._clock(), 1 / rate, max(self._burst, 1 / rate))


def open_times() -> Times:
    """The buckets of this process, or those that it shares with others of the same parent."""
    file = os.environ.get(SHARED_FILE)
    return SharedTimes(Path(file)) if file else OwnTimes()


def shared_rates() -> AbstractContextManager[None]:
    """A file in which the processes that are started meanwhile count together."""
    return shared_file(SHARED_FILE, bytes(_PLACE.size * _PLACES))
