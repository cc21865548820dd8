"""Tune the C allocator and Python's garbage collector for a server, bound its vectors in memory, and give memory back.

Freed memory is returned to the system when the process is idle; vectors are dropped where memory is short.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tiltyard.runtime.pool import attempt
from tiltyard.runtime.process import release_freed_memory, retain_freed_memory
from tiltyard.runtime.system_memory import read_system_memory

if TYPE_CHECKING:
    from tiltyard.config import Settings
    from tiltyard.storage.vector_cache.cache import VectorCache

log = logging.getLogger("tiltyard")

KEEP_BYTES = 512 << 20
"""How much freed memory a busy process keeps for what comes."""
MAP_ABOVE_BYTES = 64 << 20
TRIM_SECONDS = 2.0
"""How often a process is checked for being idle, and its machine for memory that is left."""
VECTORS_SHARE = 0.25
"""Share of all memory that an automatic `vector_cache_bytes` is."""
IDLE_SHARE = 0.1
"""Share of a processor below which a process is idle."""
GROWN_BYTES = 64 << 20
"""How much a process may grow after its start before any memory is returned to the system."""
WORTH_BYTES = 16 << 20
"""Where less was returned, the next attempt waits twice as long, up to MAX_SECONDS."""
MAX_SECONDS = 60.0
_STATM = Path("/proc/self/statm")
GC_THRESHOLD = 10_000
"""Allocations, less deallocations, before Python looks for cycles: with the default of 700 it looks every few requests,
which took a tenth of the processor time of an insert. Requests leave no cycles (`tests/limits/test_cycles.py`), only
some of Lance's own objects do."""


def keep_large_buffers() -> None:
    """Let glibc reuse the buffers of uploads instead of returning each to the kernel.

    Uploads are a third faster so (docs/architecture.md).
    """
    if not retain_freed_memory(KEEP_BYTES, MAP_ABOVE_BYTES):
        log.debug("this C library does not retain memory that was freed")


def tune_garbage_collector() -> None:
    """Look for cycles less often, and never among the objects of a server that has started."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 10, 10)


def bound_vectors(settings: Settings) -> Settings:
    """Return settings of a server with a number for an automatic `vector_cache_bytes`: 0 where none can be told."""
    if settings.vector_cache_bytes != "auto":
        return settings
    memory = read_system_memory()
    return replace(settings, vector_cache_bytes=0 if memory is None else int(VECTORS_SHARE * memory.total))


def give_memory_back(vectors: VectorCache) -> None:
    """Start a thread that returns freed memory to the system whenever the process is idle, and drops unneeded vectors.

    Memory that is retained for the next uploads is worth it only while they come.
    """
    release = IdleRelease() if _STATM.exists() else None
    threading.Thread(target=_give_memory_back, args=(vectors, release), name="memory", daemon=True).start()


def _give_memory_back(vectors: VectorCache, release: IdleRelease | None) -> None:
    while True:
        time.sleep(TRIM_SECONDS)
        look_at_memory(vectors, release)


def look_at_memory(vectors: VectorCache, release: IdleRelease | None) -> None:
    """Give back what is due now."""
    attempt(lambda: _drop_vectors(vectors))
    if release is not None and not release.is_useless:
        attempt(release.step)


def _drop_vectors(vectors: VectorCache) -> None:
    if dropped := vectors.drop_unneeded():
        release_freed_memory()
        log.info("dropped %d MiB of vectors in memory", dropped >> 20)


class IdleRelease:
    """Returns freed memory to the system, at steps TRIM_SECONDS apart, where the process was idle before it.

    In a process that is never idle, it does so whenever that has grown by KEEP_BYTES: each arena of the allocator keeps
    as much, and there are eight for each processor.
    """

    def __init__(self) -> None:
        self.is_useless = False
        """Whether this C library returns nothing."""
        self._first = self._kept = resident_bytes()
        self._used = time.process_time()
        self._pause, self._idle = TRIM_SECONDS, 0.0

    def step(self) -> None:
        """Return memory if it is time to. Raises OSError where the process has no descriptors left to look."""
        before, self._used = self._used, time.process_time()
        now = resident_bytes()
        self._kept = min(self._kept, now)
        if self._used - before > IDLE_SHARE * TRIM_SECONDS:
            self._pause, self._idle = TRIM_SECONDS, 0.0
            if now > self._kept + KEEP_BYTES:
                self._release(now)
            return
        self._idle += TRIM_SECONDS
        if self._idle < self._pause or now <= self._first + GROWN_BYTES:
            return
        freed, self._idle = self._release(now), 0.0
        self._pause = TRIM_SECONDS if freed > WORTH_BYTES else min(2 * self._pause, MAX_SECONDS)

    def _release(self, before: int) -> int:
        """Return freed memory to the system, and how many bytes of `before` that were."""
        pa.default_memory_pool().release_unused()
        if not release_freed_memory():
            self.is_useless = True
            return 0
        self._kept = resident_bytes()
        log.debug("returned %d MiB of freed memory to the system", (before - self._kept) >> 20)
        return before - self._kept


def resident_bytes() -> int:
    """Return the resident memory of this process, in bytes."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
