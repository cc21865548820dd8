"""What keeps the processes of a job quick: its driver, and Spark's Python workers from one task to the next."""

from __future__ import annotations

import gc
from functools import lru_cache

from tiltyard.runtime.allocator import retain_freed_memory

_OWN_MAPPING = 32 << 20
"""Bytes from which a buffer has pages of its own: the most that every glibc takes."""
_KEPT = 128 << 20
"""Bytes that stay with the process after they were freed."""


@lru_cache(maxsize=1)
def tune_allocator() -> None:
    """Have glibc keep what Lance frees for the next batch, where it would give it back and ask for it anew.

    Batches and pages of columns are some megabytes each: half of the page faults of a task that writes are these. For
    a process that is ours alone.
    """
    retain_freed_memory(_KEPT, _OWN_MAPPING)


@lru_cache(maxsize=64)
def freeze_imports(kind: str) -> None:
    """Spare this process the look at what is imported, after the first task of a kind; later calls do nothing.

    PySpark collects garbage after each task. With pylance, pandas and PySpark imported that is a tenth of a second of
    walking through objects that stay for as long as the process does: many tasks take less.
    """
    gc.collect()
    gc.freeze()
