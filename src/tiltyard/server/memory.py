"""Telling the C allocator, and Python's collector of cycles, how a server uses memory."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from pathlib import Path

import pyarrow as pa

from tiltyard.runtime.allocator import give_back_freed, keep_freed

log = logging.getLogger("tiltyard")

KEEP_BYTES = 512 << 20
MAP_ABOVE_BYTES = 64 << 20
TRIM_SECONDS = 2.0
"""How often it is seen whether a process is idle."""
IDLE_SHARE = 0.1
"""Of a processor: who takes less is idle."""
GROWN_BYTES = 64 << 20
"""Memory that a process may have more than at its start before any is given back."""
WORTH_BYTES = 16 << 20
"""Where less came back, the next try waits for twice as long, up to MOST_SECONDS."""
MOST_SECONDS = 60.0
_STATM = Path("/proc/self/statm")
CYCLES_AFTER = 10_000
"""Objects made and not freed before Python looks for cycles among them: with its own 700 it looks every few requests,
which took a tenth of the processor time of an insert. Requests leave none behind (`tests/limits/test_cycles.py`), only
some of Lance's own objects do."""


def keep_large_buffers() -> None:
    """Let glibc reuse the buffers of uploads instead of giving each back to the kernel.

    Uploads are a third faster so (docs/architecture.md).
    """
    if not keep_freed(KEEP_BYTES, MAP_ABOVE_BYTES):
        log.debug("this C library does not keep memory that was freed")


def calm_collector() -> None:
    """Look for cycles less often, and never among what is there once a server has started."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(CYCLES_AFTER, 10, 10)


def release_when_idle() -> None:
    """Have a thread give freed memory back to the system whenever the process has nothing to do, from now on.

    What is kept for the next uploads is worth it only while they come.
    """
    if _STATM.exists():
        threading.Thread(target=_release_when_idle, name="memory", daemon=True).start()


def _release_when_idle() -> None:
    first, used = resident_bytes(), time.process_time()
    pause, idle = TRIM_SECONDS, 0.0
    while True:
        time.sleep(TRIM_SECONDS)
        before, used = used, time.process_time()
        if used - before > IDLE_SHARE * TRIM_SECONDS:
            pause, idle = TRIM_SECONDS, 0.0
            continue
        idle += TRIM_SECONDS
        now = resident_bytes()
        if idle < pause or now <= first + GROWN_BYTES:
            continue
        pa.default_memory_pool().release_unused()
        if not give_back_freed():
            return
        freed, idle = now - resident_bytes(), 0.0
        pause = TRIM_SECONDS if freed > WORTH_BYTES else min(2 * pause, MOST_SECONDS)
        log.debug("gave %d MiB of freed memory back to the system", freed >> 20)


def resident_bytes() -> int:
    """Return how much memory this process has."""
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
