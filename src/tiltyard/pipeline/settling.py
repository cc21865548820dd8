"""What keeps Spark's Python workers quick from one task to the next."""

from __future__ import annotations

import gc
from functools import lru_cache


@lru_cache(maxsize=64)
def settle(kind: str) -> None:
    """Spare this process the look at what is imported, after the first task of a kind; later calls do nothing.

    PySpark collects garbage after each task. With pylance, pandas and PySpark imported that is a tenth of a second of
    walking through objects that stay for as long as the process does: many tasks take less.
    """
    gc.collect()
    gc.freeze()
