"""Telling the C allocator how a server uses memory."""

from __future__ import annotations

import ctypes
import logging

log = logging.getLogger("tiltyard")

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
KEEP_BYTES = 512 << 20
MAP_ABOVE_BYTES = 64 << 20


def keep_large_buffers() -> None:
    """Let glibc reuse the buffers of uploads instead of giving each back to the kernel.

    Uploads are a third faster so (docs/architecture.md). Other C libraries have no such call, and are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        log.debug("this C library has no mallopt")
        return
    mallopt(M_MMAP_THRESHOLD, MAP_ABOVE_BYTES)
    mallopt(M_TRIM_THRESHOLD, KEEP_BYTES)
