"""Telling the C allocator, and Python's collector of cycles, how a server uses memory."""

from __future__ import annotations

import gc
import logging

from tiltyard.allocator import keep_freed

log = logging.getLogger("tiltyard")

KEEP_BYTES = 512 << 20
MAP_ABOVE_BYTES = 64 << 20
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
