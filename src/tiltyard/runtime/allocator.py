"""What glibc's allocator is told: to keep large buffers that were freed, for the next ones, and to give them back."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""


def retain_freed_memory(most: int, map_above: int) -> bool:
    """Keep up to `most` bytes with the process after they were freed; larger buffers than `map_above` are given back.

    Whether this C library did as it was told: others than glibc have no such call, older ones of glibc take at most
    32 MiB for `map_above`. Nothing is changed then, for the first number alone would have more memory given back.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, map_above) and mallopt(_TRIM_THRESHOLD, most))


def release_freed_memory() -> bool:
    """Give all that was freed back to the system; return whether this C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return trim is not None
