"""Tune glibc's allocator: retain large freed buffers for reuse, and release them on demand."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""


def retain_freed_memory(max_bytes: int, map_above: int) -> bool:
    """Retain up to `max_bytes` of freed memory; buffers larger than `map_above` bytes are still released when freed.

    Return whether the C library accepted both: others than glibc have no such call, older versions of glibc accept at
    most 32 MiB for `map_above`. Nothing is changed then, for the trim threshold alone would release more memory.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, map_above) and mallopt(_TRIM_THRESHOLD, max_bytes))


def release_freed_memory() -> bool:
    """Release all freed memory to the system; return whether the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return trim is not None
