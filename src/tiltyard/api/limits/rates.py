"""Limit requests per second with token buckets, shared by all processes of a server.

A bucket is one number: when it will be full again (the virtual scheduling of ITU-T I.371). The processes of one server
have these numbers in a file that all of them map, under its lock; the clock is the machine's own. Without that lock two
processes would both let through what is allowed once. Servers on several machines count each for itself: a database
call at each request would cost more than the request.
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

from tiltyard.runtime.owned_folders import shared_file

SHARED_FILE = "TILTYARD_SHARED_RATES"
"""The environment variable by which a parent names the file to its processes."""
MAX_BUCKETS = 10_000

_ENTRY = struct.Struct("<Qd")
"""A digest of the caller, and when its bucket is full."""
_ENTRIES = 1 << 16
_PROBES = 32
"""How many entries are looked at for a caller: far fewer than that are in use at once."""


class Buckets(Protocol):
    """The token buckets of all callers."""

    def take(self, caller: str, now: float, cost: float, capacity: float) -> float:
        """Take `cost` from a caller's bucket of `capacity`, all in seconds.

        Return 0 if it holds so much, else how long to wait until it does.
        """


class ProcessBuckets:
    """The buckets of one process."""

    def __init__(self) -> None:
        self._full_at: dict[str, float] = {}

    def take(self, caller: str, now: float, cost: float, capacity: float) -> float:
        full_at = max(now, self._full_at.get(caller, 0.0)) + cost
        wait = _wait(full_at, now, capacity)
        if not wait:
            if len(self._full_at) >= MAX_BUCKETS:
                self._full_at = {name: at for name, at in self._full_at.items() if at > now}
            self._full_at[caller] = full_at
        return wait


class SharedBuckets:
    """The buckets of all processes that map the same file, which is never closed: it lasts as long as they do."""

    def __init__(self, file: Path) -> None:
        """Map a file that `shared_rates` made."""
        self._lock = os.open(file, os.O_RDWR | os.O_CLOEXEC)
        self._entries = mmap.mmap(self._lock, _ENTRY.size * _ENTRIES)

    def take(self, caller: str, now: float, cost: float, capacity: float) -> float:
        """Take tokens, as in `Buckets`, under the lock, for some microseconds; a process that ends releases it."""
        key = int.from_bytes(blake2b(caller.encode(), digest_size=8).digest(), "little") or 1
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            entry, full_at = self._find(key, now)
            full_at = max(now, full_at) + cost
            wait = _wait(full_at, now, capacity)
            if not wait:
                _ENTRY.pack_into(self._entries, entry, key, full_at)
            return wait
        finally:
            fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _find(self, key: int, now: float) -> tuple[int, float]:
        """Return the offset of a caller's entry, and when its bucket is full.

        A new caller takes the entry whose bucket is full the soonest.
        """
        soonest, entry = float("inf"), 0
        for probe in range(_PROBES):
            at = (key + probe) % _ENTRIES * _ENTRY.size
            owner, full_at = _ENTRY.unpack_from(self._entries, at)
            if owner == key:
                return at, full_at
            if full_at < soonest:
                soonest, entry = full_at, at
        return entry, now


def _wait(full_at: float, now: float, capacity: float) -> float:
    wait = full_at - now - capacity
    return wait if wait > 1e-9 else 0.0


class RateLimit:
    """A limit of requests per second for each caller; after a pause, a burst may come at once."""

    def __init__(
        self,
        rates: Mapping[str, float],
        rate: float,
        burst: float,
        clock: Callable[[], float],
        buckets: Buckets | None = None,
    ) -> None:
        """`rate` is for callers that `rates` does not name (0: no limit); `burst` and `clock` are in seconds."""
        self._rates = rates
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets = buckets or ProcessBuckets()

    def take(self, caller: str) -> float:
        """Count one request; return 0 if it may run, else the seconds to wait."""
        rate = self._rates.get(caller, self._rate)
        if not rate:
            return 0.0
        # One request is always allowed after a pause, however slow the rate.
        return self._buckets.take(caller, self._clock(), 1 / rate, max(self._burst, 1 / rate))


def open_buckets() -> Buckets:
    """Return the buckets of this process, or those that it shares with other processes of the same parent."""
    file = os.environ.get(SHARED_FILE)
    return SharedBuckets(Path(file)) if file else ProcessBuckets()


def shared_rates() -> AbstractContextManager[None]:
    """Make a file of buckets that the processes started within this context share."""
    return shared_file(SHARED_FILE, bytes(_ENTRY.size * _ENTRIES))
