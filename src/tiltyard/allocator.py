"""What glibc's allocator is told: to keep large buffers that were freed, for the next ones."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""


def keep_freed(most: int, map_above: int) -> bool:
    """Keep up to `most` bytes with the process after they were freed; larger buffers than `map_above` are given back.

    Whether this C library can be told: others than glibc have no such call, and are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mallopt(_MMAP_THRESHOLD, map_above)
    mallopt(_TRIM_THRESHOLD, most)
    return True
